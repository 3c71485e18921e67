"""Tokenised samples in a memory-mapped Arrow file: opened at once, cached by content, never served stale.

A sample is one response with its context. Row i of the file is sample i, with the columns of `SCHEMA`. The context of
several responses is stored at the first of their samples only. Each record batch holds `CHUNK` samples, the last one
the rest, and an empty one at the end carries the report, without which a file is not complete.
"""

import contextlib
import hashlib
import json
import os
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from polyreply.arrays import Ints
from polyreply.data.batches import BucketedStream
from polyreply.data.context_format import ContextFormat, Ids, Truncation, encode_contexts, encode_responses
from polyreply.data.dialogue import BadRows, Dialogue
from polyreply.data.folder import split_files
from polyreply.data.read import read_dialogues
from polyreply.data.tokenizer import fingerprint
from polyreply.errors import DataError
from polyreply.files import cache_folder, digest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SCHEMA_VERSION = 2
"""Increase it when the layout of the file or the way text becomes tokens changes: older caches are then rebuilt."""
SCHEMA = pa.schema(
    [
        ("context_at", pa.int64()),  # the sample that stores its context
        ("context_length", pa.int32()),
        ("context", pa.list_(pa.int32())),
        ("response_length", pa.int32()),
        ("response", pa.list_(pa.int32())),
    ]
)
CHUNK = 16384
"""Samples of a record batch; also bounds the memory of a build."""
DIALOGUES_AT_ONCE = 2048
STALE_SECONDS = 24 * 3600
_FIX_ROWS = "fix the row, or clean the file with `polyreply prepare`"


class TokenCorpus:
    """Samples as ids, read from disk as they are asked for."""

    def __init__(self, path: Path) -> None:
        """Map a token file; a DataError if it is not a complete one."""
        self.path = path
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
            end = reader.get_batch_with_custom_metadata(reader.num_record_batches - 1)
            self.report: dict[str, Any] = json.loads((end.custom_metadata or {})[b"report"])
            if reader.schema != SCHEMA or sum(map(len, batches)) != self.report["samples"]:
                raise ValueError("its columns or the number of its samples are not as they were written")
            self._chunks = [_Chunk(batch) for batch in batches[:-1]]
        except (OSError, pa.ArrowException, LookupError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"{path} is not a complete token file: {reason}; build it again") from error

    def __len__(self) -> int:
        """Count the samples."""
        return int(self.report["samples"])

    @property
    def truncation(self) -> dict[str, int]:
        """How many contexts and responses were encoded, and how many of them were cut."""
        return dict(self.report["truncation"])

    @cached_property
    def context_of(self) -> Ints:
        """The context of each sample, as the number of its first sample."""
        return self._column("context_at", np.int64)

    @cached_property
    def context_lengths(self) -> Ids:
        """Tokens of each sample's context."""
        return self._column("context_length", np.int32)

    @cached_property
    def response_lengths(self) -> Ids:
        """Tokens of each sample's response."""
        return self._column("response_length", np.int32)

    def context_ids(self, sample: int) -> Ids:
        """Give the context of a sample: a read-only view of the file."""
        chunk, place = self._find(sample)
        stored, at = self._find(int(chunk.context_at[place]))
        return stored.contexts.ids(at)

    def response_ids(self, sample: int) -> Ids:
        """Give the response of a sample: a read-only view of the file."""
        chunk, place = self._find(sample)
        return chunk.responses.ids(place)

    def share_of(self, token: int) -> float:
        """The share of one token among the tokens of the first responses, those of one record batch."""
        ids = self._chunks[0].responses.values
        return float(np.mean(ids == token)) if len(ids) else 0.0

    def is_intact(self) -> bool:
        """Read the whole file and compare its checksum."""
        checksum = 0
        for chunk in self._chunks:
            checksum = chunk.checksum(checksum)
        return bool(checksum == self.report["checksum"])

    def _find(self, sample: int) -> "tuple[_Chunk, int]":
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} of {len(self)}")
        chunk, place = divmod(sample, self.report["chunk"])
        return self._chunks[chunk], place

    def _column(self, name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        parts = [chunk.batch.column(name).to_numpy() for chunk in self._chunks]
        return np.concatenate([np.empty(0, dtype), *parts])

    @classmethod
    def build(
        cls,
        path: Path,
        tokenizer: "PreTrainedTokenizerBase",
        format: ContextFormat,
        cache_dir: Path | None = None,
    ) -> Self:
        """Tokenise a dialogue file, or open the result of an earlier run with the same content and settings.

        The cache is `cache_dir`, or `tokens` in $POLYREPLY_CACHE or ~/.cache/polyreply. Its key is the file's bytes,
        the tokenizer's fingerprint and the format; a damaged entry is built again. Several processes may build at once.
        """
        try:
            content = digest(path)
        except OSError as error:
            raise DataError(f"cannot read dialogues from {path}: {error.strerror}; expected a file") from error
        settings = [SCHEMA_VERSION, content, path.suffixes, fingerprint(tokenizer), asdict(format)]
        key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:40]
        cached = (cache_dir or cache_folder("tokens")) / f"{key}.arrow"
        with contextlib.suppress(DataError):  # absent or not complete: build it
            corpus = cls(cached)
            if corpus.is_intact():
                return corpus
        return cls.from_dialogues(_unchanged_dialogues(path, content), tokenizer, format, cached)

    @classmethod
    def from_dialogues(
        cls,
        dialogues: Iterable[Dialogue],
        tokenizer: "PreTrainedTokenizerBase",
        format: ContextFormat,
        out_path: Path,
    ) -> Self:
        """Tokenise dialogues in bounded memory into `out_path`, which appears only when it is complete."""
        # Not files.writing: the file has to be mapped before the rename, after which another process may remove it.
        unfinished = out_path.with_name(f"{out_path.name}.{uuid.uuid4().hex}.tmp")
        try:
            out_path.parent.mkdir(parents=True, exist_ok=True)
            _remove_stale(out_path)
            _write(unfinished, dialogues, tokenizer, format)
            corpus = cls(unfinished)
            unfinished.replace(out_path)
        except OSError as error:
            raise DataError(f"cannot write tokens to {out_path.parent}: {error}; use another folder") from error
        finally:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
        corpus.path = out_path
        return corpus


