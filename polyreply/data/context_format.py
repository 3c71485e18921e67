"""How a context and a response become tokens: one description for training and replying.

A context is its turns between fixed pieces, the scaffold: prefix, separators and special tokens, or what a
chat template writes around the messages. Each turn is tokenised on its own, so what a person typed can never
become a separator, an end of sequence or a role of the template.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from polyreply.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True)
class ContextFormat:
    """How turns are joined, framed and cut. It is part of a model's config."""

    turn_separator: str | None = None
    """Text between turns; None means the tokenizer's `<turn>`, else its sep_token, else its eos_token."""
    prefix: str = ""
    """Text before the first turn, tokenised on its own, never cut; in a chat template, the system message."""
    chat_template: bool | None = None
    """Frame the turns with the tokenizer's chat template, as messages of user and assistant in turn, the last
    one the user's; None means where it has one. If a template requires a user's message first, an assistant's
    turn before it is lost."""
    max_context_tokens: int = 256
    """Most tokens of a context, all included. The oldest turns are dropped, whole; when the last turn alone
    is too long, its oldest tokens are."""
    max_response_tokens: int = 128
    """Most tokens of a response, its end of sequence included. One that is cut at the end has no end of
    sequence: it must not teach a model to stop in mid-sentence."""

    def uses_chat_template(self, tokenizer: "PreTrainedTokenizerBase") -> bool:
        """Whether turns are framed by a chat template."""
        return bool(tokenizer.chat_template) if self.chat_template is None else self.chat_template

    def __post_init__(self) -> None:
        """Reject limits that leave no token."""
        for name in ("max_context_tokens", "max_response_tokens"):
            if getattr(self, name) < 1:
                raise DataError(f"{name} must be 1 or more, not {getattr(self, name)}")


@dataclass(frozen=True)
class Truncation:
    """How many contexts and responses were encoded, and how many of them lost something."""

    contexts: int = 0
    contexts_lost_turns: int = 0
    contexts_cut_inside_turn: int = 0
    responses: int = 0
    responses_cut: int = 0

    def __add__(self, other: "Truncation") -> "Truncation":
        """Add up two reports, count by count."""
        return Truncation(**{name: count + getattr(other, name) for name, count in asdict(self).items()})


def encode_contexts(
    tokenizer: "PreTrainedTokenizerBase", contexts: Sequence[tuple[str, ...]], format: ContextFormat
) -> tuple[list[Ids], Truncation]:
    """Encode contexts, each within `max_context_tokens`; the ids are not padded.

    A context ends in the tokenizer's own closing token (T5's and BART's `</s>`) or, where it has none (GPT-2,
    Llama), in the turn separator: the last context token always tells a decoder that its reply begins.
    """
    for number, context in enumerate(contexts):
        if not context:
            raise DataError(f"context {number} has no turns; a context needs at least one")
    frame = _Frame(tokenizer, format)
    turns = iter(_encode_texts(tokenizer, list(chain.from_iterable(contexts)), frame.control_ids))
    fitted = [frame.fit([next(turns) for _ in context], format.max_context_tokens) for context in contexts]
    report = Truncation(
        contexts=len(fitted),
        contexts_lost_turns=sum(lost for _, lost, _ in fitted),
        contexts_cut_inside_turn=sum(cut for _, _, cut in fitted),
    )
    return [ids for ids, _, _ in fitted], report


def encode_responses(
    tokenizer: "PreTrainedTokenizerBase", responses: Sequence[str], format: ContextFormat
) -> tuple[list[Ids], Truncation]:
    """Encode responses, each its content and one end of sequence, or, if too long, the start of its content.

    No beginning of sequence is put before them: the model's own `decoder_start_token_id`, or the last context
    token, plays that part.
    """
    eos, limit = _eos_id(tokenizer), format.max_response_tokens
    contents = _encode_texts(tokenizer, responses, _control_ids(tokenizer, format))
    encoded = [np.array([*content, eos][:limit], dtype=np.int32) for content in contents]
    cut = sum(len(content) >= limit for content in contents)
    return encoded, Truncation(responses=len(encoded), responses_cut=cut)


def invocation_tokens(tokenizer: "PreTrainedTokenizerBase", format: ContextFormat) -> list[int]:
    """The constant tokens that end every context: the chat template's assistant header, or the last piece.

    A decoder-only model's adapters act from the first of them on.
    """
    frame = _Frame(tokenizer, format)
    last = frame.scaffold(1)[-1]
    if frame.is_chat:
        with_header, without = (frame.render(["a"], header=header) for header in (True, False))
        header = _call(tokenizer, [with_header.removeprefix(without)])[0]
        if with_header.startswith(without) and header and last[-len(header) :] == header:
            return header
    return last


def can_occur_in_response(tokens: Sequence[int], tokenizer: "PreTrainedTokenizerBase", format: ContextFormat) -> bool:
    """Whether a response could hold these tokens, one after the other: not if one is for the scaffold alone."""
    return not (_control_ids(tokenizer, format) - {tokenizer.eos_token_id}) & set(tokens)


