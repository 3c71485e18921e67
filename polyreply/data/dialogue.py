"""The units of data: a dialogue (a context with its responses), a record (one row of an input), and bad rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from polyreply.errors import DataError

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")

MAX_REPORTED = 20
"""How many bad rows are kept with their line; the others are only counted."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A context, oldest turn first, and one or more responses to it."""

    context: tuple[str, ...]
    responses: tuple[str, ...]
    acts: tuple[str, ...] = ()
    """The reply act of each response where a generator knows it. For measurement only: training never reads it."""


@dataclass(frozen=True, slots=True)
class Record:
    """A good row of an input: a context with its responses or, if `responses` is None, a conversation."""

    line: int
    turns: tuple[str, ...]
    """The context, or all turns of the conversation."""
    responses: tuple[str, ...] | None = None
    acts: tuple[str, ...] = ()
    answers: Sequence[int] = ()
    """In a conversation, the positions of the turns that are responses to the turns before them."""

    def dialogues(self, context_turns: int) -> Iterator[Dialogue]:
        """The context with its responses, or each answer of a conversation with up to `context_turns` before it."""
        if self.responses is not None:
            yield Dialogue(self.turns, self.responses, self.acts)
        else:
            for answer in self.answers:
                yield Dialogue(self.turns[max(0, answer - context_turns) : answer], (self.turns[answer],))


@dataclass
class BadRows:
    """Counts the rows that could not be used and keeps the first of them with source, line and reason."""

    strict: bool = False
    advice: str = "fix the row or read without --strict"
    """The last part of the error that a strict reader raises."""
    count: int = 0
    first: list[dict[str, str | int]] = field(default_factory=list)

    def add(self, source: str, line: int, reason: str) -> None:
        """Count one bad row; a strict reader raises a DataError instead."""
        if self.strict:
            raise DataError(f"{source}, line {line}: {reason}; {self.advice}")
        self.count += 1
        if len(self.first) < MAX_REPORTED:
            self.first.append({"source": source, "line": line, "reason": reason})

    def summary(self) -> str:
        """How many rows were left out, and why the first of them was; empty if there were none."""
        if not self.count:
            return ""
        rows = "1 bad row was" if self.count == 1 else f"{self.count:,} bad rows were"
        first = self.first[0]
        return f"{rows} left out; the first: {first['source']}, line {first['line']}: {first['reason']}"


def check_record(
    line: int,
    *,
    context: str | Sequence[str] | None = None,
    responses: Sequence[str] | None = None,
    turns: Sequence[str] | None = None,
    messages: Sequence[object] | None = None,
    acts: Sequence[str | None] = (),
    empty_responses: bool = False,
) -> Record:
    """A Record from the fields of a row, or a DataError with the reason why the row is bad.

    The first of context, turns and messages that is given counts. A row with an empty response is bad, unless the
    caller allows `empty_responses`.
    """
    if context is None and turns is not None:
        return _conversation(line, turns)
    if context is None and messages is not None:
        return _chat(line, messages)
    if context is None:
        raise DataError("no context: expected the fields context and response(s), or turns, or messages")
    if responses is None:
        raise DataError("no response: expected the field response or responses with context")
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
    """Each turn is answered by the next."""
    if len(turns) < 2:
        raise DataError(f"a conversation needs at least 2 turns, found {len(turns)}")
    if not all(turn.strip() for turn in turns):
        raise DataError("empty turn")
    return Record(line, tuple(turns), answers=range(1, len(turns)))


def _chat(line: int, messages: Sequence[object]) -> Record:
    """Each message of the assistant answers the turns before it.

    System messages are dropped: they instruct a model and are no part of the conversation. Messages that one role
    sends in a row become one turn, joined by a newline, so that the two roles alternate, as chat templates require,
    and the assistant never answers itself.
    """
    turns: list[str] = []
    roles: list[str] = []
    for number, message in enumerate(messages, start=1):
        role, content = _role_and_content(number, message)
        if role == "system":
            continue
        if roles and roles[-1] == role:
            turns[-1] += f"\n{content}"
        else:
            roles.append(role)
            turns.append(content)
    answers = tuple(place for place, role in enumerate(roles) if place and role == "assistant")
    if not answers:
        raise DataError("no response: expected an assistant message after a user message")
    return Record(line, tuple(turns), answers=answers)


def _role_and_content(number: int, message: object) -> tuple[str, str]:
    if not isinstance(message, Mapping):
        raise DataError(f"message {number}: expected an object with role and content, found {type(message).__name__}")
    role, content = message.get("role"), message.get("content")
    if role not in ("system", "user", "assistant"):
        raise DataError(f"message {number}: expected the role system, user or assistant, found {role!r}")
    if not isinstance(content, str):
        raise DataError(f"message {number}: expected content that is text, found {type(content).__name__}")
    if role != "system" and not content.strip():
        raise DataError(f"message {number}: empty content")
    return role, content
