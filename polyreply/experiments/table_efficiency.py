"""table-efficiency: where the time of training goes, and how many contexts per second get K replies."""

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from polyreply.data.read import read_dialogues
from polyreply.experiments import paper
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.claims import Claim, check, times, within
from polyreply.experiments.result import Findings, Number, Row, Table
from polyreply.experiments.score_table import training_notes
from polyreply.experiments.stage import Stage, revision
from polyreply.experiments.systems import Lab
from polyreply.experiments.variants import BEAM, EQHARD
from polyreply.files import write_file
from polyreply.reply import PolyReply
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


def _needs(lab: Lab) -> Sequence[Stage]:
    return [_speed(lab)]


def _speed(lab: Lab) -> Stage:
    """Both ways to reply, timed one after the other on the same contexts: K decoders, and beam search of stage 1."""
    trained, first, asked = lab.training(EQHARD, lab.preset.seeds[0]), lab.stage_1(), lab.corpus.asked
    made_from = {
        "model": trained.name,
        "beam": first.name,
        "data": asked.name,
        "contexts": lab.preset.speed_contexts,
        "batch": lab.preset.reply_batch,
        **lab.limits(),
        **revision("speed"),
    }
    work = lab.work("speed", 2 * (1 + _REPEATS) * lab.preset.speed_contexts * lab.num_decoders)
    stages = {"decoders": trained, "beam": first}
    planned = lab.workshop.planned(
        "speed", made_from, lambda path: _measure(lab, stages, path), [*stages.values(), asked], work
    )
    return replace(planned, is_timed=True)


def _measure(lab: Lab, stages: Mapping[str, Stage], path: Path) -> None:
    contexts = [dialogue.context for dialogue in islice(read_dialogues(lab.corpus.final), lab.preset.speed_contexts)]
    options: dict[str, Any] = {"batch_size": lab.preset.reply_batch, **lab.limits()}
    found = {}
    for name, decode in ((EQHARD.name, "decoders"), (BEAM.name, "beam")):
        lab.workshop.notify(f"timing {name}", 0.0)
        model = PolyReply.from_pretrained(stages[decode].path / "model").to("auto")
        reply = partial(model.reply, contexts, decode=decode, k=lab.num_decoders, **options)
        found[name] = len(contexts) / _median(reply)
    write_file(path / "speed.json", json.dumps({**found, "contexts": len(contexts)}).encode(), overwrite=True)


def _median(work: Callable[[], object]) -> float:
    """Seconds; the first run, which pays for memory, is not counted."""
    seconds = []
    for _ in range(1 + _REPEATS):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[1:])


def _report(lab: Lab, folder: Path) -> Findings:
    training = lab.training(EQHARD, lab.preset.seeds[0])
    run = lab.workshop.make(training)
    speed = json.loads((lab.workshop.make(_speed(lab)) / "speed.json").read_text(encoding="utf-8"))
    shares = time_shares(read(run / "timings.jsonl"))
    numbers = {"training": shares, **{name: {"samples_per_second": speed[name]} for name in (EQHARD.name, BEAM.name)}}
    theirs = paper.EFFICIENCY.numbers
    rows = [Row([told, Number(shares[part]), Number(theirs["training"][part])]) for part, told in _PARTS.items()]
    replies = [
        Row([name, *(Number(found[name]["samples_per_second"], digits=1) for found in (numbers, theirs))])
        for name in (BEAM.name, EQHARD.name)
    ]
    note = (
        f"{lab.num_decoders} replies to a context, {speed['contexts']} contexts, batches of {lab.preset.reply_batch}; "
        "beam search on the model of stage 1, without adapters."
    )
    on = training.done().get("machine", {}).get("cores", "an unknown machine")
    beside = f"Measured while it was trained, on {on}; other stages may have run beside it."
    trained = training_notes(lab.with_seeds(lab.preset.seeds[:1]), [EQHARD])
    return Findings(
        [
            Table("Training time, % of an EM step", ["part", "ours", "the paper's"], rows, [beside, *trained]),
            Table("Contexts per second", ["system", "ours", "the paper's"], replies, [note, *trained]),
        ],
        verdicts=check(CLAIMS, numbers, theirs),
        remarks=[
            f"The paper measured on {paper.EFFICIENCY.dataset}, and explains its speed by decoders that can be spread "
            "over several GPUs."
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


EXPERIMENT = Experiment(_needs, _report, origin=lambda lab: lab.origin(lab.preset.seeds[:1]))
