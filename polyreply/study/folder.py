"""The study folder: what is compared, who sees what in which order, and where the answers are.

```text
STUDY/study.json          systems, wording, comparisons and each annotator's items; never changed after `study new`
STUDY/tokens.json         the secret of every personal link, readable by its owner only
STUDY/judgements.sqlite   the answers (answers.py)
```

A study is answered by people, or it is a copy that `study simulate` has filled. `study.json` says which, so the two
kinds of answers are never in one folder.
"""

import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from polyreply.errors import PolyReplyError
from polyreply.files import check_schema_version, new_folder
from polyreply.study.answers import Answers
from polyreply.study.wording import Wording

SCHEMA_VERSION = 1
STUDY, TOKENS, JUDGEMENTS = "study.json", "tokens.json", "judgements.sqlite"

Choice = Literal["1", "2", "tie"]
"""The side that an annotator prefers, or neither."""
Outcome = Literal["win", "tie", "loss"]
"""The same from the view of a comparison's first system, whatever side it was shown on."""


@dataclass(frozen=True)
class StudiedSystem:
    """A system and the response file it was read from."""

    name: str
    file: str
    digest: str


@dataclass(frozen=True)
class Comparison:
    """Two sets of texts for one context; a gold check has no systems, and its first set is the better one."""

    question: str
    context: tuple[str, ...]
    texts: tuple[tuple[str, ...], tuple[str, ...]]
    systems: tuple[str, str] | None
    row: int
    """Line of the response files, from 1; 0 for a gold check."""

    @property
    def is_gold(self) -> bool:
        """Whether the answer is known."""
        return self.systems is None


@dataclass(frozen=True)
class Item:
    """A comparison as one annotator sees it."""

    id: str
    """Random, so that it tells nothing and cannot be guessed."""
    comparison: int
    swapped: bool
    """Whether the comparison's second set of texts is side 1."""
    orders: tuple[tuple[int, ...], tuple[int, ...]]
    """The order of the texts on side 1 and on side 2."""
    is_repeat: bool = False
    """Whether this annotator sees the comparison for the second time, then with sides exchanged."""

    def outcome(self, choice: Choice) -> Outcome:
        """Whether the comparison's first set of texts wins."""
        if choice == "tie":
            return "tie"
        return "win" if (choice == "1") != self.swapped else "loss"


@dataclass(frozen=True)
class Annotator:
    """A person, or a scripted annotator, and their items in the order they are asked."""

    name: str
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Study:
    """Everything that is fixed when a study is made."""

    id: str
    systems: tuple[StudiedSystem, ...]
    pairs: tuple[tuple[str, str], ...]
    wording: Wording
    questions: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    annotators: tuple[Annotator, ...]
    settings: dict[str, Any]
    """How it was made: seed, numbers of contexts, votes, repeats and gold checks."""
    version: str
    """The version of polyreply that made it."""
    simulated: dict[str, Any] | None = None
    """For a study that scripted annotators filled: their accuracy, bias and so on. None: answered by people."""
    schema_version: int = SCHEMA_VERSION

    def shown(self, item: Item) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The texts of side 1 and of side 2, in the order in which they are shown."""
        first, second = self.comparisons[item.comparison].texts
        sides = (second, first) if item.swapped else (first, second)
        one, two = (tuple(texts[n] for n in order) for texts, order in zip(sides, item.orders, strict=True))
        return one, two


@dataclass(frozen=True)
class Tokens:
    """The secrets in personal links."""

    researcher: str
    annotators: dict[str, str] = field(default_factory=dict)
    """By the annotators' names."""


def new_tokens(study: Study) -> Tokens:
    """Fresh secrets of 192 bits."""
    return Tokens(secrets.token_urlsafe(24), {one.name: secrets.token_urlsafe(24) for one in study.annotators})


def save_study(study: Study, out: Path) -> None:
    """Write a new study folder without answers; it appears complete or not at all."""
    with new_folder(out) as scratch:
        folder = scratch / "out"
        folder.mkdir()
        (folder / STUDY).write_bytes(_to_json(study))
        (folder / TOKENS).write_bytes(_to_json(new_tokens(study)))
        Answers.create(folder / JUDGEMENTS, study.id)
        folder.chmod(0o700)  # it holds the tokens, and which system is which


def _to_json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def load_study(folder: Path) -> Study:
    """Read and check a study; raises if the folder holds none, or one of another version."""
    path = folder / STUDY
    tree = _read(path)
    check_schema_version(path, tree.get("schema_version"), SCHEMA_VERSION)
    try:
        return msgspec.convert(tree, Study, strict=True)
    except msgspec.ValidationError as error:
        raise _damaged(path, str(error)) from None


def load_tokens(folder: Path) -> Tokens:
    """The secrets of a study's links."""
    path = folder / TOKENS
    try:
        return msgspec.convert(_read(path), Tokens)
    except msgspec.ValidationError as error:
        raise _damaged(path, str(error)) from None


def open_answers(folder: Path, study: Study) -> Answers:
    """The answers of a study; raises if their file is absent or belongs to another study."""
    return Answers(folder / JUDGEMENTS, study.id)


def _read(path: Path) -> dict[str, Any]:
    if not path.parent.is_dir() or not path.is_file():
        raise PolyReplyError(
            f"{path.parent}: expected a study folder with {path.name}, found none; make one with `polyreply study new`"
        )
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(path, str(error)) from None


def _damaged(path: Path, reason: str) -> PolyReplyError:
    return PolyReplyError(
        f"{path}: expected what `polyreply study new` writes, found something else ({reason}); restore it from a backup"
    )
