"""Writing files and folders so that a reader finds all of it or nothing; locks, digests and schema versions.

Everything is written under a temporary name in the same directory and then renamed, which is atomic. A killed process
leaves at most a hidden `.name.*.tmp` beside its target, never a half-written file under the real name.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import IO

from polyreply.errors import PolyReplyError

_STALE_SECONDS = 24 * 3600


class LockedError(PolyReplyError):
    """Another process holds the lock."""


def check_new_file(path: Path, overwrite: bool) -> None:
    """Raise unless a file can be written at `path`: nothing there yet (or `overwrite`), in a writable directory."""
    if path.is_dir():
        raise PolyReplyError(f"{path}: expected a file to write, found a folder; name a file in it")
    if path.exists() and not overwrite:
        raise PolyReplyError(f"{path}: the output exists; name another one, or pass --overwrite to replace it")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise PolyReplyError(f"{path}: expected a folder at {above}, found a file; choose another path")
    if not os.access(above, os.W_OK | os.X_OK):
        raise PolyReplyError(f"{path}: expected a writable folder, found {above}; choose another path")


def write_file(path: Path, data: bytes | str, *, overwrite: bool = False, durable: bool = False) -> None:
    """Write a whole file atomically; `durable` also waits until it is on disk."""
    check_new_file(path, overwrite)
    with writing(path, durable=durable) as stream:
        stream.write(data.encode() if isinstance(data, str) else data)


def write_files(files: Mapping[Path, bytes | str], *, overwrite: bool = False) -> None:
    """Write several files; they appear only after all of them were written, and none does if one cannot be."""
    for path in files:
        check_new_file(path, overwrite)
    with contextlib.ExitStack() as renames:
        for path, data in files.items():
            stream = renames.enter_context(writing(path))
            stream.write(data.encode() if isinstance(data, str) else data)
            stream.flush()  # a full disk shows here, before the first rename


@contextlib.contextmanager
def writing(path: Path, *, durable: bool = False) -> Iterator[IO[bytes]]:
    """A stream whose content appears at `path` when the block ends without an error, replacing what was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        give_default_permissions(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if durable:
        sync(path.parent)


def check_new_folder(out: Path, overwrite: bool, made_by_us: Callable[[Path], bool]) -> None:
    """Raise unless a folder can be written at `out`: absent, empty, or an earlier result that may be replaced."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise PolyReplyError(f"{out}: expected a folder or nothing there, found a file or a link; choose another path")
    if not out.exists() or not any(out.iterdir()):
        return
    if not overwrite:
        raise PolyReplyError(
            f"{out}: the output folder is not empty; name another one, or pass --overwrite to replace it"
        )
    if not made_by_us(out):
        raise PolyReplyError(f"{out}: the folder holds something other than an earlier result, so it is not replaced")


@contextlib.contextmanager
def new_folder(out: Path, overwrite: bool = False) -> Iterator[Path]:
    """A scratch folder beside `out`; its subfolder `out` appears at `out` when the block ends without an error."""
    out.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(out)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", suffix=".tmp", dir=out.parent) as scratch:
        yield Path(scratch)
        for file in (path for path in Path(scratch, "out").rglob("*") if path.is_file()):
            give_default_permissions(file)
        _move_into_place(Path(scratch) / "out", out, overwrite)


def _move_into_place(finished: Path, out: Path, overwrite: bool) -> None:
    """Rename; an old folder is moved aside first, and back if the new one cannot take its place."""
    old = out.with_name(f".{out.name}.{time.time_ns()}.old")
    if overwrite and out.exists():
        out.rename(old)
    try:
        finished.rename(out)  # fails if another process has filled it meanwhile
    except OSError:
        if old.exists():
            old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _remove_stale(out: Path) -> None:
    """Remove what killed runs left beside `out`; a recent scratch folder may belong to a running process."""
    for left in out.parent.glob(f".{out.name}.*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(left)


def give_default_permissions(file: Path) -> None:
    """Set the permissions of an ordinary new file; temporary files start readable by their owner only."""
    mask = os.umask(0)
    os.umask(mask)
    file.chmod(0o666 & ~mask)


def sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a directory, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cache_folder(kind: str) -> Path:
    """Where what can be made again is kept: `kind` in $POLYREPLY_CACHE, or in ~/.cache/polyreply."""
    named = os.environ.get("POLYREPLY_CACHE")
    return (Path(named) if named else Path.home() / ".cache" / "polyreply") / kind


def digest(path: Path) -> str:
    """BLAKE2b of a file's content, as hex digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "blake2b").hexdigest()


def lock(path: Path) -> FileIO:
    """Hold an exclusive lock on a file (created if absent) until the returned handle is closed or the process ends.

    Raises LockedError, with what the holder wrote into the file, if another process holds it. On systems and disks
    without such locks the handle locks nothing.
    """
    handle = path.open("a+b", buffering=0)
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.seek(0)
        holder = handle.read(200).decode(errors="replace").splitlines()
        handle.close()
        raise LockedError(f"{path} is locked by {holder[0] if holder else 'another process'}") from None
    except (ImportError, OSError):
        pass
    return handle


def wait_for_lock(path: Path) -> FileIO:
    """Hold the same lock, after other processes have released it."""
    while True:
        try:
            return lock(path)
        except LockedError:
            time.sleep(0.2)


def check_schema_version(what: object, found: object, newest: int) -> None:
    """Raise unless a file's schema version is one that this release reads."""
    if not isinstance(found, int):
        raise PolyReplyError(f"{what}: expected a schema version, found {found!r}; is it a file that polyreply wrote?")
    if found > newest:
        raise PolyReplyError(
            f"{what} has schema version {found}, and this polyreply reads up to {newest}; upgrade polyreply"
        )