class _Frame:
    """The scaffold of a context: for n turns, the n + 1 pieces around and between them."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", format: ContextFormat) -> None:
        self._tokenizer, self._format = tokenizer, format
        self._eos = _eos_id(tokenizer)
        self._scaffolds: dict[int, list[list[int]]] = {}
        self.control_ids = _control_ids(tokenizer, format)
        self.is_chat = format.uses_chat_template(tokenizer)
        if not self.is_chat:
            self._head, self._separator, self._tail = self._joining_pieces()
        self._check_room(format.max_context_tokens)

    def fit(self, turns: list[list[int]], limit: int) -> tuple[Ids, bool, bool]:
        """Frame the last turns that fit; also return whether turns were lost and whether one was cut."""
        num_kept = next((n for n in range(len(turns), 1, -1) if self._fits(turns[-n:], limit)), 1)
        scaffold, kept = self.scaffold(num_kept), turns[-num_kept:]
        room = limit - sum(map(len, scaffold))
        cut = num_kept == 1 and len(kept[0]) > room
        if cut:
            kept = [kept[0][-room:]]
        ids = [token for piece, turn in zip(scaffold, [*kept, []], strict=True) for token in chain(piece, turn)]
        return np.array(ids, dtype=np.int32), num_kept < len(turns), cut

    def _fits(self, turns: list[list[int]], limit: int) -> bool:
        scaffold = self.scaffold(len(turns))
        return bool(scaffold) and sum(map(len, chain(scaffold, turns))) <= limit

    def _check_room(self, limit: int) -> None:
        least = sum(map(len, self.scaffold(1))) + 1
        if least > limit:
            raise DataError(
                f"max_context_tokens {limit} leaves no room for a turn: the prefix and the special tokens "
                f"take {least - 1}; use {least} or more"
            )

    def scaffold(self, num_turns: int) -> list[list[int]]:
        """Give the pieces for a number of turns; none if the chat template refuses an assistant's turn first."""
        if num_turns not in self._scaffolds:
            if self.is_chat:
                self._scaffolds[num_turns] = self._chat_pieces(num_turns)
            else:
                between = [self._separator] * (num_turns - 1)
                self._scaffolds[num_turns] = [self._head, *between, self._tail]
        return self._scaffolds[num_turns]

    def _joining_pieces(self) -> tuple[list[int], list[int], list[int]]:
        """Give the tokens before the turns, between two turns and after them."""
        probe = "a"
        content, framed = _call(self._tokenizer, [probe])[0], _call(self._tokenizer, [probe], special=True)[0]
        starts = [i for i in range(len(framed)) if framed[i : i + len(content)] == content]
        head = framed[: starts[0]] if starts else []
        tail = framed[starts[0] + len(content) :] if starts else [self._eos]
        prefix = _call(self._tokenizer, [self._format.prefix])[0] if self._format.prefix else []
        separator = self._separator_ids()
        return head + prefix, separator, tail or separator

    def _separator_ids(self) -> list[int]:
        """Give the tokens of the turn separator."""
        text, tokenizer = self._format.turn_separator, self._tokenizer
        if text is None:
            own = (tokenizer.get_added_vocab().get("<turn>"), tokenizer.sep_token_id, self._eos)
            return [next(int(token) for token in own if token is not None)]
        ids = _call(tokenizer, [text])[0] if text else []
        if not ids:
            raise DataError(
                f"turn_separator {text!r} becomes no token with this tokenizer, so turns would run together; "
                "use one that does, or null for the tokenizer's own"
            )
        return ids

    def _chat_pieces(self, num_turns: int) -> list[list[int]]:
        """Render the template around a mark for each turn, and encode what it writes between the marks."""
        marks = [f"\ue000{i}\ue001" for i in range(num_turns)]
        try:
            rest = self.render(marks)
        except Exception as error:  # a template raises what it likes
            if num_turns % 2 == 0:  # the assistant's turn would be first
                return []
            raise DataError(f"the tokenizer's chat template cannot frame these turns: {error}") from error
        pieces = []
        for mark in marks:
            before, found, rest = rest.partition(mark)
            if not found:
                raise DataError("the tokenizer's chat template leaves out a turn; set chat_template to false")
            pieces.append(before)
        return [ids for piece in [*pieces, rest] for ids in (_call(self._tokenizer, [piece]) if piece else [[]])]

    def render(self, turns: Sequence[str], *, header: bool = True) -> str:
        """What the chat template makes of some turns, the last one the user's, with the assistant's header or not."""
        roles = [("user", "assistant")[(len(turns) - 1 - i) % 2] for i in range(len(turns))]
        messages = [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=True)]
        if self._format.prefix:
            messages.insert(0, {"role": "system", "content": self._format.prefix})
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=header))


def _eos_id(tokenizer: "PreTrainedTokenizerBase") -> int:
    """Give the end of sequence, without which a response would never end."""
    if tokenizer.eos_token_id is None:
        raise DataError("the tokenizer has no eos_token, so responses could not end; set one, e.g. its sep_token")
    return int(tokenizer.eos_token_id)


def _control_ids(tokenizer: "PreTrainedTokenizerBase", format: ContextFormat) -> set[int]:
    """Give the ids that a typed text may never become: they are for the scaffold alone."""
    names = ("bos", "eos", "pad", "sep", "cls", "mask")
    ids = {getattr(tokenizer, f"{name}_token_id") for name in names} | {tokenizer.get_added_vocab().get("<turn>")}
    if format.uses_chat_template(tokenizer):
        ids.update(tokenizer.all_special_ids)
    return ids - {None, tokenizer.unk_token_id}


def _encode_texts(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str], control_ids: set[int]) -> list[list[int]]:
    """Encode what people wrote: no special tokens added, and those that were typed in are left out."""
    encoded = _call(tokenizer, texts)
    return [
        ids if control_ids.isdisjoint(ids) else [token for token in ids if token not in control_ids] for ids in encoded
    ]


def _call(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str], special: bool = False) -> list[list[int]]:
    """Encode whole texts, whatever truncation or padding the tokenizer's file or its last caller set."""
    if not texts:
        return []
    options: dict[str, Any] = {"padding": False, "truncation": False, "split_special_tokens": False}
    encoded = tokenizer(list(texts), add_special_tokens=special, return_attention_mask=False, verbose=False, **options)
    return list(encoded["input_ids"])
