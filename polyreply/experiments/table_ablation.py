"""table-ablation: Soft-EM and Hard-EM with both priors, with and without dropout in the E-step, against EqHard-EM."""

from collections.abc import Sequence
from pathlib import Path

from polyreply.experiments import paper
from polyreply.experiments.cache import Task
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.claims import Claim, best, check, directions, over, times
from polyreply.experiments.presets import Preset
from polyreply.experiments.result import Findings
from polyreply.experiments.score_table import score_table
from polyreply.experiments.systems import Systems
from polyreply.experiments.variants import EQHARD, HARD, SOFT
from polyreply.metrics import PAPER_NUMBERS

ROWS = (
    *(
        method.changed(f"{prior} prior{'' if dropout else ', no dropout'}", settings, rate_of=method)
        for method in (SOFT, HARD)
        for prior in ("uniform", "learned")
        for dropout in (True, False)
        for settings in [{"model.prior": prior, "em.e_step_dropout": dropout}]
    ),
    EQHARD,
)
_NAMES = [variant.name for variant in ROWS]
CLAIMS = (
    Claim("EqHard-EM has the best BLEU1-F of them", "Appendix F", best(EQHARD.name, "bleu1_f", _NAMES)),
    Claim("EqHard-EM has the best BLEU2-F of them", "Appendix F", best(EQHARD.name, "bleu2_f", _NAMES)),
    *(
        Claim(
            f"Dropout changes little for {method.name} (BLEU2-F within a third)",
            "Appendix F",
            times(
                f"{method.name}, uniform prior, no dropout",
                f"{method.name}, uniform prior",
                "bleu2_f",
                at_least=2 / 3,
                at_most=4 / 3,
            ),
        )
        for method in (SOFT, HARD)
    ),
    Claim(
        "A learned prior is worse than a uniform one (Soft-EM, BLEU2-F)",
        "Appendix F",
        over("Soft-EM, uniform prior", "Soft-EM, learned prior", "bleu2_f"),
    ),
)


def _tasks(systems: Systems) -> Sequence[Task]:
    return systems.all_scores(ROWS)


def _report(systems: Systems, folder: Path) -> Findings:
    published = paper.table_ablation(systems.paper_dataset())
    scored = score_table(systems, "Priors and dropout in the E-step", ROWS, published, EQHARD.name)
    return Findings(
        [scored.table],
        verdicts=check(CLAIMS, scored.numbers, published.numbers, scored.test),
        remarks=[
            *conditions(systems.preset),
            *directions(scored.numbers, published.numbers, EQHARD.name, PAPER_NUMBERS),
        ],
        numbers=scored.tree(),
        signatures=scored.signatures,
    )


def conditions(preset: Preset) -> list[str]:
    """What the names of the rows leave out."""
    dropout = "on" if preset.em.e_step_dropout else "off"
    remarks = [f"EqHard-EM has the preset's dropout in the E-step, {dropout}, and its prior, {preset.model.prior}."]
    if preset.model.adapter_init != "linear":
        remarks.append("The paper's Hard-EM has the authors' initialisation; ours starts near the identity.")
    return remarks


EXPERIMENT = Experiment(_tasks, _report)
