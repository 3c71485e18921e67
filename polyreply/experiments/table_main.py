"""table-main: EqHard-EM against ways to decode the single-decoder model, AdaLabel, DialogBERT and winner-takes-all.

The paper's five systems, and what is used today in their place: min-p sampling, nucleus sampling with a chosen p,
diverse beam search, minimum Bayes risk, and the two methods of LoRA-MCL.
"""

from collections.abc import Sequence
from pathlib import Path

from polyreply.experiments import paper
from polyreply.experiments.cache import Task
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.claims import Claim, best, check, directions
from polyreply.experiments.result import Findings
from polyreply.experiments.score_table import score_table
from polyreply.experiments.systems import Systems
from polyreply.experiments.variants import (
    ADA_LABEL,
    ANNEALED,
    BEAM,
    DIALOG_BERT,
    DIVERSE_BEAM,
    EQHARD,
    MBR,
    MIN_P,
    NUCLEUS,
    RELAXED,
    Variant,
    nucleus,
)
from polyreply.metrics import PAPER_NUMBERS
from polyreply.metrics.registry import label

_BEFORE, _AFTER = (BEAM, NUCLEUS), (MIN_P, DIVERSE_BEAM, MBR, ADA_LABEL, DIALOG_BERT, EQHARD, RELAXED, ANNEALED)
"""The rows before and after nucleus sampling with a chosen p."""
_PAPERS = [one.name for one in (BEAM, NUCLEUS, ADA_LABEL, DIALOG_BERT, EQHARD)]
_GREEDY = [BEAM.name, ADA_LABEL.name, EQHARD.name]
"""Nucleus sampling and DialogBERT sample."""
CLAIMS = (
    *(
        Claim(
            f"EqHard-EM has the best {label(number)} of the paper's systems",
            "Table 1",
            best(EQHARD.name, number, _PAPERS),
        )
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
    *(
        Claim(
            f"{one.name} performs poorly on deduplicated data: beam search has the better BLEU2-F",
            "Section 3.2",
            best(BEAM.name, "bleu2_f", [BEAM.name, one.name]),
        )
        for one in (ADA_LABEL, DIALOG_BERT)
    ),
)


def _candidates(systems: Systems) -> list[Variant]:
    return [nucleus(share) for share in systems.preset.nucleus]


def _for_selection(systems: Systems) -> Systems:
    """What p is chosen by: the selection half, with the first seed."""
    return systems.with_seeds(systems.preset.seeds[:1]).on_selection()


def choose_nucleus(systems: Systems) -> Variant:
    """Nucleus sampling with the p that has the best BLEU2-F on the selection half."""
    selecting, candidates = _for_selection(systems), _candidates(systems)
    return max(candidates, key=lambda one: selecting.scored(one).mean("bleu2_f") or 0.0)


def _rows(chosen: Variant) -> list[Variant]:
    return [*_BEFORE, chosen, *_AFTER]


def _tasks(systems: Systems) -> Sequence[Task]:
    """The chosen nucleus's final scores are in the plan only when the candidates are scored."""
    candidates = _for_selection(systems).all_scores(_candidates(systems))
    if not all(task.is_done for task in candidates):
        return [*candidates, *systems.all_scores([*_BEFORE, *_AFTER])]
    return [*candidates, *systems.all_scores(_rows(choose_nucleus(systems)))]


def _report(systems: Systems, folder: Path) -> Findings:
    chosen = choose_nucleus(systems)
    rows = _rows(chosen)
    published = paper.table_main(systems.paper_dataset())
    scored = score_table(systems, "Main results", rows, published)
    shares = ", ".join(f"{share:g}" for share in systems.preset.nucleus)
    minutes = {one.name: systems.training_minutes(one) for one in rows if one.name in scored.numbers}
    return Findings(
        [scored.table],
        verdicts=check(CLAIMS, scored.numbers, published.numbers, scored.test),
        remarks=[
            *directions(scored.numbers, published.numbers, BEAM.name, PAPER_NUMBERS),
            f"{chosen.name}: chosen by BLEU2-F on the selection half from {shares}.",
            f"Minutes of training, without those of choices: {', '.join(f'{n} {m:.1f}' for n, m in minutes.items())}.",
        ],
        numbers={**scored.tree(), "training_minutes": minutes},
        signatures=scored.signatures,
    )


EXPERIMENT = Experiment(_tasks, _report, has_all_seeds=True)
