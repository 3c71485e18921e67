"""The systems of the tables, by the paper's names. A new system is a line here and its name in a table."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from polyreply.decoding.mbr import BETA, SAMPLES, SHARE
from polyreply.decoding.single_decoder import TOP_K
from polyreply.em.settings import ADALABEL, DIALOGBERT, MLE, SINGLE_DECODER, EMSettings
from polyreply.experiments.paper import Numbers, Published
from polyreply.experiments.presets import Preset


@dataclass(frozen=True)
class Variant:
    """A system: how it is trained, and how it replies."""

    name: str
    """The paper's name, if the paper has it."""
    method: str = "mle"
    """`mle`: the single-decoder model of stage 1. `adalabel` and `dialogbert` are trained by themselves."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What differs from the preset's recipe of stage 2, or of the method, by dotted names."""
    decode: str = "decoders"
    k: int | None = None
    """Replies per context; None: one per decoder, or the preset's number of decoders."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What differs from the preset's decoding settings, such as `min_new_tokens`."""
    rate_of: "Variant | None" = None
    """The variant whose learning rate it takes; None: its rate is chosen by its own trials."""

    @property
    def is_trained(self) -> bool:
        """Whether it has a training besides stage 1, which all share."""
        return self.method != MLE

    @property
    def is_trained_by_em(self) -> bool:
        """Whether it has a stage 2."""
        return self.method not in SINGLE_DECODER

    def changed(self, suffix: str, settings: Mapping[str, Any], rate_of: "Variant | None" = None) -> "Variant":
        """The variant with other settings and a longer name."""
        name = f"{self.name}, {suffix}" if suffix else self.name
        return replace(self, name=name, settings={**self.settings, **settings}, rate_of=rate_of or self.rate_of)


BEAM = Variant("Beam search", decode="beam")
NUCLEUS = Variant("Nucleus sampling", decode="nucleus")
MIN_P = Variant("Min-p sampling", decode="min-p")
DIVERSE_BEAM = Variant("Diverse beam search", decode="diverse-beam")
MBR = Variant("MBR", decode="mbr", options={"beta": BETA, "samples": SAMPLES, "top_p": SHARE})
"""Minimum Bayes risk over samples of the single-decoder model."""
ADA_LABEL = Variant("AdaLabel", ADALABEL, decode="beam")
"""On the backbone that stage 1 starts from."""
DIALOG_BERT = Variant("DialogBERT", DIALOGBERT, decode="top-k", options={"top_k": TOP_K})
SOFT = Variant("Soft-EM", "soft-em")
HARD = Variant("Hard-EM", "hard-em")
RANDOM_DYNAMIC = Variant("EqRandom-Dynamic", "eqrandom-dynamic")
RANDOM_FIXED = Variant("EqRandom-Fixed", "eqrandom-fixed")
EQHARD = Variant("EqHard-EM", "eqhard-em")
RELAXED = Variant("Relaxed-WTA", "relaxed-wta")
ANNEALED = Variant("Annealed-WTA", "annealed-wta")
"""LoRA-MCL's two methods."""
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


def nucleus(share: float) -> Variant:
    """Nucleus sampling from the likeliest tokens that have this probability together."""
    return replace(NUCLEUS, name=f"{NUCLEUS.name}, p = {share:g}", options={"top_p": share})


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
