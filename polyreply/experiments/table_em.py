"""table-em: the EM variants and beam search, with dropout in the E-step off and on."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from polyreply.experiments import paper
from polyreply.experiments.cache import Task
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.claims import Claim, Test, best, check, directions, over, times, within, worst
from polyreply.experiments.result import Findings, Picture
from polyreply.experiments.score_table import Scored, score_table
from polyreply.experiments.systems import Systems
from polyreply.experiments.variants import (
    BEAM,
    EM,
    EQHARD,
    HARD,
    HARD_AUTHORS,
    RANDOM_DYNAMIC,
    RANDOM_FIXED,
    SOFT,
    Variant,
    for_authors_start,
    with_authors_start,
)
from polyreply.files import write_file
from polyreply.metrics import PAPER_NUMBERS
from polyreply.metrics.registry import label

ROWS = (BEAM, *EM, HARD_AUTHORS)
_OURS, _BEAM, _HARD = EQHARD.name, BEAM.name, HARD_AUTHORS.name
_RANDOM = (RANDOM_DYNAMIC.name, RANDOM_FIXED.name)
_PROPER = [_BEAM, SOFT.name, *_RANDOM, _OURS]
"""The paper's systems except Hard-EM, whose replies differ only because most of its decoders are untrained."""
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
        Claim(f"Hard-EM with it has the lowest {label(number)}", "Table 2", worst(_HARD, number, [*_PROPER, _HARD]))
        for number in ("bleu1_f", "bleu2_f", "dist1", "dist2")
    ),
    Claim(
        "Hard-EM with it has a Pairwise-BLEU near 0 (at most 2)", "Table 2", within(_HARD, "pairwise_bleu", at_most=2)
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
"""What the paper says about its table. A decoder that gets less than a tenth of an equal share is starved."""


def _tasks(systems: Systems) -> Sequence[Task]:
    first, second = systems.all_scores(_first(systems)), _with_second_seeds(systems)
    return [*first, *(second.all_scores(_second(systems)) if second else ())]


def _first(systems: Systems) -> list[Variant]:
    return systems.distinct(ROWS)


def _second(systems: Systems) -> list[Variant]:
    """The second block: the preset's dropout in the E-step reversed, for the paper's systems with an E-step."""
    reversed_dropout = {"em.e_step_dropout": not systems.preset.em.e_step_dropout}
    chosen = [one for one in _first(systems) if one in (SOFT, HARD, HARD_AUTHORS, EQHARD)]
    return [BEAM, *(one.changed("", reversed_dropout, rate_of=one) for one in chosen)]


def _with_second_seeds(systems: Systems) -> Systems | None:
    return systems.with_seeds(systems.preset.second_seeds) if systems.preset.second_seeds else None


def _report(systems: Systems, folder: Path) -> Findings:
    is_on, second_systems = systems.preset.em.e_step_dropout, _with_second_seeds(systems)
    scored, first = _block(systems, _first(systems), is_on)
    first = replace(first, pictures=[_draw(scored, folder)], signatures=scored.signatures)
    if not second_systems:
        return first
    _, second = _block(second_systems, _second(systems), not is_on)
    prefix = f"{_name(not is_on)}: "
    return replace(
        first,
        tables=[*first.tables, *second.tables],
        verdicts=[*first.verdicts, *(replace(one, text=prefix + one.text) for one in second.verdicts if one.ours)],
        remarks=[*first.remarks, *(prefix + line for line in second.remarks)],
        numbers={**first.numbers, **second.numbers},
    )


def _block(systems: Systems, variants: Sequence[Variant], is_on: bool) -> tuple[Scored, Findings]:
    """One setting of dropout: its table, the verdicts on the claims, and directions."""
    published = paper.table_em(systems.paper_dataset())
    theirs = for_authors_start(published, variants)
    title = f"EM variants, dropout in the E-step {'on, as in the authors’ code' if is_on else 'off'}"
    scored = score_table(systems, title, variants, theirs, _BEAM)
    numbers = with_authors_start(scored.numbers, systems.preset)
    verdicts = check(CLAIMS, numbers, papers_numbers(published), _authors_test(scored))
    remarks = directions(scored.numbers, theirs.numbers, _BEAM, PAPER_NUMBERS)
    return scored, Findings([scored.table], [], verdicts, remarks, {_name(is_on): scored.tree()})


def _authors_test(scored: Scored) -> Test:
    """The test of claims. Where the preset gives Hard-EM the authors' initialisation, it is tested as HARD_AUTHORS."""

    def trained(name: str) -> str:
        return HARD.name if name == HARD_AUTHORS.name and name not in scored.numbers else name

    return lambda system, other, number: scored.test(trained(system), trained(other), number)


def papers_numbers(published: paper.Published) -> paper.Numbers:
    """The paper's numbers by our names: its Hard-EM had its authors' initialisation."""
    hard = {**published.numbers[HARD.name], **paper.ASSIGNMENT.numbers[HARD.name]}
    return {**for_authors_start(published, [HARD_AUTHORS]).numbers, HARD_AUTHORS.name: hard}


def _origin(systems: Systems) -> dict[str, Any]:
    """The blocks may have different seeds."""
    origin, second = systems.origin(), systems.preset.second_seeds
    return {**origin, "second_block_seeds": list(second)} if second else origin


def _name(is_on: bool) -> str:
    return f"E-step dropout {'on' if is_on else 'off'}"


def _draw(scored: Scored, folder: Path) -> Picture:
    file = "quality-diversity.png"
    write_file(folder / file, scored.comparison.plot(), overwrite=True)
    return Picture(file, "Quality against diversity; bars are 95 % intervals over contexts, small points are seeds.")


EXPERIMENT = Experiment(_tasks, _report, has_all_seeds=True, origin=_origin)
