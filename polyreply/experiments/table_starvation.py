"""table-starvation: with which initialisations Hard-EM starves its decoders, and what EqHard-EM does with the same."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from polyreply.experiments.cache import Task
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.claims import Claim, best, check, within
from polyreply.experiments.result import Findings
from polyreply.experiments.score_table import score_table
from polyreply.experiments.systems import Systems
from polyreply.experiments.usage_table import usage_table
from polyreply.experiments.variants import (
    EQHARD,
    HARD,
    HARD_AUTHORS,
    HARD_LEARNED,
    HARD_NO_SKIP,
    Variant,
)
from polyreply.metrics.registry import label

_LARGE = {"model.adapter_init": "large"}
_NO_SKIP = EQHARD.changed("no skip connection", HARD_NO_SKIP.settings)
_PAIRS = (
    (HARD, EQHARD),
    (HARD_AUTHORS, EQHARD.changed("authors' initialisation", HARD_AUTHORS.settings, rate_of=EQHARD)),
    (
        HARD.changed("large initialisation", _LARGE, rate_of=HARD_AUTHORS),
        EQHARD.changed("large initialisation", _LARGE, rate_of=EQHARD),
    ),
    (HARD_NO_SKIP, _NO_SKIP),
)
"""From an initialisation with which untrained decoders reply like stage 1 to one with which they produce nonsense."""
_LONGER = 4
"""Factor of the EM steps in the row that is trained for longer."""
CLAIMS = (
    Claim(
        "Hard-EM leaves at least half untrained where untrained decoders produce nonsense (percent starved)",
        "ours, after Figure 2b",
        within(HARD_NO_SKIP.name, "starved", at_least=50),
    ),
    Claim(
        "EqHard-EM leaves none untrained there", "ours, after Figure 2c", within(_NO_SKIP.name, "starved", at_most=0)
    ),
    *(
        Claim(
            f"There, EqHard-EM has the better {label(number)}",
            "ours, after Table 2",
            best(_NO_SKIP.name, number, (_NO_SKIP.name, HARD_NO_SKIP.name)),
        )
        for number in ("bleu1_f", "bleu2_f", "dist2")
    ),
)


def rows(systems: Systems) -> list[Variant]:
    """Both methods with each initialisation, and Hard-EM with a learned prior."""
    return systems.distinct([*itertools.chain(*_PAIRS), HARD_LEARNED])


def longer(systems: Systems) -> Variant:
    """Hard-EM with the authors' initialisation and more steps, in case it starves only later; with one seed."""
    steps = _LONGER * systems.preset.stage_2.steps
    return HARD_AUTHORS.changed(f"{_LONGER} times the EM steps", {"steps": steps}, rate_of=HARD_AUTHORS)


def _tasks(systems: Systems) -> Sequence[Task]:
    return [*systems.all_scores(rows(systems)), systems.training(longer(systems), systems.preset.seeds[0])]


def _report(systems: Systems, folder: Path) -> Findings:
    variants = rows(systems)
    drawn = [HARD, HARD_AUTHORS, HARD_NO_SKIP, HARD_LEARNED, _NO_SKIP]
    usage = usage_table(systems, [*variants, longer(systems)], folder, [one.name for one in drawn])
    scored = score_table(systems, "Scores of their replies", variants, baseline=EQHARD.name)
    trained = [one for one in variants if one.name in scored.numbers]
    shares = {one.name: [systems.usage(one, seed)["share"] for seed in systems.seeds(one)] for one in trained}
    return Findings(
        [usage.table, scored.table],
        [usage.picture],
        check(CLAIMS, scored.numbers, test=scored.test),
        usage.diverged,
        {"usage": usage.numbers, "shares": shares, **scored.tree()},
        scored.signatures,
    )


EXPERIMENT = Experiment(_tasks, _report, has_all_seeds=True)
