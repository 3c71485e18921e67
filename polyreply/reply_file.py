"""Replies to a dialogue file, as a responses file. An interrupted run resumes where it stopped.

The input is cut into batches. Each process appends its finished batches to its own part file, OUTPUT.partial.RANK, one
line for each batch ({"batch": number, "rows": rows of the output}), so that a batch is there completely or not at all;
OUTPUT.partial.json holds the settings of the run. The main process finds the missing batches, they are dealt out in
turn, and when all are done it joins the parts to OUTPUT, which appears at once. It does not matter which process of
which run wrote which batch: a batch's random numbers depend on its number alone.
"""

import gzip
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from polyreply.data.dialogue import BadRows, Dialogue
from polyreply.data.read import read_dialogues
from polyreply.distributed import Processes
from polyreply.errors import PolyReplyError
from polyreply.files import LockedError, check_new_file, digest, lock, write_file, writing
from polyreply.models.shipped import model_folder
from polyreply.progress import Notify, silent

if TYPE_CHECKING:
    from polyreply.reply import Reply, ReplyOptions

Row = dict[str, Any]
"""A row of a responses file."""
_MIXER = 1_000_003
"""Keeps the random numbers of the batches of one seed apart from those of the next."""


class Replier(Protocol):
    """What a file needs of a `PolyReply`."""

    def reply(self, context: list[Dialogue], **options: "Unpack[ReplyOptions]") -> "list[list[Reply]]":
        """The replies to each context."""


@dataclass(frozen=True)
class Job:
    """What to read, what to write, and the options of `PolyReply.reply`."""

    input: Path
    output: Path
    options: "ReplyOptions"
    context_turns: int = 1
    batch_size: int = 16
    overwrite: bool = False
    dtype: str = "fastest"
    """Type of the model's weights; None is the type they were saved in."""

    @property
    def settings_file(self) -> Path:
        """Holds the settings that the rows of the parts were made with."""
        return self.output.with_name(f"{self.output.name}.partial.json")

    def check(self) -> None:
        """Raise, before any work, if there is nothing to read or the output may not be written."""
        if not self.input.exists():
            raise PolyReplyError(f"{self.input}: there is no such file; check the path")
        if self.output.resolve() == self.input.resolve():
            raise PolyReplyError(f"{self.output}: expected a file to write, other than the input; name another one")
        check_new_file(self.output, self.overwrite)

    def batches(self, bad_rows: BadRows | None = None) -> Iterator[tuple[int, list[Dialogue]]]:
        """The batches of the input with their numbers."""
        dialogues = read_dialogues(self.input, context_turns=self.context_turns, bad_rows=bad_rows)
        number = 0
        while batch := list(islice(dialogues, self.batch_size)):
            yield number, batch
            number += 1


@dataclass(frozen=True)
class Plan:
    """The work of a run: rows of the input, those that earlier runs have done, and the numbers of missing batches."""

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
    model: Replier,
    job: Job,
    *,
    model_name: str = "",
    bad_rows: BadRows | None = None,
    notify: Notify = silent,
    processes: Processes | None = None,
) -> dict[str, Any]:
    """Reply to every context of a dialogue file; returns the number of rows, and of those done by an earlier run.

    Several processes each do a share. The output is complete when the main process returns; the others return before.
    """
    job.check()
    processes = processes or Processes()
    plan = Plan(**processes.from_main(lambda: asdict(_plan(job, _settings(job, model_name), bad_rows))))
    own = set(processes.own(plan.missing))
    with open_part(part_path(job.output, processes.rank)) as stream:
        for number, batch in job.batches():
            if number in own:
                begin = number * job.batch_size
                notify(f"replying, row {begin:,} of {plan.rows:,}", begin / plan.rows)
                stream.write(batch_line(number, _rows(model, batch, job.options, number)))
        os.fsync(stream.fileno())
        if processes.size > 1:
            notify("waiting for the other processes", 1.0)
        processes.wait_for_all()
        if processes.is_main:
            notify("writing the output", 1.0)
            _join(job)
    return {"output": str(job.output), "rows": plan.rows, "resumed_after": plan.done}


def _rows(model: Replier, batch: list[Dialogue], options: "ReplyOptions", number: int) -> list[Row]:
    """The rows of a batch. Its seed depends on its number alone, so a resumed run draws what a whole one draws."""
    seed = (options.get("seed", 0) * _MIXER + number) % 2**63
    own: ReplyOptions = {**options, "seed": seed, "batch_size": len(batch)}
    replies = model.reply(list(batch), **own)
    return [response_row(dialogue.context, found) for dialogue, found in zip(batch, replies, strict=True)]


# Which batches are missing.


def _plan(job: Job, settings: dict[str, Any], bad_rows: BadRows | None) -> Plan:
    """Find the batches that earlier runs left undone. Files are changed only after the whole input has been read."""
    for path in part_paths(job.output):
        open_part(path).close()  # raises if another run is still writing
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
        _remove_parts(job)
        write_file(job.settings_file, json.dumps(settings))
    return Plan(rows, done, missing)


