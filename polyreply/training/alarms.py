"""Alarms for the ways in which K decoders fail to become K different decoders, while there is time to stop the run.

The paper names two: in *synchronous training* the posteriors are nearly equal and all decoders learn the same
(Soft-EM); in *non-training* a few decoders win every sample and the rest stays untrained (Hard-EM). The third shows in
the replies: a decoder that says nothing, or one thing again and again. Legend: K decoders.
"""

import math
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from polyreply.em.em_step import StepRecord
from polyreply.errors import PolyReplyError
from polyreply.metrics.diversity import repeating
from polyreply.metrics.ngrams import Vocabulary, make_block
from polyreply.metrics.tokenize import TokenizerName, tokenizer_named

Kind = Literal["synchronous-training", "non-training", "degenerate"]
_EVERYONE = -1
"""The decoder of an alarm about all of them."""
_FEWEST_REPLIES = 4
"""Replies of a decoder: with fewer, their share means nothing."""
_WORD = re.compile(r"\w")


@dataclass(frozen=True)
class AlarmSettings:
    """When to raise an alarm, and whether to stop."""

    grace: Annotated[int, Field(ge=0)] = 100
    """First EM steps, in which posteriors may be equal: decoders start nearly alike."""
    patience: Annotated[int, Field(ge=1)] = 50
    """Consecutive steps with nearly equal posteriors that count as synchronous training."""
    synchronous_below: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Nearly equal: below this fraction of the largest possible distance from uniform, 1 − 1/K."""
    window: Annotated[int, Field(ge=1)] = 100
    """Steps over which a decoder's share of training is measured."""
    untrained_below: Annotated[float, Field(ge=0, le=1)] = 0.1
    """A decoder with less than this fraction of an equal share, 1/K, counts as not trained."""
    degenerate_above: Annotated[float, Field(ge=0, le=1)] = 0.5
    """A decoder is degenerate if more than this share of its validation replies are empty or repetitive."""
    stop: bool = False
    """End the run at the first alarm, after a warning and a checkpoint."""


@dataclass(frozen=True)
class Alarm:
    """A failure: a message for people, and values for the log."""

    kind: Kind
    step: int
    message: str
    decoders: tuple[int, ...]
    """The decoders concerned; empty for all of them."""
    values: tuple[float, ...]
    """The measurement: the distance from uniform, or a share for each decoder."""

    def to_json(self) -> dict[str, Any]:
        """The values for the log."""
        values = [round(value, 6) for value in self.values]
        return {
            "step": self.step,
            "alarm": self.kind,
            "decoders": [*self.decoders],
            "values": values,
            "message": self.message,
        }


class CollapseError(PolyReplyError):
    """An alarm was raised in a run that stops at alarms."""

    def __init__(self, alarms: Sequence[Alarm]) -> None:
        super().__init__("stopped: " + "; ".join(alarm.message for alarm in alarms))
        self.alarms = [*alarms]


