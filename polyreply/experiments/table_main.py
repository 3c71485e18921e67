"""table-main: EqHard-EM against the ways to decode the single-decoder model."""

from collections.abc import Sequence
from pathlib import Path

from polyreply.experiments import paper
from polyreply.experiments.cache import Task
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.claims import Claim, best, check, directions
from polyreply.experiments.result import Findings
from polyreply.experiments.score_table import score_table
from polyreply.experiments.systems import Systems
from polyreply.experiments.variants import BEAM, EQHARD, NUCLEUS
from polyreply.metrics import PAPER_NUMBERS
from polyreply.metrics.registry import label

ROWS = (BEAM, NUCLEUS, EQHARD)
"""AdaLabel and DialogBERT belong here once they can be trained."""
_NAMES = [variant.name for variant in ROWS]
_GREEDY = [BEAM.name, "AdaLabel", EQHARD.name]
"""Nucleus sampling and the paper's DialogBERT sample."""
CLAIMS = (
    *(
        Claim(f"EqHard-EM has the best {label(number)}", "Table 1", best(EQHARD.name, number, _NAMES))
        for number in ("bleu1_f", "bleu1_r", "bleu2_f", "bleu2_r")
    ),
    *(
        Claim(
            f"EqHard-EM has the best {label(number)} of those that do not sample",
            "Table 1",
            best(EQHARD.name, number, _GREEDY),
        )
        for number in ("dist1", "dist2", "pairwise_bleu")
    ),
)


def _tasks(systems: Systems) -> Sequence[Task]:
    return systems.all_scores(ROWS)


def _report(systems: Systems, folder: Path) -> Findings:
    published = paper.table_main(systems.paper_dataset())
    scored = score_table(systems, "Main results", ROWS, published)
    absent = [name for name in published.numbers if name not in scored.numbers]
    return Findings(
        [scored.table],
        verdicts=check(CLAIMS, scored.numbers, published.numbers, scored.test),
        remarks=[
            *directions(scored.numbers, published.numbers, BEAM.name, PAPER_NUMBERS),
            f"Not measured here: {', '.join(absent)}.",
        ],
        numbers=scored.tree(),
        signatures=scored.signatures,
    )


EXPERIMENT = Experiment(_tasks, _report, has_all_seeds=True)
