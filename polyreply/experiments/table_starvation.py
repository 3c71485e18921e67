"""table-starvation: from which beginnings Hard-EM starves its decoders, and what EqHard-EM makes of the same ones."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.claims import Claim, best, check, within
from polyreply.experiments.result import Findings
from polyreply.experiments.score_table import score_table
from polyreply.experiments.stage import Stage
from polyreply.experiments.systems import Lab, Variant
from polyreply.experiments.usage_table import usage_table
from polyreply.experiments.variants import (
    EQHARD,
    HARD,
    HARD_AUTHORS,
    HARD_LEARNED,
    HARD_NO_SKIP,
    changed,
    without_twins,
)

_LARGE = {"model.adapter_init": "large"}
_NO_SKIP = changed(EQHARD, "no skip connection", HARD_NO_SKIP.settings)
_PAIRS = (
    (HARD, EQHARD),
    (HARD_AUTHORS, replace(changed(EQHARD, "authors' initialisation", HARD_AUTHORS.settings), rate_of=EQHARD)),
    (
        replace(changed(HARD, "large initialisation", _LARGE), rate_of=HARD_AUTHORS),
        replace(changed(EQHARD, "large initialisation", _LARGE), rate_of=EQHARD),
    ),
    (HARD_NO_SKIP, _NO_SKIP),
)
"""From a beginning where untrained decoders talk as stage 1 does to one where they talk nonsense."""
_LONGER = 4
"""How many times as many EM steps the row has that is trained for longer."""
CLAIMS = (
    Claim(
        "Hard-EM leaves at least half untrained where untrained decoders talk nonsense (percent starved)",
        "ours, after Figure 2b",
        within(HARD_NO_SKIP.name, "starved", at_least=50),
    ),
    Claim(
        "EqHard-EM leaves none untrained there", "ours, after Figure 2c", within(_NO_SKIP.name, "starved", at_most=0)
    ),
    *(
        Claim(
            f"There, EqHard-EM has the better {told}",
            "ours, after Table 2",
            best(_NO_SKIP.name, number, (_NO_SKIP.name, HARD_NO_SKIP.name)),
        )
        for number, told in {"bleu1_f": "BLEU1-F", "bleu2_f": "BLEU2-F", "dist2": "Dist-2"}.items()
    ),
)


def rows(lab: Lab) -> list[Variant]:
    """Both methods from each beginning, and Hard-EM with a learned prior."""
    return without_twins(lab, [*itertools.chain(*_PAIRS), HARD_LEARNED])


def longer(lab: Lab) -> Variant:
    """Hard-EM from the authors' beginning, in case it only takes its time to starve: looked at with one seed."""
    steps = _LONGER * lab.preset.stage_2.steps
    return replace(changed(HARD_AUTHORS, f"{_LONGER} times the EM steps", {"steps": steps}), rate_of=HARD_AUTHORS)


def _needs(lab: Lab) -> Sequence[Stage]:
    return [*lab.all_scores(rows(lab)), lab.training(longer(lab), lab.preset.seeds[0])]


def _report(lab: Lab, folder: Path) -> Findings:
    variants = rows(lab)
    drawn = [HARD, HARD_AUTHORS, HARD_NO_SKIP, HARD_LEARNED, _NO_SKIP]
    usage = usage_table(lab, [*variants, longer(lab)], folder, [one.name for one in drawn])
    scored = score_table(lab, "What their replies are worth", variants, baseline=EQHARD.name)
    trained = [one for one in variants if one.name in scored.numbers]
    shares = {one.name: [lab.usage(one, seed)["share"] for seed in lab.seeds(one)] for one in trained}
    return Findings(
        [usage.table, scored.table],
        [usage.picture],
        check(CLAIMS, scored.numbers, test=scored.test),
        usage.diverged,
        {"usage": usage.numbers, "shares": shares, **scored.tree()},
        scored.signatures,
    )


EXPERIMENT = Experiment(_needs, _report, has_all_seeds=True)
