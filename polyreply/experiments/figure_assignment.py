"""figure-assignment: how many samples each decoder was trained on, mean ± deviation over samples."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyreply.experiments import paper
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.claims import Claim, check, within
from polyreply.experiments.result import Findings
from polyreply.experiments.stage import Stage
from polyreply.experiments.systems import Lab, Variant
from polyreply.experiments.usage_table import usage_table
from polyreply.experiments.variants import (
    EQHARD,
    HARD,
    HARD_AUTHORS,
    HARD_LEARNED,
    HARD_NO_SKIP,
    SOFT,
    with_authors,
    without_twins,
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


def _variants(lab: Lab) -> list[Variant]:
    return without_twins(lab, ROWS)


def _needs(lab: Lab) -> Sequence[Stage]:
    return [lab.training(variant, lab.preset.seeds[0]) for variant in _variants(lab)]


def _report(lab: Lab, folder: Path) -> Findings:
    usage = usage_table(lab, _variants(lab), folder)
    theirs = {**paper.ASSIGNMENT.numbers, HARD_AUTHORS.name: paper.ASSIGNMENT.numbers["Hard-EM"]}
    return Findings(
        [usage.table],
        [usage.picture],
        check(CLAIMS, with_authors(lab, usage.numbers), theirs),
        [
            "The paper's picture shows one of ten decoders trained by Hard-EM, and equal shares for the other two.",
            *usage.diverged,
        ],
        {name: {**found, "share": usage.shares[name]} for name, found in usage.numbers.items()},
    )


def _origin(lab: Lab) -> dict[str, Any]:
    """Nothing held out is looked at."""
    return {
        "data": lab.corpus.name,
        "preparation": lab.corpus.preparation,
        "final_numbers_from": "what was logged while training, on train",
        "seeds": [lab.preset.seeds[0]],
    }


EXPERIMENT = Experiment(_needs, _report, origin=_origin)
