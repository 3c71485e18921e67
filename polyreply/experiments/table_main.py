"""table-main: EqHard-EM against the ways to decode the single-decoder model, and the paper's two outside systems."""

from collections.abc import Sequence
from pathlib import Path

from polyreply.experiments import paper
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.claims import Claim, best, check, directions
from polyreply.experiments.result import Findings
from polyreply.experiments.score_table import score_table
from polyreply.experiments.stage import Stage
from polyreply.experiments.systems import Lab
from polyreply.experiments.variants import BEAM, EQHARD, NUCLEUS
from polyreply.metrics.registry import PAPER_NUMBERS

ROWS = (BEAM, NUCLEUS, EQHARD)
"""AdaLabel and DialogBERT belong here once they can be trained."""
_NAMES = [variant.name for variant in ROWS]
_GREEDY = [BEAM.name, "AdaLabel", EQHARD.name]
"""Nucleus sampling and the paper's DialogBERT sample."""
CLAIMS = tuple(
    Claim(f"EqHard-EM has the best {shown}", "Table 1", best(EQHARD.name, number, _NAMES))
    for shown, number in (
        ("BLEU1-F", "bleu1_f"),
        ("BLEU1-R", "bleu1_r"),
        ("BLEU2-F", "bleu2_f"),
        ("BLEU2-R", "bleu2_r"),
    )
) + tuple(
    Claim(f"EqHard-EM has the best {shown} of those that do not sample", "Table 1", best(EQHARD.name, number, _GREEDY))
    for shown, number in (("Dist-1", "dist1"), ("Dist-2", "dist2"), ("Pairwise-BLEU", "pairwise_bleu"))
)


def _needs(lab: Lab) -> Sequence[Stage]:
    return lab.all_scores(ROWS)


def _report(lab: Lab, folder: Path) -> Findings:
    published = paper.table_main(lab.paper_dataset())
    scored = score_table(lab, "Main results", ROWS, published)
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


EXPERIMENT = Experiment(_needs, _report, has_all_seeds=True)
