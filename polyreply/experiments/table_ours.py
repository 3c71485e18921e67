"""table-ours: recipes of ours against EqHard-EM. Chosen on one half of valid, reported once on what is final.

The winner is the recipe with the best BLEU2-F among those that lose no diversity. Its difference from EqHard-EM on the
final contexts is tested, and the p-value multiplied by the number of recipes and prototypes that were tried.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from polyreply.decoding.mbr import SAMPLES, SHARE
from polyreply.experiments.cache import Diverged
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.claims import Claim, best, check, corrected, times
from polyreply.experiments.paper import Numbers
from polyreply.experiments.plan import is_lost
from polyreply.experiments.result import Findings
from polyreply.experiments.score_table import RESAMPLES, Scored, score_table
from polyreply.experiments.stage import Stage
from polyreply.experiments.systems import Lab, Variant
from polyreply.experiments.variants import BEAM, EQHARD, EQSOFT, changed, without_twins

_CONTROL = "Stage 1 alone, the same MBR"


def _with_least(tokens: int) -> Variant:
    """EqHard-EM as it is, whose decoders must not end before so many tokens."""
    return replace(EQHARD, name=f"{EQHARD.name}, at least {tokens} tokens", options={"min_new_tokens": tokens})


def _with_mbr(variant: Variant, beta: float) -> Variant:
    """A variant that says what agrees best with its own samples (`polyreply.decoding.mbr`)."""
    options = {"beta": beta, "samples": SAMPLES, "top_p": SHARE}
    return replace(variant, name=f"{variant.name}, MBR with beta {beta:g}", decode="mbr", options=options)


_POSTERIOR, _NLL = (
    replace(changed(EQHARD, f"{told} as cost", {"em.cost": cost}), rate_of=EQHARD)
    for told, cost in (("posterior", "posterior"), ("NLL", "nll"))
)
RECIPES = (
    EQSOFT,
    _POSTERIOR,
    _NLL,
    replace(changed(EQHARD, "mean likelihood", {"em.likelihood": "mean"}), rate_of=EQHARD),
    *map(_with_least, (10, 12)),
    *(_with_mbr(EQHARD, beta) for beta in (1.0, 2.0, 4.0)),
    *(_with_mbr(_POSTERIOR, beta) for beta in (1.0, 2.0)),
)
"""Those that a preset makes equal to EqHard-EM or to each other are tried once."""
PROTOTYPES = 43
"""What was looked at before, on the halves for choices of two corpora: agreement with the samples of one decoder, with
all, or with both; nuclei of 0.9 and 0.7; with and without the greedy reply; other sizes of the E-step; other least
lengths; and seven of the recipes above where the E-step's cost is the NLL."""


def _choosing(lab: Lab) -> Lab:
    """Where the winner is chosen: the half of valid that is there for choices, with the first seed."""
    return lab.with_seeds(lab.preset.seeds[:1]).on_choices()


def _tried(choosing: Lab) -> list[Variant]:
    """The recipes that differ from EqHard-EM and from each other under this preset, if its replies may be so long."""
    most = choosing.preset.max_new_tokens
    possible = [one for one in RECIPES if one.options.get("min_new_tokens", 0) <= most]
    return without_twins(choosing, [EQHARD, *possible])[1:]


def choose(numbers: Numbers) -> tuple[str, bool]:
    """The best BLEU2-F of those that lose nothing to EqHard-EM in Dist-2 and Pairwise-BLEU, and whether there are such.

    Pairwise-BLEU does not see short identical replies; with all identical pairs it must not be higher either.
    """
    base, tried = numbers.get(EQHARD.name), {name: found for name, found in numbers.items() if name != EQHARD.name}
    if not base or not tried:
        raise Diverged("EqHard-EM or all that was to be compared with it diverged; use a lower learning rate")
    diverse = [name for name, found in tried.items() if _is_as_diverse(found, base)]
    return max(diverse or tried, key=lambda name: tried[name]["bleu2_f"]), bool(diverse)


def _is_as_diverse(found: Mapping[str, float], base: Mapping[str, float]) -> bool:
    alike, identical = (found[name] - base[name] for name in ("pairwise_bleu", "identical"))
    return max(alike, alike + identical) <= 0 and found["dist2"] >= base["dist2"]


def _needs(lab: Lab) -> Sequence[Stage]:
    """The winner's final scores are known only once all others are there."""
    choosing = _choosing(lab)
    tried = choosing.all_scores([EQHARD, *_tried(choosing)])
    if not all(stage.is_made or is_lost(stage) for stage in tried):
        return [*tried, *lab.all_scores([BEAM, EQHARD])]
    try:
        winner, _ = choose(_scored(choosing).numbers)
    except Diverged:  # there will be no winner
        return tried
    return [*tried, *lab.all_scores(_final(winner))]


def _scored(choosing: Lab) -> Scored:
    told = "Chosen on one half of valid: every recipe that was tried"
    return score_table(choosing, told, [EQHARD, *_tried(choosing)], baseline=EQHARD.name)


def _final(winner: str) -> list[Variant]:
    """What the winner is reported with. For minimum Bayes risk also the same without EM, on stage 1's samples."""
    found = next(variant for variant in RECIPES if variant.name == winner)
    control = replace(found, name=_CONTROL, method="mle", settings={}, rate_of=None)
    return [BEAM, *([control] if found.decode == "mbr" else []), EQHARD, found]


def _report(lab: Lab, folder: Path) -> Findings:
    tried = _scored(_choosing(lab))
    winner, is_diverse = choose(tried.numbers)
    final = score_table(lab, "Reported once: the recipe that was chosen", _final(winner), baseline=EQHARD.name)
    tries = len(tried.numbers) - 1 + PROTOTYPES
    how = "without loss of diversity" if is_diverse else "(all lose diversity)"
    return Findings(
        [final.table, tried.table],
        verdicts=check(_claims(winner, final.numbers), final.numbers, test=corrected(final.test, tries)),
        remarks=[
            f"On one half of valid the best BLEU2-F {how} has {winner}. {len(tried.numbers) - 1} recipes were tried "
            f"there, and {PROTOTYPES} prototypes before them on such halves of DailyDialog and OpenSubtitles: p-values "
            f"of claims are multiplied by {tries}, so that none is below {tries / RESAMPLES:.4f}; those of stars are "
            "not."
        ],
        numbers={"final": final.tree(), "tried": tried.tree()},
        signatures=final.signatures,
    )


def _claims(winner: str, measured: Numbers) -> list[Claim]:
    base, others = EQHARD.name, [name for name in (BEAM.name, _CONTROL) if name in measured]
    return [
        Claim(f"{winner} has a better BLEU2-F than EqHard-EM", "ours", best(winner, "bleu2_f", [winner, base])),
        Claim("Its Dist-2 is no lower", "ours", times(winner, base, "dist2", at_least=1)),
        Claim("Its Pairwise-BLEU is no higher", "ours", times(winner, base, "pairwise_bleu", at_most=1)),
        *(
            Claim(f"Its BLEU2-F is better than that of {other}", "ours", best(winner, "bleu2_f", [winner, other]))
            for other in others
        ),
    ]


EXPERIMENT = Experiment(_needs, _report, has_all_seeds=True)
