"""table-em: the EM variants against each other and against beam search, with two settings of dropout in the E-step."""

from collections.abc import Sequence
from pathlib import Path

from polyreply.metrics.scores import PAPER_NUMBERS, write_atomically
from polyreply.reproduce import paper
from polyreply.reproduce.catalogue import Experiment
from polyreply.reproduce.claims import Claim, best, check, directions, over, times, within
from polyreply.reproduce.lab import Lab, Variant
from polyreply.reproduce.result import Findings, Picture
from polyreply.reproduce.score_table import Scored, score_table
from polyreply.reproduce.variants import (
    BEAM,
    EM,
    EQHARD,
    HARD,
    HARD_AUTHORS,
    RANDOM_DYNAMIC,
    RANDOM_FIXED,
    SOFT,
    changed,
    without_twins,
)
from polyreply.reproduce.workshop import Stage

ROWS = (BEAM, *EM, HARD_AUTHORS)
_PAPERS = [one.name for one in (BEAM, SOFT, HARD, RANDOM_DYNAMIC, RANDOM_FIXED, EQHARD)]
_OURS, _BEAM = EQHARD.name, BEAM.name
_WIDE = 1.25
CLAIMS = (
    Claim("EqHard-EM has the best BLEU1-F", "Table 2", best(_OURS, "bleu1_f", _PAPERS)),
    Claim("EqHard-EM has the best BLEU2-F", "Table 2", best(_OURS, "bleu2_f", _PAPERS)),
    Claim("Its BLEU1-R is at least 1.25× beam search's", "Table 2", times(_OURS, _BEAM, "bleu1_r", at_least=_WIDE)),
    Claim("Its BLEU2-R is at least 1.25× beam search's", "Table 2", times(_OURS, _BEAM, "bleu2_r", at_least=_WIDE)),
    Claim("Its Dist-2 is at least 2× beam search's", "Table 2", times(_OURS, _BEAM, "dist2", at_least=2)),
    Claim("Its Pairwise-BLEU is at most half", "Table 2", times(_OURS, _BEAM, "pairwise_bleu", at_most=0.5)),
    Claim("Soft-EM's replies are more alike than beam search's", "Table 2", over(SOFT.name, _BEAM, "pairwise_bleu")),
    Claim(
        "Hard-EM starves at least half of its decoders, under the authors' initialisation (percent starved)",
        "Figure 2b",
        within(HARD_AUTHORS.name, "starved", at_least=50),
    ),
)
"""What we want to see. A decoder is starved with less than a tenth of an equal share."""


def _needs(lab: Lab) -> Sequence[Stage]:
    first, second = lab.all_scores(_first(lab)), _second_lab(lab)
    return [*first, *(second.all_scores(_second(lab)) if second else ())]


def _first(lab: Lab) -> list[Variant]:
    return without_twins(lab, ROWS)


def _second(lab: Lab) -> list[Variant]:
    """The second block: dropout in the E-step the other way round, where the E-step matters."""
    flipped = {"em.e_step_dropout": not lab.preset.em.e_step_dropout}
    chosen = [one for one in _first(lab) if one.is_trained_by_em and not one.method.startswith("eqrandom")]
    return [BEAM, *(changed(one, "", flipped) for one in chosen)]


def _second_lab(lab: Lab) -> Lab | None:
    """The lab with the second block's seeds."""
    return lab.with_seeds(lab.preset.second_seeds) if lab.preset.second_seeds else None


def _report(lab: Lab, folder: Path) -> Findings:
    published = paper.table_em(lab.paper_dataset())
    is_on = lab.preset.em.e_step_dropout
    first = score_table(lab, _title(is_on), _first(lab), published, _BEAM)
    second_lab, tables, numbers = _second_lab(lab), [first.table], {_block(is_on): first.tree()}
    if second_lab:
        second = score_table(second_lab, _title(not is_on), _second(lab), published, _BEAM)
        tables, numbers = [*tables, second.table], {**numbers, _block(not is_on): second.tree()}
    theirs = {**published.numbers, HARD_AUTHORS.name: paper.ASSIGNMENT.numbers["Hard-EM"]}
    ours = {HARD_AUTHORS.name: first.numbers.get(HARD.name, {}), **first.numbers}
    return Findings(
        tables,
        [_draw(first, folder)],
        check(CLAIMS, ours, theirs),
        directions(first.numbers, published.numbers, _BEAM, PAPER_NUMBERS),
        numbers,
        first.signatures,
    )


def _block(is_on: bool) -> str:
    return f"E-step dropout {'on' if is_on else 'off'}"


def _title(is_on: bool) -> str:
    return f"EM variants, dropout in the E-step {'on, as in the authors’ code' if is_on else 'off'}"


def _draw(scored: Scored, folder: Path) -> Picture:
    from polyreply.metrics.plot import draw

    file = "quality-diversity.png"
    write_atomically(folder / file, draw(scored.comparison, ".png"), overwrite=True)
    return Picture(file, "Quality against diversity; bars are 95 % intervals over contexts, small points are seeds.")


EXPERIMENT = Experiment(_needs, _report, has_all_seeds=True)
