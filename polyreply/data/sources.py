"""What an INPUT of `prepare` may be: a folder of splits, dialogue files, an embedded corpus, a Hugging Face dataset."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from polyreply.data import chitchat, hub
from polyreply.data.read import ENDINGS, Progress, is_dialogue_file, read_records
from polyreply.data.records import BadRows, Record
from polyreply.errors import DataError

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")

SMALLTALK_ROWS: dict[Split, int] = {"train": 60_000, "valid": 1_000, "test": 1_000}
EMBEDDED = ("chitchat", "smalltalk-explicit", "smalltalk-implicit")

_SPLIT_NAME = re.compile(r"(train|validation|valid|val|dev|test)(?:\d+)?(?:[-_.].*)?$")
_ALIASES: dict[str, Split] = {"validation": "valid", "val": "valid", "dev": "valid"}


@dataclass(frozen=True)
class Source:
    """A stream of rows, and the split they belong to where the input says so."""

    name: str
    split: Split | None
    records: Callable[[BadRows, Progress | None], Iterator[Record]]
    size: int = 0
    """Bytes on disk, for progress; 0 when unknown."""
    templated: bool = False
    """Rows made from templates, which resemble each other by nature: near-duplicates are not searched."""


def find_sources(inputs: Sequence[str], seed: int = 0) -> list[Source]:
    """The sources behind the INPUT arguments; either all of them name their split or none does."""
    sources = [source for name in inputs for source in _sources_of(name, seed)]
    if len({source.split is None for source in sources}) > 1:
        raise DataError("expected either splits (a folder with train/valid/test) or plain files, found both")
    return sources


def split_named(name: str) -> Split | None:
    """The split that a file or a Hugging Face split is named after."""
    match = _SPLIT_NAME.match(name.lower())
    if not match:
        return None
    word = match.group(1)
    return _ALIASES.get(word, word)  # type: ignore[arg-type]


def _sources_of(name: str, seed: int) -> list[Source]:
    path = Path(name)
    if path.is_dir():
        return _folder(path)
    if path.exists():
        return [_file(path, None)]
    if name == "chitchat":
        return [Source(name, split, _chitchat_rows(split)) for split in SPLITS]
    if name in EMBEDDED:
        return [Source(name, split, _smalltalk_rows(name, split, seed), templated=True) for split in SPLITS]
    if hub.looks_like_name(name):
        return _hub_dataset(name)
    raise DataError(
        f"{name}: there is no such file or folder; the embedded corpora are {', '.join(EMBEDDED)}, "
        "and a Hugging Face dataset is written hf:NAME"
    )


def _folder(path: Path) -> list[Source]:
    files = sorted(file for file in path.iterdir() if file.is_file() and is_dialogue_file(file))
    named = [(file, split) for file in files if (split := split_named(file.name))]
    if named and "train" not in {split for _, split in named}:
        raise DataError(f"{path}: expected a file named train beside {named[0][0].name}, found none")
    if named and len(named) < len(files):
        others = ", ".join(sorted({file.name for file in files} - {file.name for file, _ in named}))
        raise DataError(
            f"{path}: expected only files named train, valid or test, found also {others}; move or rename them"
        )
    if not named:
        found = ", ".join(file.name for file in files[:5]) or "no dialogue file"
        raise DataError(
            f"{path}: expected files named train, valid or test ({', '.join(ENDINGS)}, or with .gz), found {found}; "
            "name the files themselves to have them split"
        )
    return [_file(file, split) for file, split in named]


def _file(path: Path, split: Split | None) -> Source:
    return Source(
        str(path),
        split,
        lambda bad_rows, progress: read_records(path, bad_rows, progress),
        path.stat().st_size,
    )


def _hub_dataset(name: str) -> list[Source]:
    splits = hub.load(name)
    named = [split_named(split) for split in splits]
    keep = len(splits) > 1
    if keep and not all(named):
        raise DataError(f"{name}: expected splits named after train, validation or test, found {', '.join(splits)}")
    return [
        Source(f"{name}[{split}]", which if keep else None, hub.reader(name, split, rows))
        for (split, rows), which in zip(splits.items(), named, strict=True)
    ]


def _chitchat_rows(split: Split) -> Callable[[BadRows, Progress | None], Iterator[Record]]:
    return lambda bad_rows, progress: chitchat.read_records(split)


def _smalltalk_rows(name: str, split: Split, seed: int) -> Callable[[BadRows, Progress | None], Iterator[Record]]:
    form: Literal["explicit", "implicit"] = "explicit" if name.endswith("explicit") else "implicit"

    def records(bad_rows: BadRows, progress: Progress | None) -> Iterator[Record]:
        from polyreply.data import smalltalk

        rows = smalltalk.generate(split=split, rows=SMALLTALK_ROWS[split], seed=seed, form=form)
        for line, row in enumerate(rows, start=1):
            yield Record(line, row.context, row.responses, row.acts)

    return records
