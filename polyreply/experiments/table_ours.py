"""table-ours: our own recipes against EqHard-EM, chosen on the selection half and reported once on final contexts.

The winner is the recipe with the best BLEU2-F among those that lose no diversity. Its difference from EqHard-EM on the
final contexts is tested, and the p-value multiplied by the number of recipes and prototypes that were tried.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from polyreply.decoding.mbr import SAMPLES, SHARE
from polyreply.errors import DivergedError
from polyreply.experiments.cache import Task
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.claims import Claim, best, check, corrected, times
from polyreply.experiments.paper import Numbers
from polyreply.experiments.plan import is_impossible
from polyreply.experiments.result import Findings
from polyreply.experiments.score_table import RESAMPLES, Scored, score_table
from polyreply.experiments.systems import Systems
from polyreply.experiments.variants import BEAM, EQHARD, EQSOFT, Variant

_CONTROL = "Task 1 alone, the same MBR"


def _with_least(tokens: int) -> Variant:
    """EqHard-EM with replies of at least so many tokens."""
    return replace(EQHARD, name=f"{EQHARD.name}, at least {tokens} tokens", options={"min_new_tokens": tokens})


def _with_mbr(variant: Variant, beta: float) -> Variant:
    """A variant whose decoders reply with what agrees best with their own samples (`polyreply.decoding.mbr`)."""
    options = {"beta": beta, "samples": SAMPLES, "top_p": SHARE}
    return replace(variant, name=f"{variant.name}, MBR with beta {beta:g}", decode="mbr", options=options)


_POSTERIOR, _NLL = (
    EQHARD.changed(f"{name} as cost", {"em.cost": cost}, rate_of=EQHARD)
    for name, cost in (("posterior", "posterior"), ("NLL", "nll"))
)
RECIPES = (
    EQSOFT,
    _POSTERIOR,
    _NLL,
    EQHARD.changed("mean likelihood", {"em.likelihood": "mean"}, rate_of=EQHARD),
    *map(_with_least, (10, 12)),
    *(_with_mbr(EQHARD, beta) for beta in (1.0, 2.0, 4.0)),
    *(_with_mbr(_POSTERIOR, beta) for beta in (1.0, 2.0)),
)
"""Those that a preset makes equal to EqHard-EM or to each other are tried only once."""
PROTOTYPES = 43
"""What was tried before on the selection halves of two corpora: agreement with the samples of one decoder, of all, or
of both; nuclei of 0.9 and 0.7; with and without the greedy reply; other sizes of the E-step; other minimum lengths; and
seven of the recipes above where the E-step's cost is the NLL."""


def _for_selection(systems: Systems) -> Systems:
    """What the winner is chosen by: the selection half, with the first seed."""
    return systems.with_seeds(systems.preset.seeds[:1]).on_selection()


def _tried(selecting: Systems) -> list[Variant]:
    """The recipes that this preset allows, and that differ from EqHard-EM and from each other under it."""
    longest = selecting.preset.max_new_tokens
    possible = [one for one in RECIPES if one.options.get("min_new_tokens", 0) <= longest]
    return selecting.distinct([EQHARD, *possible])[1:]


def choose(numbers: Numbers) -> tuple[str, bool]:
    """The recipe with the best BLEU2-F among those that are as diverse as EqHard-EM, and whether there are such.

    As diverse: neither Dist-2 nor Pairwise-BLEU is worse. Pairwise-BLEU does not see short identical replies, so it
    must not be higher with all identical pairs added either.
    """
    base, tried = numbers.get(EQHARD.name), {name: own for name, own in numbers.items() if name != EQHARD.name}
    if not base or not tried:
        raise DivergedError("EqHard-EM, or all that was to be compared with it, diverged; use a lower learning rate")
    diverse = [name for name, own in tried.items() if _is_as_diverse(own, base)]
    return max(diverse or tried, key=lambda name: tried[name]["bleu2_f"]), bool(diverse)


def _is_as_diverse(own: Mapping[str, float], base: Mapping[str, float]) -> bool:
    alike, identical = (own[name] - base[name] for name in ("pairwise_bleu", "identical"))
    return max(alike, alike + identical) <= 0 and own["dist2"] >= base["dist2"]


def _tasks(systems: Systems) -> Sequence[Task]:
    """The winner's final scores are in the plan only when all others are done."""
    selecting = _for_selection(systems)
    tried = selecting.all_scores([EQHARD, *_tried(selecting)])
    if not all(task.is_done or is_impossible(task) for task in tried):
        return [*tried, *systems.all_scores([BEAM, EQHARD])]
    try:
        winner, _ = choose(_score_tried(selecting).numbers)
    except DivergedError:  # there will be no winner
        return tried
    return [*tried, *systems.all_scores(_final(winner))]


def _score_tried(selecting: Systems) -> Scored:
    title = "Every recipe that was tried, on the selection half of valid"
    return score_table(selecting, title, [EQHARD, *_tried(selecting)], baseline=EQHARD.name)


def _final(winner: str) -> list[Variant]:
    """The winner and what it is compared with; for minimum Bayes risk also the same on stage 1's samples."""
    recipe = next(variant for variant in RECIPES if variant.name == winner)
    control = replace(recipe, name=_CONTROL, method="mle", settings={}, rate_of=None)
    return [BEAM, *([control] if recipe.decode == "mbr" else []), EQHARD, recipe]


def _report(systems: Systems, folder: Path) -> Findings:
    tried = _score_tried(_for_selection(systems))
    winner, is_diverse = choose(tried.numbers)
    final = score_table(systems, "Reported once: the recipe that was chosen", _final(winner), baseline=EQHARD.name)
    recipes = len(tried.numbers) - 1
    tries = recipes + PROTOTYPES
    how = "without loss of diversity" if is_diverse else "(all lose diversity)"
    return Findings(
        [final.table, tried.table],
        verdicts=check(_claims(winner, final.numbers), final.numbers, test=corrected(final.test, tries)),
        remarks=[
            f"On the selection half of valid, {winner} has the best BLEU2-F {how}. {recipes} recipes were tried there, "
            f"and {PROTOTYPES} prototypes before them on such halves of DailyDialog and OpenSubtitles: p-values of "
            f"claims are multiplied by {tries}, so that none is below {tries / RESAMPLES:.4f}; those of stars are not."
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


EXPERIMENT = Experiment(_tasks, _report, has_all_seeds=True)
