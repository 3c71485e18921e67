"""What there is to reproduce. A new table or figure is one file in this folder and one line here."""

import difflib
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyreply.errors import PolyReplyError

if TYPE_CHECKING:
    from polyreply.experiments.cache import Task
    from polyreply.experiments.result import Findings
    from polyreply.experiments.systems import Systems

TITLES = {
    "table-em": "EM variants: beam search, Soft-EM, Hard-EM, EqRandom, EqHard-EM, and our EqSoft-EM",
    "table-main": "Main results: ways to decode one decoder, AdaLabel, DialogBERT, EqHard-EM, and winner-takes-all",
    "figure-assignment": "Decoder assignment statistics, mean ± std: Soft-EM, Hard-EM, EqHard-EM",
    "table-cases": "Case study: all K responses of each EM variant for chosen contexts",
    "figure-decoders": "What decoders specialise in, against beam search: length, questions, a word, typical words",
    "table-efficiency": "Time shares of E-step, M-step and assignment; samples per second against beam search",
    "table-human": "Human evaluation: people's judgements of a study (study=FOLDER) beside the paper's",
    "table-ablation": "Soft-EM and Hard-EM with uniform and learned priors, with and without dropout in the E-step",
    "table-architecture": "Multi-adapter against multi-decoder: parameters and BLEU2-F",
    "figure-scaling": "Beam search against the multi-decoder model for several K",
    "figure-bound": "The theorem: deviation from 1/K on unseen samples against what it allows",
    "table-starvation": "When Hard-EM starves, and EqHard-EM from the same initialisation (beyond the paper)",
    "table-draws": "Draws of whole contexts against draws of pairs (beyond the paper)",
    "table-settings": "EqHard-EM with one setting changed at a time (beyond the paper)",
    "table-ours": "Recipes of ours against EqHard-EM (beyond the paper)",
    "mode-recovery": "Whether the decoders find the ten acts of smalltalk (beyond the paper)",
}
"""Every experiment and what it shows, in the best order to run them: later ones reuse results of earlier ones."""


@dataclass(frozen=True)
class Experiment:
    """A table or figure: the tasks it is based on, and what it reports about their results."""

    tasks: "Callable[[Systems], Sequence[Task]]"
    """For the plan: every task that takes time. Computes nothing."""
    report: "Callable[[Systems, Path], Findings]"
    """Compute what is missing, write pictures to the folder, and return what was found."""
    has_all_seeds: bool = False
    """Whether it has the preset's `seeds`; otherwise its `other_seeds`."""
    shows_texts: bool = False
    """Whether its result holds texts of the data, which not every licence allows to publish."""
    origin: "Callable[[Systems], Mapping[str, Any]]" = lambda systems: systems.origin()
    """Where its numbers come from: data, split and seeds."""

    def with_its_seeds(self, systems: "Systems") -> "Systems":
        """The systems with the seeds that this experiment has."""
        return systems if self.has_all_seeds else systems.with_seeds(systems.preset.other_seeds)


def experiment(name: str) -> Experiment:
    """The experiment of that name: `EXPERIMENT` of its module."""
    check_name(name)
    module = importlib.import_module(f"polyreply.experiments.{name.replace('-', '_')}")
    own: Experiment = module.EXPERIMENT
    return own


def check_name(name: str) -> None:
    """Raise unless there is an experiment of that name."""
    if name not in TITLES:
        near = difflib.get_close_matches(name, TITLES, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(TITLES)}"
        raise PolyReplyError(f"expected the name of a table or figure, found {name!r}; {hint}")
