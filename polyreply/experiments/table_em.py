"""table-em: the EM variants against each other and against beam search, with two settings of dropout in the E-step."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from polyreply.experiments import paper
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.claims import Claim, Test, best, check, directions, over, times, within, worst
from polyreply.experiments.result import Findings, Picture
from polyreply.experiments.score_table import Scored, score_table
from polyreply.experiments.stage import Stage
from polyreply.experiments.systems import Lab, Variant
from polyreply.experiments.variants import (
    BEAM,
    EM,
    EQHARD,
    HARD,
    HARD_AUTHORS,
    RANDOM_DYNAMIC,
    RANDOM_FIXED,
    SOFT,
    changed,
    of_authors,
    with_authors,
    without_twins,
)
from polyreply.files import write_file
from polyreply.metrics.registry import PAPER_NUMBERS

ROWS = (BEAM, *EM, HARD_AUTHORS)
_OURS, _BEAM, _HARD = EQHARD.name, BEAM.name, HARD_AUTHORS.name
_RANDOM = (RANDOM_DYNAMIC.name, RANDOM_FIXED.name)
_PROPER = [_BEAM, SOFT.name, *_RANDOM, _OURS]
"""The paper's systems without Hard-EM, whose replies are diverse because most of its decoders are untrained."""
_PAPERS = [*_PROPER, HARD.name, _HARD]
_WIDE = 1.25
CLAIMS = (
    Claim("EqHard-EM has the best BLEU1-F", "Table 2", best(_OURS, "bleu1_f", _PAPERS)),
    Claim("EqHard-EM has the best BLEU2-F", "Table 2", best(_OURS, "bleu2_f", _PAPERS)),
    Claim("EqHard-EM has the best Dist-1, Hard-EM excluded", "Table 2", best(_OURS, "dist1", _PROPER)),
    Claim("EqHard-EM has the best Dist-2, Hard-EM excluded", "Table 2", best(_OURS, "dist2", _PROPER)),
    Claim("EqHard-EM has the best Pairwise-BLEU, Hard-EM excluded", "Table 2", best(_OURS, "pairwise_bleu", _PROPER)),
    Claim("Its BLEU1-R is at least 1.25× beam search's", "Table 2", times(_OURS, _BEAM, "bleu1_r", at_least=_WIDE)),
    Claim("Its BLEU2-R is at least 1.25× beam search's", "Table 2", times(_OURS, _BEAM, "bleu2_r", at_least=_WIDE)),
    Claim("Its Dist-2 is at least 2× beam search's", "Table 2", times(_OURS, _BEAM, "dist2", at_least=2)),
    Claim("Its Pairwise-BLEU is at most half", "Table 2", times(_OURS, _BEAM, "pairwise_bleu", at_most=0.5)),
    Claim("Soft-EM's replies are more alike than beam search's", "Table 2", over(SOFT.name, _BEAM, "pairwise_bleu")),
    Claim(
        "Hard-EM starves at least half of its decoders, under the authors' initialisation (percent starved)",
        "Figure 2b",
        within(_HARD, "starved", at_least=50),
    ),
    *(
        Claim(f"Hard-EM so begun has the lowest {shown}", "Table 2", worst(_HARD, number, [*_PROPER, _HARD]))
        for shown, number in (("BLEU1-F", "bleu1_f"), ("BLEU2-F", "bleu2_f"), ("Dist-1", "dist1"), ("Dist-2", "dist2"))
    ),
    Claim(
        "Hard-EM so begun has a Pairwise-BLEU near 0 (at most 2)", "Table 2", within(_HARD, "pairwise_bleu", at_most=2)
    ),
    Claim(
        "The two EqRandom variants perform similarly (BLEU2-F within a quarter)",
        "Table 2",
        times(*_RANDOM, "bleu2_f", at_least=0.75, at_most=1.25),
    ),
    *(
        Claim(f"EqHard-EM's Dist-2 is at least 1.5× {name}'s", "Table 2", times(_OURS, name, "dist2", at_least=1.5))
        for name in _RANDOM
    ),
    *(
        Claim(
            f"EqHard-EM's Pairwise-BLEU is at most half of {name}'s",
            "Table 2",
            times(_OURS, name, "pairwise_bleu", at_most=0.5),
        )
        for name in _RANDOM
    ),
)
"""What the paper says of its table. A decoder is starved with less than a tenth of an equal share."""


