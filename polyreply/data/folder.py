"""Data folders, which training reads: the files train, valid and test; and dialogues in memory written as one."""

import gzip
import hashlib
import warnings
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import IO

import msgspec
import numpy as np
from numpy.typing import NDArray

from polyreply.arrays import Bools
from polyreply.data.dialogue import SPLITS, BadRows, Dialogue, Split
from polyreply.data.read import Row
from polyreply.data.sources import Source, dataset_sources, find_sources, rows_source
from polyreply.errors import DataError
from polyreply.files import check_new_folder, digest, new_folder, writing

Dialogues = str | Path | Iterable[Row | Dialogue] | Mapping[str, Iterable[Row | Dialogue]]
"""What `data_folder` takes. A `datasets.Dataset` is an iterable of rows, a `DatasetDict` maps splits to rows."""

_VALID_SHARE, _MOST_VALID = 0.05, 1000
"""The share of the contexts that is held out for validation, and the most."""
_FEWEST_TO_SPLIT = 20
"""Nothing is held out of fewer rows."""


def split_files(data: Path) -> dict[str, Path]:
    """The files of a data folder by split; a single file counts as train."""
    if data.is_file():
        return {"train": data}
    files: dict[str, Path] = {}
    for split in SPLITS:
        paths = (data / f"{split}{ending}" for ending in (".jsonl.gz", ".jsonl", ".csv.gz", ".csv"))
        if path := next((path for path in paths if path.exists()), None):
            files[split] = path
    if not files:
        raise DataError(f"{data}: expected train.jsonl.gz in a folder made by `polyreply prepare`, or a dialogue file")
    return files


def data_folder(
    dialogues: Dialogues,
    folder: str | Path,
    *,
    context_turns: int = 1,
    seed: int = 0,
    bad_rows: BadRows | None = None,
) -> Path:
    """The data folder of some dialogues: an existing one as it is, anything else written to `folder`.

    `dialogues` is a folder with splits, a dialogue file, the name of a corpus or of a Hugging Face dataset, rows in
    memory (dictionaries in any form that a JSONL file may have, or `Dialogue` objects), or a mapping from the names of
    splits to rows. Nothing is cleaned: that is what `prepare` does. Where the input has no validation split, about 5 %
    of the contexts (1 to 1000, and none of fewer than 20 rows) are held out for it; rows with equal contexts stay
    together.

    The folder appears when it is complete, and equal dialogues give equal bytes. One that exists is replaced only by
    its equal. Bad rows are left out and counted in `bad_rows`; without it, a warning reports them.
    """
    if isinstance(dialogues, str | Path) and Path(dialogues).is_dir():
        return Path(dialogues)
    folder = Path(folder)
    check_new_folder(folder, overwrite=True, made_by_us=lambda _: True)
    found = BadRows(advice="fix the row") if bad_rows is None else bad_rows
    sources = _sources(dialogues, seed)
    with new_folder(folder, overwrite=True) as scratch:
        (scratch / "out").mkdir()
        _write_splits(sources, scratch, context_turns, seed, found)
        _check_equal(scratch / "out", folder)
    if bad_rows is None and found.count:
        warnings.warn(found.summary(), stacklevel=2)
    return folder


def write_dialogues(path: Path, dialogues: Iterable[Dialogue]) -> int:
    """Write a JSONL file atomically, compressed if the name ends in .gz, and return the number of rows."""
    with writing(path) as stream, ExitStack() as stack:
        target = stack.enter_context(_compressed(stream)) if path.name.endswith(".gz") else stream
        rows = 0
        for dialogue in dialogues:
            target.write(_line(dialogue))
            rows += 1
    return rows


def _sources(dialogues: Dialogues, seed: int) -> dict[Split, list[Source]]:
    """The sources of each split; what is not split yet counts as train."""
    if isinstance(dialogues, str | Path):
        found = find_sources([str(dialogues)], seed)
    elif isinstance(dialogues, Mapping):
        found = dataset_sources("dialogues", dialogues)
    else:
        found = [rows_source("dialogues", dialogues)]
    splits: dict[Split, list[Source]] = {}
    for source in found:
        splits.setdefault(source.split or "train", []).append(source)
    if "train" not in splits:
        raise DataError(f"expected a split named train, found {', '.join(splits)}; add it or rename one")
    return splits


def _write_splits(
    sources: Mapping[Split, list[Source]], scratch: Path, context_turns: int, seed: int, bad_rows: BadRows
) -> None:
    def dialogues_of(split: Split) -> Iterator[Dialogue]:
        records = chain.from_iterable(source.records(bad_rows, None) for source in sources[split])
        return chain.from_iterable(record.dialogues(context_turns) for record in records)

    out = scratch / "out"
    for split in sources:
        if split == "train" and "valid" not in sources:
            _write_and_hold_out(dialogues_of(split), out, scratch / "rows.jsonl", seed)
        else:
            write_dialogues(out / f"{split}.jsonl.gz", dialogues_of(split))


def _write_and_hold_out(dialogues: Iterable[Dialogue], out: Path, all_rows: Path, seed: int) -> None:
    """Write train and, where there are rows enough, valid. Memory holds 8 bytes a row: the hash of its context."""
    hashes = array("Q")
    with all_rows.open("wb") as stream:
        for dialogue in dialogues:
            stream.write(_line(dialogue))
            hashes.append(_hash(dialogue.context, seed))
    is_valid = _held_out(np.frombuffer(hashes, np.uint64))
    with ExitStack() as stack:
        splits = ["train", "valid"] if is_valid.any() else ["train"]
        targets = [stack.enter_context(writing(out / f"{split}.jsonl.gz")) for split in splits]
        compressed = [stack.enter_context(_compressed(target)) for target in targets]
        with all_rows.open("rb") as stream:
            for line, place in zip(stream, is_valid.astype(int), strict=True):
                compressed[place].write(line)


def _held_out(hashes: NDArray[np.uint64]) -> Bools:
    """Which rows are for validation: those whose context has one of the smallest hashes."""
    contexts = np.unique(hashes)
    number = min(max(1, round(_VALID_SHARE * len(contexts))), _MOST_VALID, len(contexts) - 1)
    if len(hashes) < _FEWEST_TO_SPLIT or number < 1:
        return np.zeros(len(hashes), np.bool_)
    return np.asarray(hashes <= contexts[number - 1])


def _hash(context: tuple[str, ...], seed: int) -> int:
    text = "\x1f".join((str(seed), *context))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _line(dialogue: Dialogue) -> bytes:
    context = dialogue.context[0] if len(dialogue.context) == 1 else dialogue.context
    row: dict[str, object] = {"context": context, "responses": dialogue.responses}
    if dialogue.acts:
        row["acts"] = dialogue.acts
    return msgspec.json.encode(row) + b"\n"


def _compressed(stream: IO[bytes]) -> gzip.GzipFile:
    """A gzip stream without a name and a time in it: the same content gives the same bytes."""
    return gzip.GzipFile(filename="", mode="wb", fileobj=stream, compresslevel=4, mtime=0)


def _check_equal(new: Path, folder: Path) -> None:
    """Raise if there is a folder with other content already."""
    if not folder.exists() or not any(folder.iterdir()):
        return
    old = {file.name: digest(file) for file in folder.iterdir() if file.is_file()}
    if old != {file.name: digest(file) for file in new.iterdir()}:
        raise DataError(f"{folder}: the folder holds other data, so it is not replaced; remove it or name another one")
