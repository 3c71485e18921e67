"""A dialogue file in, a responses file out. An interrupted run goes on where it stopped.

Batches wait in part files as they come, beside the settings of the run; OUTPUT appears when all are there. One process
or many do the same: the main one finds out which batches are missing, they are dealt out in turn, it joins the parts.
"""

import gzip
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from polyreply.data.dialogue import BadRows, Dialogue
from polyreply.data.read import read_dialogues
from polyreply.distributed import Processes
from polyreply.errors import PolyReplyError
from polyreply.models.shipped import SHIPPED, shipped_folder
from polyreply.progress import Notify, silent
from polyreply.reply_shards import Parts, Row, batch_line, open_part, part_path, part_paths

if TYPE_CHECKING:
    from polyreply.reply import PolyReply, Reply

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
    dtype: str | None = None
    """The type of the model's weights; None is the one they were saved in."""

    @property
    def settings(self) -> Path:
        """What the rows of the parts were made with."""
        return self.output.with_name(f"{self.output.name}.partial.json")

    @property
    def joined(self) -> Path:
        """The output while the parts are put together."""
        return self.output.with_name(f"{self.output.name}.partial.joined")

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

    def batches(self, bad_rows: BadRows | None = None) -> Iterator[tuple[int, list[Dialogue]]]:
        """The batches of the input, each with its number."""
        dialogues = read_dialogues(self.input, context_turns=self.context_turns, bad_rows=bad_rows)
        number = 0
        while batch := list(islice(dialogues, self.batch_size)):
            yield number, batch
            number += 1


@dataclass(frozen=True)
class Plan:
    """What is to do: the rows of the input, those an earlier run has done, and the batches that are missing."""

    rows: int
    done: int
    missing: list[int]


def response_row(context: Sequence[str], replies: "Sequence[Reply]") -> Row:
    """A row of a responses file."""
    return {
        "context": context[0] if len(context) == 1 else list(context),
        "responses": [one.text for one in replies],
        "decoders": [one.decoder for one in replies],
        "logprobs": [one.logprob for one in replies],
    }


def reply_to_file(
    model: "PolyReply",
    job: Job,
    *,
    model_name: str = "",
    bad_rows: BadRows | None = None,
    notify: Notify = silent,
    processes: Processes | None = None,
) -> dict[str, Any]:
    """Replies to every context of a dialogue file; returns how many, and how many an earlier run had done.

    Several processes each do a share. It is done when the main one returns; the others return before.
    """
    job.check()
    team = processes or Processes()
    plan = Plan(**team.from_main(lambda: asdict(_plan(job, _settings(job, model_name), bad_rows))))
    with open_part(part_path(job.output, team.rank)) as stream:
        for number, batch in _own(job, plan, team):
            begin = number * job.batch_size
            notify(f"replying, row {begin:,} of {plan.rows:,}", begin / plan.rows)
            stream.write(batch_line(number, _rows(model, batch, job.options, number)))
            stream.flush()
        os.fsync(stream.fileno())
        if team.size > 1:
            notify("waiting for the other processes", 1.0)
        team.wait_for_all()
        if team.is_main:
            notify("putting the rows in order", 1.0)
            _join(job)
    return {"output": str(job.output), "rows": plan.rows, "resumed_after": plan.done}


def _settings(job: Job, model_name: str) -> dict[str, Any]:
    """What decides what the rows say. A file must not hold those of two models, even if both had the same name."""
    made_by = {"model": model_name, "weights": _model_digest(model_name), "dtype": job.dtype}
    return {**made_by, "context_turns": job.context_turns, "batch_size": job.batch_size, **job.options}


def _model_digest(name: str) -> str | None:
    """Of all that a model folder says and holds; None for a name on the hub."""
    folder = shipped_folder() if name == SHIPPED else Path(name)
    if not (folder / "config.json").is_file():
        return None
    found = hashlib.blake2b(digest_size=16)
    for path in sorted(path for path in folder.iterdir() if path.suffix in (".json", ".safetensors")):
        with path.open("rb") as stream:
            found.update(path.name.encode() + hashlib.file_digest(stream, "blake2b").digest())
    return found.hexdigest()


def _own(job: Job, plan: Plan, processes: Processes) -> Iterator[tuple[int, list[Dialogue]]]:
    """The share of this process: the missing batches are dealt out in turn."""
    own = set(processes.own(plan.missing))
    return ((number, batch) for number, batch in job.batches() if number in own)


def _rows(model: "PolyReply", batch: Sequence[Dialogue], options: dict[str, Any], number: int) -> list[Row]:
    """The rows of a batch. Its seed depends on its place alone, so a resumed run draws what a whole one draws."""
    seed = (options.get("seed", 0) * _MIXER + number) % 2**63
    replies = model.reply(list(batch), **{**options, "seed": seed, "batch_size": len(batch)})
    return [response_row(dialogue.context, found) for dialogue, found in zip(batch, replies, strict=True)]


def _plan(job: Job, settings: dict[str, Any], bad_rows: BadRows | None) -> Plan:
    """Finds what earlier runs have left to do. No file goes or comes before the whole input has been read."""
    for path in part_paths(job.output):
        open_part(path).close()
    left = [] if job.overwrite else part_paths(job.output)
    if left:
        _check_settings(job, settings)
    rows, done, missing = 0, 0, []
    for number, (batch, found) in enumerate(_compared(job, Parts(left), bad_rows)):
        rows += len(batch)
        done += len(found or ())
        if found is None:
            missing.append(number)
    if not left:
        job.output.parent.mkdir(parents=True, exist_ok=True)
        _remove_parts(job)
        job.settings.write_text(json.dumps(settings), encoding="utf-8")
    return Plan(rows, done, missing)


def _compared(
    job: Job, parts: Parts, bad_rows: BadRows | None = None
) -> Iterator[tuple[list[Dialogue], list[Row] | None]]:
    """Each batch of the input with its rows, None if it has none yet; raises when the parts are of another input."""
    used = 0
    for number, batch in job.batches(bad_rows):
        found = parts.read(number, [dialogue.context for dialogue in batch], job.input) if number in parts else None
        used += found is not None
        yield batch, found
    if used < len(parts):
        raise PolyReplyError(
            f"{job.output}.partial.*: expected batches of {job.input}, found more than it has; is it the same file? "
            "Say --overwrite to begin anew"
        )


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
                f"{job.output}.partial.* was begun with {name} {before.get(name)}, found {now.get(name)}; use the same "
                "settings to go on, or say --overwrite to begin anew"
            )


def _join(job: Job) -> None:
    """Puts all rows in the order of the input and the output in its place at once, compressed if its name says so."""
    parts = Parts(part_paths(job.output))
    with job.joined.open("wb") as stream:
        with _packed(stream) if job.output.name.endswith(".gz") else nullcontext(stream) as target:
            for _, rows in _compared(job, parts):
                if rows is None:
                    raise PolyReplyError(
                        f"{job.output}.partial.*: expected all batches of {job.input}, found only {len(parts)}; let "
                        "all processes see the same folder and start the same command again, it goes on"
                    )
                target.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
        stream.flush()
        os.fsync(stream.fileno())
    job.joined.replace(job.output)
    _remove_parts(job)


def _packed(stream: IO[bytes]) -> gzip.GzipFile:
    """Compresses, with neither name nor time in it: the same rows are the same bytes."""
    return gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0)


def _remove_parts(job: Job) -> None:
    for path in (*part_paths(job.output), job.joined, job.settings):
        path.unlink(missing_ok=True)
