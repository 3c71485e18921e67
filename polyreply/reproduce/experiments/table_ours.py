"""table-ours: recipes of ours against EqHard-EM. Chosen on one half of valid, reported once on what is final.

The winner is the recipe with the best BLEU2-F among those that lose no diversity. Its difference from EqHard-EM on the
final contexts is tested, and the p-value multiplied by the number of recipes that were tried (Bonferroni).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from polyreply.reproduce.catalogue import Experiment
from polyreply.reproduce.claims import Claim, best, check, corrected, times
from polyreply.reproduce.lab import Lab, Variant
from polyreply.reproduce.paper import Numbers
from polyreply.reproduce.result import Findings
from polyreply.reproduce.score_table import Scored, score_table
from polyreply.reproduce.stage import Stage
from polyreply.reproduce.variants import BEAM, EQHARD, EQSOFT, NUCLEUS, changed


def _with_least(tokens: int) -> Variant:
    """EqHard-EM as it is, whose decoders must not end before so many tokens."""
    return replace(EQHARD, name=f"{EQHARD.name}, at least {tokens} tokens", options={"min_new_tokens": tokens})


def _with_mbr(variant: Variant, beta: float) -> Variant:
    """A variant that says what agrees best with its own samples (`polyreply.decoding.mbr`)."""
    return replace(variant, name=f"{variant.name}, MBR with beta {beta:g}", decode="mbr", options={"beta": beta})


RECIPES = (
    EQSOFT,
    replace(changed(EQHARD, "posterior as cost", {"em.cost": "posterior"}), rate_of=EQHARD),
    replace(changed(EQHARD, "mean likelihood", {"em.likelihood": "mean"}), rate_of=EQHARD),
    *map(_with_least, (8, 10)),
    *(_with_mbr(EQHARD, beta) for beta in (1.0, 2.0, 4.0)),
)
CONTROL = replace(_with_mbr(NUCLEUS, 2.0), name="Stage 1 alone, MBR with beta 2")
"""The same choice among as many samples of the single-decoder model: what is left without EM."""
_BY_NAME = {variant.name: variant for variant in RECIPES}


def _choosing(lab: Lab) -> Lab:
    """Where the winner is chosen: the half of valid that is there for choices, with the first seed."""
    return lab.with_seeds(lab.preset.seeds[:1]).on_choices()


def choose(numbers: Numbers) -> str:
    """The best BLEU2-F of those that lose nothing to EqHard-EM in Dist-2 and Pairwise-BLEU; if none does, of all."""
    base, tried = numbers[EQHARD.name], {name: found for name, found in numbers.items() if name != EQHARD.name}
    diverse = [
        name
        for name, found in tried.items()
        if found["dist2"] >= base["dist2"] and found["pairwise_bleu"] <= base["pairwise_bleu"]
    ]
    return max(diverse or tried, key=lambda name: tried[name]["bleu2_f"])


def _needs(lab: Lab) -> Sequence[Stage]:
    """The winner's final scores are known only once all others are there."""
    choosing = _choosing(lab)
    tried = choosing.all_scores([EQHARD, *RECIPES])
    winner = [_BY_NAME[_winner(choosing)[0]]] if all(stage.is_made for stage in tried) else []
    return [*tried, *lab.all_scores([BEAM, CONTROL, EQHARD, *winner])]


def _winner(choosing: Lab) -> tuple[str, Scored]:
    told = "Chosen on one half of valid: every recipe that was tried"
    scored = score_table(choosing, told, [EQHARD, *RECIPES], baseline=EQHARD.name)
    return choose(scored.numbers), scored


def _report(lab: Lab, folder: Path) -> Findings:
    winner, tried = _winner(_choosing(lab))
    rows = [BEAM, CONTROL, EQHARD, _BY_NAME[winner]]
    final = score_table(lab, "Reported once: the recipe that was chosen", rows, baseline=EQHARD.name)
    return Findings(
        [final.table, tried.table],
        verdicts=check(_claims(winner), final.numbers, test=corrected(final.p_value, len(RECIPES))),
        remarks=[
            f"{len(RECIPES)} recipes were tried. On one half of valid the best BLEU2-F without loss of diversity has "
            f"{winner}; p-values of claims are multiplied by {len(RECIPES)}, those behind stars are not."
        ],
        numbers={"final": final.tree(), "tried": tried.tree()},
        signatures=final.signatures,
    )


def _claims(winner: str) -> list[Claim]:
    base = EQHARD.name
    return [
        Claim(f"{winner} has a better BLEU2-F than EqHard-EM", "ours", best(winner, "bleu2_f", [winner, base])),
        Claim("Its Dist-2 is no lower", "ours", times(winner, base, "dist2", at_least=1)),
        Claim("Its Pairwise-BLEU is no higher", "ours", times(winner, base, "pairwise_bleu", at_most=1)),
        *(
            Claim(f"Its BLEU2-F is better than that of {other}", "ours", best(winner, "bleu2_f", [winner, other]))
            for other in (BEAM.name, CONTROL.name)
        ),
    ]


EXPERIMENT = Experiment(_needs, _report, has_all_seeds=True)