def _settings(job: Job, model_name: str) -> dict[str, Any]:
    """Everything that decides what the rows say: a file must not hold rows of two models, even of the same name."""
    folder = Path(model_folder(model_name))
    weights = None  # for a name on the hub
    if (folder / "config.json").is_file():
        files = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".safetensors"))
        names = "".join(path.name + digest(path) for path in files)
        weights = hashlib.blake2b(names.encode(), digest_size=16).hexdigest()
    options: dict[str, Any] = dict(job.options)
    if (config := options.get("generation_config")) is not None:
        options["generation_config"] = config.to_diff_dict()
    made_by = {"model": model_name, "weights": weights, "dtype": job.dtype}
    return {**made_by, "context_turns": job.context_turns, "batch_size": job.batch_size, **options}


def _check_settings(job: Job, settings: dict[str, Any]) -> None:
    """Raise if the rows of an earlier run were made with other settings."""
    try:
        before = json.loads(job.settings_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    now = json.loads(json.dumps(settings))
    for name in sorted(set(before) | set(now)):
        if before.get(name) != now.get(name):
            raise PolyReplyError(
                f"{job.output}.partial.* was started with {name} {before.get(name)}, found {now.get(name)}; use the "
                "same settings to resume, or pass --overwrite to start again"
            )


def _compared(
    job: Job, parts: "Parts", bad_rows: BadRows | None = None
) -> Iterator[tuple[list[Dialogue], list[Row] | None]]:
    """Each batch of the input with its rows, None if it has none yet; raises if the parts belong to another input."""
    used = 0
    for number, batch in job.batches(bad_rows):
        rows = parts.read(number, [dialogue.context for dialogue in batch], job.input) if number in parts else None
        used += rows is not None
        yield batch, rows
    if used < len(parts):
        raise PolyReplyError(
            f"{job.output}.partial.*: expected batches of {job.input}, found more than it has; is it the same file? "
            "Pass --overwrite to start again"
        )


def _join(job: Job) -> None:
    """Write all rows in the order of the input, compressed if the output's name ends in .gz, and remove the parts."""
    parts = Parts(part_paths(job.output))
    with writing(job.output, durable=True) as stream:
        is_packed = job.output.name.endswith(".gz")  # with neither name nor time inside: same rows, same bytes
        packed = gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) if is_packed else nullcontext(stream)
        with packed as target:
            for _, rows in _compared(job, parts):
                if rows is None:
                    raise PolyReplyError(
                        f"{job.output}.partial.*: expected all batches of {job.input}, found only {len(parts)}; let "
                        "all processes see the same folder and start the same command again to resume"
                    )
                target.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
    _remove_parts(job)


def _remove_parts(job: Job) -> None:
    for path in (*part_paths(job.output), job.settings_file):
        path.unlink(missing_ok=True)


# Part files.


def part_path(output: Path, rank: int) -> Path:
    """The part file of one process."""
    return output.with_name(f"{output.name}.partial.{rank}")


def part_paths(output: Path) -> list[Path]:
    """The part files that exist, of this run and of earlier ones."""
    name = re.compile(re.escape(f"{output.name}.partial.") + r"\d+")
    return sorted(path for path in output.parent.glob("*") if name.fullmatch(path.name))


def batch_line(number: int, rows: Sequence[Row]) -> bytes:
    """A batch as it is written to a part file."""
    return json.dumps({"batch": number, "rows": rows}, ensure_ascii=False).encode() + b"\n"


def open_part(path: Path) -> FileIO:
    """Open a part file to append to it, for one process at a time.

    A launcher that was killed may have left processes that still write; a new run must not write at the same time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return lock(path)
    except LockedError:
        raise PolyReplyError(f"{path}: another run is still writing there; wait until it ends, or stop it") from None


class Parts:
    """The finished batches of some part files. Memory holds where each one begins, not its rows."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Read the files, and cut off what is incomplete because a process was killed while it wrote."""
        self._places: dict[int, tuple[Path, int]] = {}
        for path in paths:
            end = 0
            with path.open("rb") as stream:
                for line in stream:
                    number = _batch_number(line)
                    if number is None:
                        break
                    if number in self._places:
                        raise PolyReplyError(
                            f"{path}: expected each batch once, found batch {number + 1} again, as if two runs had "
                            "written at once; remove that file, or pass --overwrite to start again"
                        )
                    self._places[number] = path, end
                    end += len(line)
            os.truncate(path, end)

    def __contains__(self, number: int) -> bool:
        return number in self._places

    def __len__(self) -> int:
        return len(self._places)

    def read(self, number: int, contexts: Sequence[tuple[str, ...]], source: Path) -> list[Row]:
        """The rows of a batch; raises if they are not replies to these contexts of the source."""
        path, begin = self._places[number]
        with path.open("rb") as stream:
            stream.seek(begin)
            rows: list[Row] = json.loads(stream.readline())["rows"]
        if [_context(row) for row in rows] != list(contexts):
            raise PolyReplyError(
                f"{path}: expected the contexts of batch {number + 1} of {source}, found others; remove that file or "
                "pass --overwrite to start again"
            )
        return rows


def _batch_number(line: bytes) -> int | None:
    """The number of the batch in a line; None if the line is not a complete batch."""
    try:
        batch = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    complete = isinstance(batch, dict) and isinstance(batch.get("batch"), int) and isinstance(batch.get("rows"), list)
    return int(batch["batch"]) if complete and batch else None


def _context(row: Any) -> tuple[str, ...] | None:
    """The turns that a row replies to."""
    context = row.get("context") if isinstance(row, dict) else None
    return (context,) if isinstance(context, str) else tuple(context) if isinstance(context, list) else None
