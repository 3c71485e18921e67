"""figure-assignment: how many samples each decoder was trained on, mean ± deviation over samples."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyreply.experiments import paper
from polyreply.experiments.cache import Task
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.claims import Claim, check, within
from polyreply.experiments.result import Findings
from polyreply.experiments.systems import Systems
from polyreply.experiments.usage_table import usage_table
from polyreply.experiments.variants import (
    EQHARD,
    HARD,
    HARD_AUTHORS,
    HARD_LEARNED,
    HARD_NO_SKIP,
    SOFT,
    with_authors_start,
)

ROWS = (SOFT, HARD, HARD_AUTHORS, HARD_NO_SKIP, HARD_LEARNED, EQHARD)
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
        "Hard-EM leaves at least half untrained where adapters have no skip connection (percent starved)",
        "ours",
        within(HARD_NO_SKIP.name, "starved", at_least=50),
    ),
    Claim(
        "Hard-EM starves decoders where a learned prior prefers those that already got most (percent starved)",
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


def _tasks(systems: Systems) -> Sequence[Task]:
    return [systems.training(variant, systems.preset.seeds[0]) for variant in systems.distinct(ROWS)]


def _report(systems: Systems, folder: Path) -> Findings:
    usage = usage_table(systems, systems.distinct(ROWS), folder)
    theirs = {**paper.ASSIGNMENT.numbers, HARD_AUTHORS.name: paper.ASSIGNMENT.numbers["Hard-EM"]}
    remark = "The paper's picture shows one of ten decoders trained by Hard-EM, and equal shares for the other methods."
    return Findings(
        [usage.table],
        [usage.picture],
        check(CLAIMS, with_authors_start(usage.numbers, systems.preset), theirs),
        [remark, *usage.diverged],
        {name: {**own, "share": usage.shares[name]} for name, own in usage.numbers.items()},
    )


def _origin(systems: Systems) -> dict[str, Any]:
    """No held-out data is used."""
    return {
        "data": systems.data.name,
        "preparation": systems.data.preparation,
        "final_numbers_from": "what was logged during training, on train",
        "seeds": [systems.preset.seeds[0]],
    }


EXPERIMENT = Experiment(_tasks, _report, origin=_origin)
