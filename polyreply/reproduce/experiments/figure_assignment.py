"""figure-assignment: how many samples each decoder was trained on, mean ± deviation over samples.

Legend: S EM steps, K decoders.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyreply.reproduce import paper
from polyreply.reproduce.catalogue import Experiment
from polyreply.reproduce.claims import Claim, check, within
from polyreply.reproduce.lab import Lab, Variant
from polyreply.reproduce.result import Findings, Number, Picture, Row, Table
from polyreply.reproduce.score_table import starved, training_notes
from polyreply.reproduce.stage import Stage
from polyreply.reproduce.variants import (
    EQHARD,
    HARD,
    HARD_AUTHORS,
    HARD_LARGE,
    HARD_LEARNED,
    SOFT,
    with_authors,
    without_twins,
)
from polyreply.reproduce.workshop import Diverged
from polyreply.training.plots import plot_assignment
from polyreply.training.run_log import read

ROWS = (SOFT, HARD, HARD_AUTHORS, HARD_LARGE, HARD_LEARNED, EQHARD)
CLAIMS = (
    Claim(
        "Soft-EM trains synchronously: the deviation over samples is near zero (at most 10 % of the equal share)",
        "Figure 2a",
        within(SOFT.name, "relative_std", at_most=10),
    ),
    Claim(
        "Hard-EM leaves decoders untrained: at least half are starved, under the authors' initialisation",
        "Figure 2b",
        within(HARD_AUTHORS.name, "starved", at_least=50),
    ),
    Claim(
        "Hard-EM starves decoders where untrained ones talk nonsense, under a large initialisation (percent starved)",
        "ours",
        within(HARD_LARGE.name, "starved", at_least=20),
    ),
    Claim(
        "Hard-EM starves decoders where a learned prior prefers those that have much already (percent starved)",
        "ours",
        within(HARD_LEARNED.name, "starved", at_least=20),
    ),
    Claim(
        "EqHard-EM trains all decoders on equally many samples (largest share over the smallest)",
        "Figure 2c",
        within(EQHARD.name, "largest_to_smallest", at_most=1.001),
    ),
    Claim(
        "EqHard-EM's variance over samples is high: the deviation is at least the equal share (in percent of it)",
        "Figure 2c",
        within(EQHARD.name, "relative_std", at_least=100 - 1e-6),
    ),
)
_COLUMNS = {
    "smallest": "smallest share, %",
    "largest": "largest share, %",
    "largest_at_first": "largest at first, %",
    "largest_at_last": "largest at last, %",
    "std": "std over samples, %",
    "starved": "starved decoders, %",
}
_NOTES = (
    "starved: less than a tenth of an equal share",
    "at first, at last: in the first tenth of the EM steps and in the last quarter",
)


def _variants(lab: Lab) -> list[Variant]:
    return without_twins(lab, ROWS)


def _needs(lab: Lab) -> Sequence[Stage]:
    return [lab.training(variant, lab.preset.seeds[0]) for variant in _variants(lab)]


def _report(lab: Lab, folder: Path) -> Findings:
    seed = lab.preset.seeds[0]
    lab = lab.with_seeds((seed,))
    diverged = lab.diverged(_variants(lab))
    trained = [one for one in _variants(lab) if one.name not in diverged]
    if not trained:
        raise Diverged(f"{next(iter(diverged.values()))}, and so did all others; use a lower learning rate")
    usages = {one.name: lab.usage(one, seed) for one in trained}
    plot_assignment({_short(name): usage for name, usage in usages.items()}, folder / "assignment.png")
    logs = {one.name: read(lab.workshop.make(lab.training(one, seed)) / "log.jsonl") for one in trained}
    numbers = {name: {**_numbers(usage), **course(logs[name])} for name, usage in usages.items()}
    rows = [Row([name, *(Number(found[column]) for column in _COLUMNS)]) for name, found in numbers.items()]
    notes = [*_NOTES, *training_notes(lab, trained)]
    table = Table("What the decoders were trained on", ["method", *_COLUMNS.values()], rows, notes)
    theirs = {**paper.ASSIGNMENT.numbers, HARD_AUTHORS.name: paper.ASSIGNMENT.numbers["Hard-EM"]}
    caption = f"Assignment of training samples to decoders, mean ± deviation over samples; seed {seed}."
    return Findings(
        [table],
        [Picture("assignment.png", caption)],
        check(CLAIMS, with_authors(lab, numbers), theirs),
        [
            "The paper's picture shows one of ten decoders trained by Hard-EM, and equal shares for the other two.",
            *(f"Diverged: {told}." for told in diverged.values()),
        ],
        {name: {**numbers[name], "share": usage["share"]} for name, usage in usages.items()},
    )


def _short(name: str) -> str:
    """A name for a narrow panel."""
    method, _, detail = name.partition(", ")
    return f"{method} ({detail.replace('initialisation', 'init')})" if detail else method


def _numbers(usage: dict[str, Any]) -> dict[str, float]:
    share_K = np.array(usage["share"])
    std = 100 * float(np.mean(usage["sample_std"] or usage["step_std"]))
    return {
        "smallest": 100 * float(share_K.min()),
        "largest": 100 * float(share_K.max()),
        "largest_to_smallest": float(share_K.max() / max(share_K.min(), 1e-9)),
        "std": std,
        "relative_std": std * len(share_K),
        "starved": starved(usage["share"]),
    }


def course(log: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The largest share of a decoder in the first tenth of the steps and in the last quarter, in percent."""
    usage_SK = np.array([line["usage_K"] for line in log if line["kind"] == "step"])
    parts = {
        "largest_at_first": usage_SK[: max(1, len(usage_SK) // 10)],
        "largest_at_last": usage_SK[-len(usage_SK) // 4 :],
    }
    return {name: 100 * float(part_SK.mean(0).max()) for name, part_SK in parts.items()}


def _origin(lab: Lab) -> dict[str, Any]:
    """Nothing held out is looked at."""
    return {
        "data": lab.corpus.name,
        "preparation": lab.corpus.preparation,
        "final_numbers_from": "what was logged while training, on train",
        "seeds": [lab.preset.seeds[0]],
    }


EXPERIMENT = Experiment(_needs, _report, origin=_origin)