def _needs(lab: Lab) -> Sequence[Stage]:
    first, second = lab.all_scores(_first(lab)), _second_lab(lab)
    return [*first, *(second.all_scores(_second(lab)) if second else ())]


def _first(lab: Lab) -> list[Variant]:
    return without_twins(lab, ROWS)


def _second(lab: Lab) -> list[Variant]:
    """The second block: dropout in the E-step the other way round, for the paper's systems with an E-step."""
    flipped = {"em.e_step_dropout": not lab.preset.em.e_step_dropout}
    chosen = [one for one in _first(lab) if one in (SOFT, HARD, HARD_AUTHORS, EQHARD)]
    return [BEAM, *(replace(changed(one, "", flipped), rate_of=one) for one in chosen)]


def _second_lab(lab: Lab) -> Lab | None:
    """The lab with the second block's seeds."""
    return lab.with_seeds(lab.preset.second_seeds) if lab.preset.second_seeds else None


def _report(lab: Lab, folder: Path) -> Findings:
    is_on, second_lab = lab.preset.em.e_step_dropout, _second_lab(lab)
    first, found = _block(lab, _first(lab), is_on)
    found = replace(found, pictures=[_draw(first, folder)], signatures=first.signatures)
    if not second_lab:
        return found
    _, second = _block(second_lab, _second(lab), not is_on)
    mark = f"{_name(not is_on)}: "
    return replace(
        found,
        tables=[*found.tables, *second.tables],
        verdicts=[*found.verdicts, *(replace(one, text=mark + one.text) for one in second.verdicts if one.ours)],
        remarks=[*found.remarks, *(mark + line for line in second.remarks)],
        numbers={**found.numbers, **second.numbers},
    )


def _block(lab: Lab, variants: Sequence[Variant], is_on: bool) -> tuple[Scored, Findings]:
    """One setting of dropout: its table, what became of the claims, and directions."""
    published = paper.table_em(lab.paper_dataset())
    theirs = of_authors(published, variants)
    scored = score_table(lab, _title(is_on), variants, theirs, _BEAM)
    verdicts = check(CLAIMS, with_authors(lab, scored.numbers), papers_numbers(published), authors_test(scored))
    remarks = directions(scored.numbers, theirs.numbers, _BEAM, PAPER_NUMBERS)
    return scored, Findings([scored.table], [], verdicts, remarks, {_name(is_on): scored.tree()})


def authors_test(scored: Scored) -> Test:
    """The test of claims: where Hard-EM itself begins as the authors' code does, it is tested in that one's place."""

    def trained(name: str) -> str:
        return HARD.name if name == HARD_AUTHORS.name and name not in scored.numbers else name

    return lambda system, other, number: scored.test(trained(system), trained(other), number)


def papers_numbers(published: paper.Published) -> paper.Numbers:
    """The paper's numbers by our names: its Hard-EM began as its authors' code does."""
    hard = {**published.numbers[HARD.name], **paper.ASSIGNMENT.numbers[HARD.name]}
    return {**of_authors(published, [HARD_AUTHORS]).numbers, HARD_AUTHORS.name: hard}


def _origin(lab: Lab) -> dict[str, Any]:
    """Both blocks have seeds of their own."""
    found = lab.origin()
    return {**found, "second_block_seeds": list(lab.preset.second_seeds)} if lab.preset.second_seeds else found


def _name(is_on: bool) -> str:
    return f"E-step dropout {'on' if is_on else 'off'}"


def _title(is_on: bool) -> str:
    return f"EM variants, dropout in the E-step {'on, as in the authors’ code' if is_on else 'off'}"


def _draw(scored: Scored, folder: Path) -> Picture:
    file = "quality-diversity.png"
    write_file(folder / file, scored.comparison.plot(), overwrite=True)
    return Picture(file, "Quality against diversity; bars are 95 % intervals over contexts, small points are seeds.")


EXPERIMENT = Experiment(_needs, _report, has_all_seeds=True, origin=_origin)
