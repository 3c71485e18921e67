"""Scripted annotators of known accuracy and bias, to plan a study and to test the whole path.

Every comparison gets a true answer: a tie with a fixed probability, otherwise a winner by Bradley–Terry from the
strengths of the two systems; that of a gold check is known. An annotator gives the true answer with the probability
`accuracy`, else one of the two others. A biased one first ignores the texts with the probability |bias| and takes side
1 (or side 2 if the bias is negative).

The answers go to a copy of the study that is marked as simulated, so they can never be mixed with people's.
"""

import math
import random
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from polyreply.config import to_tree
from polyreply.errors import PolyReplyError
from polyreply.study.answers import Event
from polyreply.study.folder import Choice, Comparison, Item, Outcome, Study, open_answers, save_study

_SECONDS = 6.0
"""Typical time of a scripted answer, for tables that show one."""
_AT = "1970-01-01T00:00:00.000+00:00"


@dataclass(frozen=True)
class Script:
    """How scripted annotators answer."""

    accuracy: tuple[float, ...] = (0.9,)
    """Probability of the true answer: one for all annotators, or one each."""
    bias: tuple[float, ...] = (0.0,)
    """Probability of side 1 whatever it shows, negative for side 2: one for all annotators, or one each."""
    ties: float = 0.2
    """Share of comparisons whose true answer is a tie."""
    strengths: Mapping[str, float] = field(default_factory=dict)
    """Log-odds of each system; one that is not named has 0."""
    seed: int = 0


def simulate(study: Study, script: Script, out: Path) -> Study:
    """Write a copy of the study to `out`, marked as simulated and filled by scripted annotators."""
    _check(study, script)
    filled = replace(study, id=secrets.token_hex(8), simulated=to_tree(script))
    save_study(filled, out)
    answers = open_answers(out, filled)
    answers.record_all(_events(filled, script))
    answers.close()
    return filled


def _check(study: Study, script: Script) -> None:
    if study.simulated is not None:
        raise PolyReplyError("expected a study for people, found one that is simulated already; name the original")
    for name, values, low in (("accuracy", script.accuracy, 0.0), ("bias", script.bias, -1.0)):
        if len(values) not in (1, len(study.annotators)) or not all(low <= value <= 1 for value in values):
            raise PolyReplyError(
                f"{name}: expected a number from {low:g} to 1, or one for each of {len(study.annotators)} annotators, "
                f"found {', '.join(f'{value:g}' for value in values)}"
            )
    if not 0 <= script.ties <= 1:
        raise PolyReplyError(f"ties: expected a share from 0 to 1, found {script.ties:g}")
    names = [system.name for system in study.systems]
    unknown = [name for name in script.strengths if name not in names]
    if unknown:
        raise PolyReplyError(f"strength: expected some of {', '.join(names)}, found {unknown[0]!r}; check the name")


def _events(study: Study, script: Script) -> Iterator[tuple[str, int, Event]]:
    rng = random.Random(script.seed)
    truth = [_true_outcome(comparison, script, rng) for comparison in study.comparisons]
    for place, annotator in enumerate(study.annotators):
        accuracy, bias = (_own(values, place) for values in (script.accuracy, script.bias))
        for turn, item in enumerate(annotator.items):
            choice = _answer(item, truth[item.comparison], accuracy, bias, rng)
            yield annotator.name, turn, Event(item.id, choice, round(rng.expovariate(1 / _SECONDS), 1), _AT)


def _own(values: Sequence[float], place: int) -> float:
    return values[place if len(values) > 1 else 0]


def _true_outcome(comparison: Comparison, script: Script, rng: random.Random) -> Outcome:
    if comparison.systems is None:
        return "win"
    if rng.random() < script.ties:
        return "tie"
    first, second = (script.strengths.get(name, 0.0) for name in comparison.systems)
    return "win" if rng.random() < 1 / (1 + math.exp(second - first)) else "loss"


def _answer(item: Item, truth: Outcome, accuracy: float, bias: float, rng: random.Random) -> Choice:
    if rng.random() < abs(bias):
        return "1" if bias > 0 else "2"
    choices: tuple[Choice, ...] = ("1", "2", "tie")
    [right] = [choice for choice in choices if item.outcome(choice) == truth]
    return right if rng.random() < accuracy else rng.choice([choice for choice in choices if choice != right])