class _Lists:
    """A column of lists of ids."""

    def __init__(self, column: pa.ListArray) -> None:
        self.offsets: Ids = column.offsets.to_numpy()
        self.values: Ids = column.values.to_numpy()

    def ids(self, place: int) -> Ids:
        return self.values[self.offsets[place] : self.offsets[place + 1]]


class _Chunk:
    """A record batch with its columns as NumPy views of the file."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.context_at = batch.column("context_at").to_numpy()
        self.contexts, self.responses = _Lists(batch.column("context")), _Lists(batch.column("response"))

    def checksum(self, start: int) -> int:
        """Continue a checksum over everything the chunk holds."""
        numbers = [column.to_numpy() for column in self.batch.columns if not pa.types.is_list(column.type)]
        lists = (self.contexts.offsets, self.contexts.values, self.responses.offsets, self.responses.values)
        for array in (*numbers, *lists):
            start = zlib.crc32(array.view(np.uint8), start)
        return start


class _Sample(NamedTuple):
    """A sample before it is written; the fields are the columns of `SCHEMA`."""

    context_at: int
    context_length: int
    context: Ids
    response_length: int
    response: Ids


def _write(
    path: Path, dialogues: Iterable[Dialogue], tokenizer: "PreTrainedTokenizerBase", format: ContextFormat
) -> None:
    """Write the samples of dialogues chunk by chunk, then the report, and have it all on disk."""
    encoder = _Encoder(tokenizer, format)
    encoded = encoder.samples(iter(dialogues))
    checksum, samples = 0, 0
    with path.open("wb") as sink:
        with pa.ipc.new_file(sink, SCHEMA) as writer:
            while chunk := list(islice(encoded, CHUNK)):
                batch = _record_batch(chunk)
                writer.write_batch(batch)
                checksum, samples = _Chunk(batch).checksum(checksum), samples + len(chunk)
            if not samples:
                raise DataError("the dialogues hold no response to tokenise; check the file they come from")
            truncation = asdict(encoder.truncation)
            report = {"samples": samples, "chunk": CHUNK, "checksum": checksum, "truncation": truncation}
            writer.write_batch(_record_batch([]), custom_metadata={"report": json.dumps(report)})
        sink.flush()
        os.fsync(sink.fileno())


class _Encoder:
    """Turns dialogues into samples, a group of dialogues at a time, and counts what was cut."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", format: ContextFormat) -> None:
        self._tokenizer, self._format = tokenizer, format
        self.truncation = Truncation()

    def samples(self, dialogues: Iterator[Dialogue]) -> Iterator[_Sample]:
        """Give one sample for each response. Acts, which generated corpora have, are not read."""
        nothing = np.empty(0, np.int32)
        sample = 0
        while group := list(islice(dialogues, DIALOGUES_AT_ONCE)):
            contexts, responses = self._encode(group)
            for dialogue, context in zip(group, contexts, strict=True):
                first = sample
                for response in islice(responses, len(dialogue.responses)):
                    stored = context if sample == first else nothing
                    yield _Sample(first, len(context), stored, len(response), response)
                    sample += 1

    def _encode(self, group: list[Dialogue]) -> tuple[list[Ids], Iterator[Ids]]:
        contexts, lost = encode_contexts(self._tokenizer, [d.context for d in group], self._format)
        texts = [response for dialogue in group for response in dialogue.responses]
        responses, cut = encode_responses(self._tokenizer, texts, self._format)
        self.truncation += lost + cut
        return contexts, iter(responses)


def _record_batch(samples: list[_Sample]) -> pa.RecordBatch:
    columns = []
    for field in SCHEMA:
        values = [getattr(sample, field.name) for sample in samples]
        columns.append(_lists(values) if pa.types.is_list(field.type) else pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _lists(values: list[Ids]) -> pa.ListArray:
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return pa.ListArray.from_arrays(offsets, np.concatenate([np.empty(0, np.int32), *values]))


def _unchanged_dialogues(path: Path, content: str) -> Iterator[Dialogue]:
    """Read the dialogues of a file, and fail at the end if it is no longer the file that was hashed."""
    yield from read_dialogues(path, bad_rows=BadRows(strict=True, advice=_FIX_ROWS))
    if digest(path) != content:
        raise DataError(f"{path} changed while it was read; run again when nothing writes to it")


def _remove_stale(out_path: Path) -> None:
    """Remove what killed builds of the same file left; a fresh one may be another process at work."""
    for left in out_path.parent.glob(f"{out_path.name}.*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                left.unlink()


def token_report(
    data: Path,
    tokenizer: "PreTrainedTokenizerBase",
    format: ContextFormat,
    *,
    rows: int = 64,
    max_tokens: int | None = None,
) -> dict[str, Any]:
    """Tokenise each split of a data folder (or find it in the cache) and measure it in length-bucketed batches."""
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
