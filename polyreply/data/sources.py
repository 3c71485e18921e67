"""What an INPUT may be: a folder of splits, dialogue files, a named corpus, or a Hugging Face dataset.

A Hugging Face dataset is written `hf:NAME` or `hf:NAME:CONFIG`. It comes from the hub or, offline, from its cache.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyreply.data.corpora import CORPORA
from polyreply.data.dialogue import SPLITS, BadRows, Dialogue, Record, Split
from polyreply.data.read import ENDINGS, Progress, Row, is_dialogue_file, read_records, read_rows
from polyreply.errors import DataError

_SPLIT_NAME = re.compile(r"(train|validation|valid|val|dev|test)(?:\d+)?(?:[-_.].*)?$")
_ALIASES: dict[str, Split] = {"validation": "valid", "val": "valid", "dev": "valid"}
_HUB_NAME = re.compile(r"hf:[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")


@dataclass(frozen=True)
class Source:
    """A stream of rows, and the split they belong to where the input names it."""

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


def dataset_sources(name: str, splits: Mapping[str, Iterable[Row | Dialogue]]) -> list[Source]:
    """A source for each split of a dataset in memory; a single split counts as not split yet."""
    found = {split: split_named(split) for split in splits}
    if len(splits) > 1 and not all(found.values()):
        raise DataError(f"{name}: expected splits named after train, validation or test, found {', '.join(splits)}")
    return [
        rows_source(f"{name}[{split}]", rows, found[split] if len(splits) > 1 else None)
        for split, rows in splits.items()
    ]


def rows_source(
    name: str, rows: Iterable[Row | Dialogue], split: Split | None = None, templated: bool = False
) -> Source:
    """A source of rows in memory."""
    return Source(name, split, lambda bad_rows, progress: read_rows(rows, name, bad_rows), templated=templated)


def split_named(name: str) -> Split | None:
    """The split that a file, or a split of a Hugging Face dataset, is named after."""
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
    if name in CORPORA:
        corpus = CORPORA[name]
        return [rows_source(name, corpus.rows(split, seed), split, corpus.templated) for split in SPLITS]
    if is_hub_name(name):
        return dataset_sources(name, _load_from_hub(name))
    raise DataError(
        f"{name}: there is no such file or folder; the corpora with a name are {', '.join(CORPORA)}, "
        "and a Hugging Face dataset is written hf:NAME"
    )


def _folder(path: Path) -> list[Source]:
    files = sorted(file for file in path.iterdir() if file.is_file() and is_dialogue_file(file))
    named = [(file, split) for file in files if (split := split_named(file.name))]
    if named and "train" not in {split for _, split in named}:
        raise DataError(f"{path}: expected a file named train with {named[0][0].name}, found none")
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
    size = path.stat().st_size
    return Source(str(path), split, lambda bad_rows, progress: read_records(path, bad_rows, progress), size)


def is_hub_name(name: str) -> bool:
    """Whether an INPUT has the form of a Hugging Face dataset's name."""
    return bool(_HUB_NAME.fullmatch(name))


def _load_from_hub(name: str) -> dict[str, Iterable[Row]]:
    """The splits of a dataset, or a DataError with the library's reason."""
    import datasets

    dataset, _, config = name.removeprefix("hf:").partition(":")
    try:
        return dict(datasets.load_dataset(dataset, config or None))
    except Exception as error:  # the library raises a dozen unrelated types here, network errors among them
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"{name}: could not be loaded as a Hugging Face dataset: {reason}") from None