class Alarms:
    """Watches a run. Each failure of each decoder is reported once."""

    def __init__(self, settings: AlarmSettings, num_decoders: int, tokenizer: TokenizerName = "wordpunct") -> None:
        self.settings = settings
        self.num_decoders = num_decoders
        self._tokenize = tokenizer_named(tokenizer, "lower")
        self._seen = 0
        self._in_a_row = 0
        self._trained: deque[tuple[float, ...]] = deque(maxlen=settings.window)
        self._reported: set[tuple[Kind, int]] = set()

    def step(self, record: StepRecord) -> list[Alarm]:
        """The alarms that a step raises."""
        if self.num_decoders < 2 or not record.usage_K:
            return []
        self._seen += 1
        return [*self._synchronous(record), *self._untrained(record)]

    def validation(self, replies_by_decoder: Sequence[Sequence[str]], step: int) -> list[Alarm]:
        """The alarms that each decoder's replies to the validation contexts raise."""
        if self.num_decoders < 2:
            return []
        bad = [self._bad_replies(replies) for replies in replies_by_decoder]
        counts = [len(replies) for replies in replies_by_decoder]
        limit = self.settings.degenerate_above
        found = [k for k, n in enumerate(counts) if n >= _FEWEST_REPLIES and bad[k] > limit * n]
        return [*_degenerate(step, self._unreported("degenerate", found), bad, counts)]

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON values with which a resumed run raises the same alarms as an uninterrupted one."""
        return {
            "seen": self._seen,
            "in_a_row": self._in_a_row,
            "trained": [[*trained_K] for trained_K in self._trained],
            "reported": [[kind, decoder] for kind, decoder in sorted(self._reported)],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._seen, self._in_a_row = state["seen"], state["in_a_row"]
        self._trained = deque((tuple(trained_K) for trained_K in state["trained"]), maxlen=self.settings.window)
        self._reported = {(kind, decoder) for kind, decoder in state["reported"]}

    def _synchronous(self, record: StepRecord) -> Iterator[Alarm]:
        distance, settings = record.posterior_distance, self.settings
        if distance is None or self._seen <= settings.grace:
            return
        most = 1 - 1 / self.num_decoders
        self._in_a_row = self._in_a_row + 1 if distance < settings.synchronous_below * most else 0
        if self._in_a_row < settings.patience or not self._unreported("synchronous-training", [_EVERYONE]):
            return
        message = (
            f"synchronous training at step {record.step}: for {self._in_a_row} steps the posteriors have been nearly "
            f"equal (distance {distance:.4f} from uniform; the alarm is below {settings.synchronous_below * most:.4f}, "
            f"and {most:.2f} is the largest possible), so all decoders learn the same and will reply the same. It is "
            "usual with soft-em; try eqhard-em, a higher learning rate, or decoders that start less alike"
        )
        yield Alarm("synchronous-training", record.step, message, (), (distance,))

    def _untrained(self, record: StepRecord) -> Iterator[Alarm]:
        if all(map(math.isfinite, record.usage_K)):
            self._trained.append(tuple(record.samples * usage for usage in record.usage_K))
        trained_K = [math.fsum(column) for column in zip(*self._trained, strict=True)]
        total = math.fsum(trained_K)
        if len(self._trained) < self.settings.window or not total:
            return
        share_K = [trained / total for trained in trained_K]
        limit = self.settings.untrained_below / self.num_decoders
        decoders = self._unreported("non-training", [k for k, share in enumerate(share_K) if share < limit])
        if not decoders:
            return
        message = (
            f"non-training collapse at step {record.step}: {_names(decoders)} had "
            f"{_listed([f'{share_K[k]:.2%}' for k in decoders])} of the samples of the last {len(self._trained)} steps "
            f"(an equal share is {1 / self.num_decoders:.1%}, the alarm is below {limit:.2%}): the decoders that are "
            "ahead win every sample, and the others stay untrained. It is usual with hard-em; try eqhard-em, whose "
            "shares are equal, or adapters that start near the identity"
        )
        yield Alarm("non-training", record.step, message, tuple(decoders), tuple(share_K[k] for k in decoders))

    def _bad_replies(self, replies: Sequence[str]) -> int:
        """The number of replies without a word ("", "...") or with a repeated phrase."""
        if not replies:
            return 0
        block = make_block([[text] for text in replies], [[] for _ in replies], self._tokenize, Vocabulary())
        repeats = repeating(block) > 0
        return sum(bool(again) or not _WORD.search(text) for text, again in zip(replies, repeats, strict=True))

    def _unreported(self, kind: Kind, decoders: Sequence[int]) -> list[int]:
        """The decoders that have not been reported yet; they count as reported from now on."""
        new = [k for k in decoders if (kind, k) not in self._reported]
        self._reported |= {(kind, k) for k in new}
        return new


def _degenerate(step: int, decoders: Sequence[int], bad: Sequence[int], counts: Sequence[int]) -> Iterator[Alarm]:
    if not decoders:
        return
    found = _listed([f"{bad[k]} of {counts[k]}" for k in decoders])
    message = (
        f"degenerate replies at step {step}: {found} validation replies of {_names(decoders)} say nothing or repeat a "
        "phrase four times or more. Such a decoder is untrained, or its learning rate is too high; look at its share "
        "of training, train longer, or lower the rate"
    )
    yield Alarm("degenerate", step, message, tuple(decoders), tuple(bad[k] / counts[k] for k in decoders))


def _names(decoders: Sequence[int]) -> str:
    return ("decoders " if len(decoders) > 1 else "decoder ") + _listed([str(k) for k in decoders])


def _listed(words: Sequence[str]) -> str:
    return " and ".join([*filter(None, [", ".join(words[:-1])]), words[-1]])
