"""What there is to reproduce. A new table is a file in `experiments/` and a line here."""

import difflib
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyreply.errors import PolyReplyError

if TYPE_CHECKING:
    from polyreply.experiments.result import Findings
    from polyreply.experiments.stage import Stage
    from polyreply.experiments.systems import Lab

TITLES = {
    "table-em": "EM variants: beam search, Soft-EM, Hard-EM, EqRandom, EqHard-EM, and our EqSoft-EM",
    "table-main": "Main results: beam search, nucleus sampling and EqHard-EM",
    "figure-assignment": "Decoder assignment statistics, mean ± std: Soft-EM, Hard-EM, EqHard-EM",
    "table-cases": "Case study: all K responses of each EM variant for chosen contexts",
    "figure-decoders": "What decoders specialise in, against beam search: length, questions, a word, typical words",
    "table-efficiency": "Time shares of E-step, M-step and assignment; samples per second against beam search",
    "table-ablation": "Soft-EM and Hard-EM with uniform and learned priors, with and without dropout in the E-step",
    "table-architecture": "Multi-adapter against multi-decoder: parameters and BLEU2-F",
    "figure-scaling": "Beam search against the multi-decoder model for several K",
    "figure-bound": "The theorem: deviation from 1/K on unseen samples against what it allows",
    "table-starvation": "When Hard-EM starves, and EqHard-EM from the same beginning (beyond the paper)",
    "table-settings": "EqHard-EM with one setting changed at a time (beyond the paper)",
    "table-ours": "Recipes of ours against EqHard-EM (beyond the paper)",
    "mode-recovery": "Whether the decoders find the ten acts of smalltalk (beyond the paper)",
}
"""Every experiment with what it shows, in the order they are best run: later ones use stages of earlier ones."""


@dataclass(frozen=True)
class Experiment:
    """A table or figure: the stages it stands on, and what it makes of them."""

    needs: "Callable[[Lab], Sequence[Stage]]"
    """For the plan: every stage that takes time. Makes none of them."""
    report: "Callable[[Lab, Path], Findings]"
    """Makes what is missing, writes its pictures to the folder, and tells what was found."""
    has_all_seeds: bool = False
    """Whether it is made with the preset's `seeds` or with its `other_seeds`."""
    shows_texts: bool = False
    """Whether its result holds texts of the data, which not every licence allows to publish."""
    origin: "Callable[[Lab], Mapping[str, Any]]" = lambda lab: lab.origin()
    """Where its numbers come from (data, split, seeds), if that is not what the lab says."""

    def lab(self, lab: "Lab") -> "Lab":
        """The lab with the seeds it is made with."""
        return lab if self.has_all_seeds else lab.with_seeds(lab.preset.other_seeds)


def experiment(name: str) -> Experiment:
    """The experiment of that name: `EXPERIMENT` of its module."""
    check_name(name)
    module = importlib.import_module(f"polyreply.experiments.{name.replace('-', '_')}")
    found: Experiment = module.EXPERIMENT
    return found


def check_name(name: str) -> None:
    """Raises unless there is such an experiment."""
    if name not in TITLES:
        near = difflib.get_close_matches(name, TITLES, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(TITLES)}"
        raise PolyReplyError(f"expected the name of a table or figure, found {name!r}; {hint}")
