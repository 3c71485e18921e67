"""One row of an input as it was read: a context with its responses, or a whole conversation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from polyreply.data.dialogue import Dialogue
from polyreply.errors import DataError

MAX_REPORTED = 20
"""How many bad rows are kept with their line; the others are only counted."""


@dataclass(frozen=True, slots=True)
class Record:
    """A good row. `responses` is None for a conversation, in which each turn is answered by the next."""

    line: int
    turns: tuple[str, ...]
    responses: tuple[str, ...] | None = None
    acts: tuple[str, ...] = ()

    def dialogues(self, context_turns: int) -> Iterator[Dialogue]:
        """The context and its responses; or each turn of a conversation with up to `context_turns` before it."""
        if self.responses is not None:
            yield Dialogue(self.turns, self.responses, self.acts)
            return
        for answer in range(1, len(self.turns)):
            yield Dialogue(self.turns[max(0, answer - context_turns) : answer], (self.turns[answer],))


@dataclass
class BadRows:
    """Counts the rows that could not be used and keeps the first of them with file, line and reason."""

    strict: bool = False
    advice: str = "fix the row or read without --strict"
    """What the error of a strict reader tells the user to do."""
    count: int = 0
    first: list[dict[str, str | int]] = field(default_factory=list)

    def add(self, source: str, line: int, reason: str) -> None:
        """Notes one bad row; a strict reader stops at it instead."""
        if self.strict:
            raise DataError(f"{source}, line {line}: {reason}; {self.advice}")
        self.count += 1
        if len(self.first) < MAX_REPORTED:
            self.first.append({"source": source, "line": line, "reason": reason})


def check_record(
    line: int,
    context: str | Sequence[str] | None,
    responses: Sequence[str] | None,
    turns: Sequence[str] | None,
    acts: Sequence[str | None] = (),
    *,
    empty_responses: bool = False,
) -> Record:
    """A Record from the fields of a row, or a DataError with the reason why the row is bad.

    A row with an empty response is bad, unless the caller allows `empty_responses`.
    """
    if context is None and turns is not None:
        return _conversation(line, turns)
    if context is None:
        raise DataError("no context: expected the fields context and response(s), or turns")
    if responses is None:
        raise DataError("no response: expected the field response or responses beside context")
    context_turns = (context,) if isinstance(context, str) else tuple(context)
    if not context_turns or not all(turn.strip() for turn in context_turns):
        raise DataError("empty context")
    if not responses or not (empty_responses or all(response.strip() for response in responses)):
        raise DataError("empty response")
    if acts and len(acts) != len(responses):
        raise DataError(f"{len(responses)} responses but {len(acts)} acts")
    known = tuple(act for act in acts if act is not None)
    return Record(line, context_turns, tuple(responses), known if len(known) == len(responses) else ())


def _conversation(line: int, turns: Sequence[str]) -> Record:
    if len(turns) < 2:
        raise DataError(f"a conversation needs at least 2 turns, found {len(turns)}")
    if not all(turn.strip() for turn in turns):
        raise DataError("empty turn")
    return Record(line, tuple(turns))
