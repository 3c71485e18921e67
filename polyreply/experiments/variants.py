"""The systems of the tables, by the paper's names. A new system is a line here and its name in a table."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from polyreply.experiments.paper import Numbers, Published
from polyreply.experiments.systems import Lab, Variant

BEAM = Variant("Beam search", decode="beam")
NUCLEUS = Variant("Nucleus sampling", decode="nucleus")
SOFT = Variant("Soft-EM", "soft-em")
HARD = Variant("Hard-EM", "hard-em")
RANDOM_DYNAMIC = Variant("EqRandom-Dynamic", "eqrandom-dynamic")
RANDOM_FIXED = Variant("EqRandom-Fixed", "eqrandom-fixed")
EQHARD = Variant("EqHard-EM", "eqhard-em")
EQSOFT = Variant("EqSoft-EM", "eqsoft-em")
"""Ours: balanced and soft at first, cooled until it is nearly hard (`cooling.py`)."""
HARD_AUTHORS = Variant("Hard-EM, authors' initialisation", "hard-em", {"model.adapter_init": "linear"})
"""Adapters that begin as PyTorch's linear layers do."""
HARD_NO_SKIP = Variant(
    "Hard-EM, no skip connection",
    "hard-em",
    {"model.adapter_init": "linear", "model.adapter_skip": False},
)
"""The authors' initialisation in adapters that keep nothing of what they are given: untrained decoders talk nonsense,
and those that are trained first take all."""
HARD_LEARNED = Variant("Hard-EM, learned prior", "hard-em", {"model.prior": "learned"}, rate_of=HARD)
"""Its prior learns whom most samples went to, and sends them more."""

EM = (SOFT, HARD, RANDOM_DYNAMIC, RANDOM_FIXED, EQHARD, EQSOFT)


def of_authors(published: Published, variants: Iterable[Variant]) -> Published:
    """The paper's Hard-EM began as its authors' code does: its numbers stand under that variant, where there is one."""
    if HARD_AUTHORS.name not in {variant.name for variant in variants}:
        return published
    numbers = {HARD_AUTHORS.name if name == HARD.name else name: found for name, found in published.numbers.items()}
    return replace(published, numbers=numbers)


def with_authors(lab: Lab, numbers: Numbers) -> Numbers:
    """Our numbers for claims: where the preset itself begins as the authors' code does, its Hard-EM is theirs."""
    if lab.preset.model.adapter_init == "linear" and HARD.name in numbers:
        return {**numbers, HARD_AUTHORS.name: numbers[HARD.name]}
    return numbers


def changed(variant: Variant, suffix: str, settings: Mapping[str, Any]) -> Variant:
    """A variant with other settings and a longer name."""
    return replace(
        variant, name=f"{variant.name}, {suffix}" if suffix else variant.name, settings={**variant.settings, **settings}
    )


def without_twins(lab: Lab, variants: Iterable[Variant]) -> list[Variant]:
    """Leaves out variants that the preset makes equal to an earlier one: the same stages under another name."""
    found: dict[str, Variant] = {}
    for variant in variants:
        found.setdefault(lab.responses(variant).name, variant)
    return list(found.values())
