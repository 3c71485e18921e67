"""The systems of the tables, by the paper's names. A new system is a line here and its name in a table."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from polyreply.em.settings import EMSettings
from polyreply.experiments.paper import Numbers, Published
from polyreply.experiments.presets import Preset


@dataclass(frozen=True)
class Variant:
    """A system: how it is trained, and how it replies."""

    name: str
    """The paper's name, if the paper has it."""
    method: str = "mle"
    """`mle`: the single-decoder model of stage 1."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What differs from the preset's recipe of stage 2, by dotted names."""
    decode: str = "decoders"
    k: int | None = None
    """Replies per context; None: one per decoder, or the preset's number of decoders."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What differs from the preset's decoding settings, such as `min_new_tokens`."""
    rate_of: "Variant | None" = None
    """The variant whose learning rate it takes; None: its rate is chosen by its own trials."""

    @property
    def is_trained_by_em(self) -> bool:
        """Whether it has a stage 2."""
        return self.method != "mle"

    def changed(self, suffix: str, settings: Mapping[str, Any], rate_of: "Variant | None" = None) -> "Variant":
        """The variant with other settings and a longer name."""
        name = f"{self.name}, {suffix}" if suffix else self.name
        return replace(self, name=name, settings={**self.settings, **settings}, rate_of=rate_of or self.rate_of)


BEAM = Variant("Beam search", decode="beam")
NUCLEUS = Variant("Nucleus sampling", decode="nucleus")
SOFT = Variant("Soft-EM", "soft-em")
HARD = Variant("Hard-EM", "hard-em")
RANDOM_DYNAMIC = Variant("EqRandom-Dynamic", "eqrandom-dynamic")
RANDOM_FIXED = Variant("EqRandom-Fixed", "eqrandom-fixed")
EQHARD = Variant("EqHard-EM", "eqhard-em")
EQSOFT = Variant("EqSoft-EM", "eqsoft-em")
"""Ours: balanced, and soft at first; annealed until it is nearly hard (`annealing`)."""
HARD_AUTHORS = Variant("Hard-EM, authors' initialisation", "hard-em", {"model.adapter_init": "linear"})
"""Adapters that are initialised like PyTorch's linear layers."""
HARD_NO_SKIP = Variant(
    "Hard-EM, no skip connection", "hard-em", {"model.adapter_init": "linear", "model.adapter_skip": False}
)
"""The authors' initialisation in adapters without a skip connection: an untrained decoder produces nonsense, and the
decoders that are trained first get all the samples."""
HARD_LEARNED = Variant("Hard-EM, learned prior", "hard-em", {"model.prior": "learned"}, rate_of=HARD)
"""The prior learns which decoders got most samples, and sends them more."""

EM = (SOFT, HARD, RANDOM_DYNAMIC, RANDOM_FIXED, EQHARD, EQSOFT)

_NATS = (4.0, 0.1)
"""First and last temperature of EqSoft-EM where the cost is the NLL of a whole response."""
_TOKENS = 12
"""About the mean length of a response: costs are smaller by this factor where the likelihood is a mean over tokens."""
_POSTERIOR = (0.4, 0.01)
"""The same where the cost is the posterior, which is between 0 and 1 for any likelihood."""


def annealing(em: EMSettings, steps: int) -> dict[str, Any]:
    """How EqSoft-EM is annealed, by dotted names: from soft to nearly hard over the whole of stage 2.

    Temperatures are in the units of the cost. Those that a preset sets itself are kept.
    """
    default, over_all_steps = EMSettings(), {"em.anneal_steps": steps}
    if (em.temperature, em.final_temperature) != (default.temperature, default.final_temperature):
        return over_all_steps
    first, last = _POSTERIOR if em.cost == "posterior" else _NATS
    scale = _TOKENS if em.likelihood == "mean" and em.cost == "nll" else 1
    return {"em.temperature": first / scale, "em.final_temperature": last / scale, **over_all_steps}


def for_authors_start(published: Published, variants: Iterable[Variant]) -> Published:
    """The paper's numbers with its Hard-EM under HARD_AUTHORS, whose initialisation it had, if that is a variant."""
    if HARD_AUTHORS.name not in {variant.name for variant in variants}:
        return published
    numbers = {HARD_AUTHORS.name if name == HARD.name else name: row for name, row in published.numbers.items()}
    return replace(published, numbers=numbers)


def with_authors_start(numbers: Numbers, preset: Preset) -> Numbers:
    """Our numbers for claims: where the preset itself has the authors' initialisation, HARD is HARD_AUTHORS too."""
    if preset.model.adapter_init == "linear" and HARD.name in numbers:
        return {**numbers, HARD_AUTHORS.name: numbers[HARD.name]}
    return numbers
