"""What tokenising a prepared corpus gives: lengths, truncations and the share of padding, for each split."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyreply.data.batches import BucketedStream
from polyreply.data.context_format import ContextFormat
from polyreply.data.read import read_dialogues
from polyreply.data.records import BadRows
from polyreply.data.sources import SPLITS
from polyreply.data.token_corpus import TokenCorpus
from polyreply.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def split_files(data: Path) -> dict[str, Path]:
    """The files of a prepared folder by split; a single file counts as train."""
    if data.is_file():
        return {"train": data}
    endings = (".jsonl.gz", ".jsonl", ".csv.gz", ".csv")
    found = {split: [data / f"{split}{ending}" for ending in endings] for split in SPLITS}
    files: dict[str, Path] = {
        split: next(path for path in paths if path.exists())
        for split, paths in found.items()
        if any(path.exists() for path in paths)
    }
    if not files:
        raise DataError(f"{data}: expected train.jsonl.gz in a folder made by `polyreply prepare`, or a dialogue file")
    return files


def texts_of(path: Path, most: int = 50_000) -> Iterator[str]:
    """The turns and responses of a file, at most so many: what a tokenizer is trained on.

    In a conversation the answer to one row is the context of the next; it is given once.
    """
    return islice(_all_texts(path), most)


def _all_texts(path: Path) -> Iterator[str]:
    bad_rows = BadRows(True, "fix it, or clean the file with `polyreply prepare`")
    before: tuple[str, ...] = ()
    for dialogue in read_dialogues(path, bad_rows=bad_rows):
        yield from (turn for turn in dialogue.context if turn not in before)
        yield from dialogue.responses
        before = dialogue.context + dialogue.responses


def token_report(
    data: Path,
    tokenizer: "PreTrainedTokenizerBase",
    format: ContextFormat,
    *,
    rows: int = 64,
    max_tokens: int | None = None,
) -> dict[str, Any]:
    """Tokenises each split (or finds it in the cache) and measures it in length-bucketed batches."""
    report: dict[str, Any] = {}
    for split, path in split_files(data).items():
        corpus = TokenCorpus.build(path, tokenizer, format)
        size = {"max_tokens": max_tokens} if max_tokens else {"rows": rows}
        stream = BucketedStream(corpus.context_lengths, corpus.response_lengths, **size)
        report[split] = {
            "samples": len(corpus),
            "mean_context_tokens": float(corpus.context_lengths.mean()),
            "mean_response_tokens": float(corpus.response_lengths.mean()),
            **corpus.truncation,
            "padding_share": stream.padding_share(),
        }
    return report
