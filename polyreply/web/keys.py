"""Secrets: tokens that are compared in constant time, and a file of API keys that holds only their digests.

A key is 32 random bytes, so a single SHA-256 is enough: there is nothing to guess. A line of the file is
`name sha256:<hex digest>`; empty lines and lines that begin with `#` are left out.
"""

import hashlib
import hmac
import re
import secrets
from pathlib import Path

from polyreply.errors import PolyReplyError
from polyreply.files import write_file

_LINE = re.compile(r"([A-Za-z0-9._-]{1,64}) sha256:([0-9a-f]{64})")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


def new_token() -> str:
    """A secret that cannot be guessed, fit for a URL."""
    return secrets.token_urlsafe(32)


def digest(secret: str) -> str:
    """What is stored instead of a secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def same_secret(presented: str, stored_digest: str) -> bool:
    """Whether a secret has the stored digest, in a time that does not depend on how much of it is right."""
    return hmac.compare_digest(digest(presented), stored_digest)


class Keys:
    """The API keys that a server accepts."""

    def __init__(self, digests: dict[str, str]) -> None:
        """By the name of each key's owner, its digest."""
        self._digests = digests

    @staticmethod
    def read(path: Path) -> "Keys":
        """The keys of a file; raises if a line is not a name and a digest, or if there is none."""
        digests: dict[str, str] = {}
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            found = _LINE.fullmatch(text)
            if found is None:
                raise PolyReplyError(
                    f"{path}, line {number}: expected a name and sha256:<64 hex digits>; make a key with --new-key NAME"
                )
            if found[1] in digests:
                raise PolyReplyError(f"{path}, line {number}: the name {found[1]} occurs twice; remove one of the keys")
            digests[found[1]] = found[2]
        if not digests:
            raise PolyReplyError(f"{path}: expected at least one key, found none; make one with --new-key NAME")
        return Keys(digests)

    def owner(self, presented: str) -> str | None:
        """The name of the key that was presented; None if there is no such key. Every key is compared."""
        owner = None
        for name, stored in self._digests.items():
            if same_secret(presented, stored):
                owner = name
        return owner


def add_key(path: Path, name: str) -> str:
    """Add a new key to a file, which only its owner may read; returns the key, which is stored nowhere."""
    if not _NAME.fullmatch(name):
        raise PolyReplyError(f"expected a name of letters, digits, dots, hyphens and underscores, found {name!r:.80}")
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    if before.strip():
        Keys.read(path)
    if any(line.split()[:1] == [name] for line in before.splitlines()):
        raise PolyReplyError(f"{path}: the name {name} occurs already; remove its line or choose another name")
    key = new_token()
    separator = "" if not before or before.endswith("\n") else "\n"
    write_file(path, f"{before}{separator}{name} sha256:{digest(key)}\n", overwrite=True)
    path.chmod(0o600)
    return key
