"""A dialogue file in, a responses file out. An interrupted run goes on where it stopped.

Rows are written to OUTPUT.partial as they come, beside the settings of the run; OUTPUT appears when all are there.
"""

import gzip
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyreply.data.dialogue import Dialogue
from polyreply.data.read import read_dialogues
from polyreply.data.records import BadRows
from polyreply.errors import PolyReplyError
from polyreply.progress import Notify, silent

if TYPE_CHECKING:
    from polyreply.api import PolyReply, Reply

_MIXER = 1_000_003
"""Keeps the random numbers of the batches of one seed and of the next apart."""


@dataclass(frozen=True)
class Job:
    """What to read, what to write, and with which options of `PolyReply.reply`."""

    input: Path
    output: Path
    options: dict[str, Any]
    context_turns: int = 1
    batch_size: int = 16
    overwrite: bool = False

    @property
    def partial(self) -> Path:
        """Where rows wait until all are there."""
        return self.output.with_name(f"{self.output.name}.partial")

    @property
    def settings(self) -> Path:
        """What the rows there were made with."""
        return self.output.with_name(f"{self.output.name}.partial.json")

    def check(self) -> None:
        """Raises, before any work, when there is nothing to read or the output may not be written."""
        if not self.input.exists():
            raise PolyReplyError(f"{self.input}: there is no such file; check the path")
        if self.output.is_dir() or self.output.resolve() == self.input.resolve():
            raise PolyReplyError(f"{self.output}: expected a file to write, other than the input; name another one")
        if self.output.exists() and not self.overwrite:
            raise PolyReplyError(
                f"{self.output}: the output exists; name another one, or say --overwrite to replace it"
            )


def response_row(context: Sequence[str], replies: "Sequence[Reply]") -> dict[str, Any]:
    """A row of a responses file."""
    return {
        "context": context[0] if len(context) == 1 else list(context),
        "responses": [one.text for one in replies],
        "decoders": [one.decoder for one in replies],
        "logprobs": [one.logprob for one in replies],
    }


def reply_to_file(
    model: "PolyReply", job: Job, *, model_name: str = "", bad_rows: BadRows | None = None, notify: Notify = silent
) -> dict[str, Any]:
    """Replies to every context of a dialogue file; returns how many, and how many an earlier run had done."""
    job.check()
    total = sum(1 for _ in _dialogues(job, bad_rows))
    job.output.parent.mkdir(parents=True, exist_ok=True)
    settings = {"model": model_name, "context_turns": job.context_turns, **job.options}
    done = 0 if job.overwrite else _resume(job, settings)
    if not done:
        job.partial.write_bytes(b"")
        job.settings.write_text(json.dumps(settings), encoding="utf-8")
    with job.partial.open("ab") as stream:
        rest = islice(_dialogues(job), done, None)
        for number, batch in enumerate(_batches(rest, job.batch_size), start=done // job.batch_size):
            notify(f"replying, row {number * job.batch_size:,} of {total:,}", number * job.batch_size / total)
            stream.write(_rows(model, batch, job.options, number))
            stream.flush()
        os.fsync(stream.fileno())
    _finish(job)
    return {"output": str(job.output), "rows": total, "resumed_after": done}


def _dialogues(job: Job, bad_rows: BadRows | None = None) -> Iterator[Dialogue]:
    return read_dialogues(job.input, context_turns=job.context_turns, bad_rows=bad_rows)


def _rows(model: "PolyReply", batch: Sequence[Dialogue], options: dict[str, Any], number: int) -> bytes:
    """The rows of a batch. Its seed depends on its place alone, so a resumed run draws what a whole one draws."""
    seed = (options.get("seed", 0) * _MIXER + number) % 2**63
    replies = model.reply(list(batch), **{**options, "seed": seed, "batch_size": len(batch)})
    rows = (response_row(dialogue.context, found) for dialogue, found in zip(batch, replies, strict=True))
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _resume(job: Job, settings: dict[str, Any]) -> int:
    """How many rows an earlier run has left, in whole batches; the rest of its file is cut off."""
    if not job.partial.exists():
        return 0
    _check_settings(job, settings)
    contexts = (dialogue.context for dialogue in _dialogues(job))
    ends = [0]
    with job.partial.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            context = _context_of(line)
            if context is None:  # the line during which the run was killed
                break
            if context != next(contexts, None):
                raise PolyReplyError(
                    f"{job.partial}, line {number}: expected the context of row {number} of {job.input}, found "
                    "another; remove that file or say --overwrite to begin anew"
                )
            ends.append(ends[-1] + len(line))
    done = (len(ends) - 1) // job.batch_size * job.batch_size
    os.truncate(job.partial, ends[done])
    return done


def _check_settings(job: Job, settings: dict[str, Any]) -> None:
    """Raises when the rows of an earlier run were made in another way: a file must not hold both."""
    try:
        before = json.loads(job.settings.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    now = json.loads(json.dumps(settings))
    for name in sorted(set(before) | set(now)):
        if before.get(name) != now.get(name):
            raise PolyReplyError(
                f"{job.partial} was begun with {name} {before.get(name)}, found {now.get(name)}; use the same "
                "settings to go on, or say --overwrite to begin anew"
            )


def _context_of(line: bytes) -> tuple[str, ...] | None:
    """The turns of a row; None for one that is not whole."""
    try:
        context = json.loads(line)["context"] if line.endswith(b"\n") else None
    except (ValueError, KeyError, TypeError):
        return None
    return (context,) if isinstance(context, str) else None if context is None else tuple(context)


def _finish(job: Job) -> None:
    """Puts the rows in their place at once, compressed if its name says so."""
    if job.output.name.endswith(".gz"):
        packed = job.output.with_name(f"{job.output.name}.partial.gz")
        with job.partial.open("rb") as rows, gzip.open(packed, "wb") as target:
            shutil.copyfileobj(rows, target)
        packed.replace(job.output)
        job.partial.unlink()
    else:
        job.partial.replace(job.output)
    job.settings.unlink(missing_ok=True)


def _batches(dialogues: Iterator[Dialogue], size: int) -> Iterator[list[Dialogue]]:
    while batch := list(islice(dialogues, size)):
        yield batch
