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
from typing import Annotated, Any, Literal, NoReturn

from pydantic import Field

from polyreply.em.em_step import StepRecord
from polyreply.errors import PolyReplyError
from polyreply.metrics.diversity import repeating
from polyreply.metrics.ngrams import Vocabulary, make_block
from polyreply.metrics.tokenize import TokenizerName, tokenizer_named

Kind = Literal["synchronous-training", "non-training", "degenerate"]
_EVERYONE = -1
"""Stands for the decoder in an alarm about all of them."""
_FEWEST_REPLIES = 4
"""Of a decoder: fewer say nothing about what it mostly does."""
_WORD = re.compile(r"\w")


@dataclass(frozen=True)
class AlarmSettings:
    """When to raise an alarm, and whether to stop."""

    grace: Annotated[int, Field(ge=0)] = 100
    """EM steps at the start in which posteriors may be equal: decoders begin near each other."""
    patience: Annotated[int, Field(ge=1)] = 50
    """Steps in a row with nearly equal posteriors that are called synchronous training."""
    synchronous_below: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Nearly equal: so small a part of the largest possible distance from uniform, 1 − 1/K."""
    window: Annotated[int, Field(ge=1)] = 100
    """Steps over which a decoder's share of training is taken."""
    untrained_below: Annotated[float, Field(ge=0, le=1)] = 0.1
    """A decoder with less than this part of an equal share, 1/K, is not being trained."""
    degenerate_above: Annotated[float, Field(ge=0, le=1)] = 0.5
    """A decoder of which more than this share of the validation replies are empty or repeating is degenerate."""
    stop: bool = False
    """Ends the run at the first alarm, after a warning and a checkpoint."""


@dataclass(frozen=True)
class Alarm:
    """One thing that went wrong: a line for people, and the values for the log."""

    kind: Kind
    step: int
    message: str
    decoders: tuple[int, ...]
    """The decoders it is about; empty when it is about all."""
    values: tuple[float, ...]
    """What was measured: the distance from uniform, or a share of each decoder."""

    def to_json(self) -> dict[str, Any]:
        """What the log holds."""
        values = [round(value, 6) for value in self.values]
        return {
            "step": self.step,
            "alarm": self.kind,
            "decoders": [*self.decoders],
            "values": values,
            "message": self.message,
        }


class CollapseError(PolyReplyError):
    """A run that was to stop at an alarm has met one."""

    def __init__(self, alarms: Sequence[Alarm]) -> None:
        super().__init__("stopped: " + "; ".join(alarm.message for alarm in alarms))
        self.alarms = [*alarms]


class Alarms:
    """Watches a run. Each failure, and each decoder in it, is told once."""

    def __init__(self, settings: AlarmSettings, num_decoders: int, tokenizer: TokenizerName = "wordpunct") -> None:
        self.settings = settings
        self.num_decoders = num_decoders
        self._tokenize = tokenizer_named(tokenizer, "lower")
        self._seen = 0
        self._in_a_row = 0
        self._trained: deque[tuple[float, ...]] = deque(maxlen=settings.window)
        self._told: set[tuple[Kind, int]] = set()

    def step(self, record: StepRecord) -> list[Alarm]:
        """What a step gives reason to warn of."""
        if self.num_decoders < 2 or not record.usage_K:
            return []
        self._seen += 1
        return [*self._synchronous(record), *self._untrained(record)]

    def validation(self, replies_by_decoder: Sequence[Sequence[str]], step: int) -> list[Alarm]:
        """What the replies of each decoder to the validation contexts give reason to warn of."""
        if self.num_decoders < 2:
            return []
        bad = [self._bad_replies(replies) for replies in replies_by_decoder]
        counts = [len(replies) for replies in replies_by_decoder]
        limit = self.settings.degenerate_above
        found = [k for k, n in enumerate(counts) if n >= _FEWEST_REPLIES and bad[k] > limit * n]
        return [*_degenerate(step, self._untold("degenerate", found), bad, counts)]

    def stop(self, alarms: Sequence[Alarm]) -> NoReturn:
        """Ends a run whose settings say `stop`; its caller has logged the alarms and saved the run by then."""
        raise CollapseError(alarms)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs for a resumed run to warn as an uninterrupted one would; plain JSON values."""
        return {
            "seen": self._seen,
            "in_a_row": self._in_a_row,
            "trained": [[*trained_K] for trained_K in self._trained],
            "told": [[kind, decoder] for kind, decoder in sorted(self._told)],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from what `state_dict` gave."""
        self._seen, self._in_a_row = state["seen"], state["in_a_row"]
        self._trained = deque((tuple(trained_K) for trained_K in state["trained"]), maxlen=self.settings.window)
        self._told = {(kind, decoder) for kind, decoder in state["told"]}

    def _synchronous(self, record: StepRecord) -> Iterator[Alarm]:
        distance, settings = record.posterior_distance, self.settings
        if distance is None or self._seen <= settings.grace:
            return
        most = 1 - 1 / self.num_decoders
        self._in_a_row = self._in_a_row + 1 if distance < settings.synchronous_below * most else 0
        if self._in_a_row < settings.patience or not self._untold("synchronous-training", [_EVERYONE]):
            return
        message = (
            f"synchronous training at step {record.step}: for {self._in_a_row} steps the posteriors have been nearly "
            f"equal (distance {distance:.4f} from uniform; the alarm is below {settings.synchronous_below * most:.4f}, "
            f"and {most:.2f} is the most), so all decoders learn the same and will reply the same. It is usual with "
            "soft-em; try eqhard-em, a higher learning rate for the decoders, or a start less equal"
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
        decoders = self._untold("non-training", [k for k, share in enumerate(share_K) if share < limit])
        if not decoders:
            return
        message = (
            f"non-training collapse at step {record.step}: {_names(decoders)} had "
            f"{_listed([f'{share_K[k]:.2%}' for k in decoders])} of the samples of the last {len(self._trained)} steps "
            f"(an equal share is {1 / self.num_decoders:.1%}, the alarm is below {limit:.2%}): the decoders that are "
            "ahead win every sample, and the rest stays untrained. It is usual with hard-em; try eqhard-em, whose "
            "shares are equal, or a start near the identity"
        )
        yield Alarm("non-training", record.step, message, tuple(decoders), tuple(share_K[k] for k in decoders))

    def _bad_replies(self, replies: Sequence[str]) -> int:
        """How many replies have no word in them ("", "...") or repeat themselves."""
        if not replies:
            return 0
        block = make_block([[text] for text in replies], [[] for _ in replies], self._tokenize, Vocabulary())
        repeats = repeating(block) > 0
        return sum(bool(again) or not _WORD.search(text) for text, again in zip(replies, repeats, strict=True))

    def _untold(self, kind: Kind, decoders: Sequence[int]) -> list[int]:
        """Those of the decoders that have not been told of yet; now they have."""
        new = [k for k in decoders if (kind, k) not in self._told]
        self._told |= {(kind, k) for k in new}
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
