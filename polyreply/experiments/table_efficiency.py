"""table-efficiency: how the time of training is spent, and how many contexts per second get K replies."""

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from polyreply.data.read import read_dialogues
from polyreply.experiments import paper
from polyreply.experiments.cache import Task
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.claims import Claim, check, times, within
from polyreply.experiments.result import Findings
from polyreply.experiments.score_table import training_notes
from polyreply.experiments.systems import Systems
from polyreply.experiments.variants import BEAM, EQHARD
from polyreply.files import write_file
from polyreply.reply import PolyReply
from polyreply.tables import Column, Row, Table
from polyreply.training.run_log import read

_REPEATS = 3
_PARTS = {"e_step": "E-step, with the assignment", "m_step": "M-step", "assignment": "assignment alone"}
CLAIMS = (
    Claim("The assignment takes under 1 % of the time", "Appendix G", within("training", "assignment", at_most=1)),
    Claim(
        "K decoders reply faster than beam search",
        "Appendix G",
        times(EQHARD.name, BEAM.name, "samples_per_second", at_least=1),
    ),
)


def _tasks(systems: Systems) -> Sequence[Task]:
    return [_speed(systems)]


def _speed(systems: Systems) -> Task:
    """K decoders, and beam search on the model of stage 1, timed one after the other on the same contexts."""
    trained, stage_1 = systems.training(EQHARD, systems.preset.seeds[0]), systems.stage_1()
    final, preset = systems.data.final, systems.preset
    inputs = {
        "model": trained.name,
        "beam": stage_1.name,
        "data": final.name,
        "contexts": preset.speed_contexts,
        "batch": preset.reply_batch,
        **systems.limits(),
    }
    work = systems.work("speed", 2 * (1 + _REPEATS) * preset.speed_contexts * systems.num_decoders)
    compute = partial(_measure, systems, trained, stage_1)
    return replace(systems.cache.task("speed", "", inputs, compute, [trained, stage_1, final], work), runs_alone=True)


def _measure(systems: Systems, trained: Task, stage_1: Task, out: Path) -> None:
    preset = systems.preset
    contexts = [row.context for row in islice(read_dialogues(systems.data.final_file), preset.speed_contexts)]
    ways: list[tuple[str, Task, Literal["decoders", "beam"]]]
    ways = [(EQHARD.name, trained, "decoders"), (BEAM.name, stage_1, "beam")]
    speeds: dict[str, float] = {"contexts": len(contexts)}
    for name, task, decode in ways:
        systems.cache.notify(f"timing {name}", 0.0)
        model = PolyReply.from_pretrained(task.path / "model").to("auto")
        seconds = []
        for _ in range(1 + _REPEATS):
            start = time.perf_counter()
            model.reply(
                contexts, decode=decode, k=systems.num_decoders, batch_size=preset.reply_batch, **systems.limits()
            )
            seconds.append(time.perf_counter() - start)
        speeds[name] = len(contexts) / statistics.median(seconds[1:])  # the first run also allocates memory
    write_file(out / "speed.json", json.dumps(speeds), overwrite=True)


def _report(systems: Systems, folder: Path) -> Findings:
    training, theirs = systems.training(EQHARD, systems.preset.seeds[0]), paper.EFFICIENCY.numbers
    shares = time_shares(read(systems.cache.get(training) / "timings.jsonl"))
    speed = json.loads((systems.cache.get(_speed(systems)) / "speed.json").read_text(encoding="utf-8"))
    numbers = {"training": shares, **{name: {"samples_per_second": speed[name]} for name in (EQHARD.name, BEAM.name)}}
    parts = [Row([text, shares[part], theirs["training"][part]]) for part, text in _PARTS.items()]
    replies = [
        Row([name, *(source[name]["samples_per_second"] for source in (numbers, theirs))])
        for name in (BEAM.name, EQHARD.name)
    ]
    cores = training.record().get("machine", {}).get("cores", "an unknown machine")
    notes = training_notes(systems.with_seeds(systems.preset.seeds[:1]), [EQHARD])
    measured = f"Measured during training, on {cores}; other tasks may have run at the same time."
    sizes = (
        f"{systems.num_decoders} replies to a context, {speed['contexts']} contexts, batches of "
        f"{systems.preset.reply_batch}; beam search on the model of stage 1, without adapters."
    )
    columns = [Column("ours", digits=1), Column("the paper's", digits=1)]
    return Findings(
        [
            Table("Training time, % of an EM step", ["part", "ours", "the paper's"], parts, [measured, *notes]),
            Table("Contexts per second", ["system", *columns], replies, [sizes, *notes]),
        ],
        verdicts=check(CLAIMS, numbers, theirs),
        remarks=[
            f"The paper measured on {paper.EFFICIENCY.dataset}, and attributes its speed to decoders that can be "
            "distributed over several GPUs."
        ],
        numbers={**numbers, "contexts": speed["contexts"]},
    )


def time_shares(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Percentages of the time of all steps: E-step (with the assignment, as the paper counts), M-step, assignment."""
    steps = [line for line in lines if line["kind"] == "step"]
    e_step, assignment, m_step = (sum(step[f"{part}_seconds"] for step in steps) for part in ("e", "assign", "m"))
    total = max(e_step + assignment + m_step, 1e-12)
    return {
        "e_step": 100 * (e_step + assignment) / total,
        "m_step": 100 * m_step / total,
        "assignment": 100 * assignment / total,
    }


EXPERIMENT = Experiment(_tasks, _report, origin=lambda systems: systems.origin(systems.preset.seeds[:1]))
