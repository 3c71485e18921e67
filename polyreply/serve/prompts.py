"""From a request to jobs: what the model reads, which decoders reply, and how; every limit is checked here."""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from polyreply.data.context_format import ContextFormat, encode_contexts
from polyreply.decoding.generate import WAYS, GenerationOptions
from polyreply.decoding.settings import Decoding
from polyreply.decoding.single_decoder import check_single_decoder
from polyreply.errors import PolyReplyError
from polyreply.models.model import PolyReplyModel
from polyreply.reply import PolyReply
from polyreply.serve.schema import Message
from polyreply.serve.settings import ServeSettings
from polyreply.web.errors import ApiError

_LEAST_TEMPERATURE = 0.01
"""Below it sampling is greedy in all but name, and scores may overflow."""
_MOST_KINDS = 256


def conversation(messages: Sequence[Message]) -> tuple[str, tuple[str, ...]]:
    """The system message, if any, and the turns, whose last one is the user's.

    Several system messages, and neighbouring messages of one person, are joined by line breaks.
    """
    turns: list[tuple[str, str]] = []
    system: list[str] = []
    for place, message in enumerate(messages):
        if not message.text.strip():
            raise ApiError(400, "expected a text, found an empty message", param=f"messages.{place}.content")
        if message.role in ("system", "developer"):
            if turns:
                raise ApiError(400, "system messages must come first", param=f"messages.{place}.role")
            system.append(message.text)
        elif turns and turns[-1][0] == message.role:
            turns[-1] = message.role, f"{turns[-1][1]}\n{message.text}"
        else:
            turns.append((message.role, message.text))
    if not turns or turns[-1][0] != "user":
        raise ApiError(400, "the last message must be the user's", param="messages")
    return "\n".join(system), tuple(text for _, text in turns)


class Prompts:
    """Checks requests against a model and a server's limits, and encodes their contexts."""

    def __init__(self, polyreply: PolyReply, settings: ServeSettings) -> None:
        self.polyreply, self.model, self.settings = polyreply, polyreply.model, settings
        self._checked: dict[tuple[Any, ...], Decoding] = {}
        """Kinds of requests that were checked: most are like others."""

    def encode(self, turns: Sequence[str], *, system: str = "", param: str) -> Tensor:
        """The tokens of a context, as the model's format says: the oldest turns are dropped if it is too long.

        A last message that is too long by itself is refused.
        """
        self.check_texts(turns, param)
        format = self._format(system)
        try:
            (ids,), report = encode_contexts(self.polyreply.tokenizer, [tuple(turns)], format)
        except PolyReplyError as error:  # the system message leaves no room
            raise ApiError(400, str(error), param=param, code="context_length_exceeded") from error
        if report.contexts_cut_inside_turn:
            message = f"the last message does not fit into the model's {format.max_context_tokens} tokens of context"
            raise ApiError(400, message, param=param, code="context_length_exceeded")
        return torch.from_numpy(ids).long()

    def _format(self, system: str) -> ContextFormat:
        """The model's own format, a system message in the place of its prefix."""
        format = self.model.config.format()
        return replace(format, prefix=system) if system else format

    def check_texts(self, turns: Sequence[str], param: str) -> None:
        """Raise for empty or too long texts, before any work is done for them."""
        if not all(turn.strip() for turn in turns):
            raise ApiError(400, "expected a text, found an empty one", param=param)
        if sum(map(len, turns)) > self.settings.max_characters:
            message = f"expected at most {self.settings.max_characters} characters of context"
            raise ApiError(400, message, param=param, code="context_length_exceeded")

    def check_contexts(self, number: int, param: str) -> None:
        """Raise if a request has too many contexts."""
        most = min(self.settings.max_contexts, self.settings.max_queue)
        if number > most:
            raise ApiError(400, f"expected at most {most} {param}, found {number}", param=param)

    def chosen_decoders(self, n: int | None, decoders: Sequence[int] | None) -> tuple[list[int], int]:
        """The decoders that reply, and how many of the replies are returned."""
        num_decoders = self.model.num_decoders
        if decoders is None:
            wanted = 1 if n is None else n
            if wanted > num_decoders:
                raise ApiError(400, f"n must be at most {num_decoders}, the model's number of decoders", param="n")
            return list(range(num_decoders)), wanted
        chosen = self.named_decoders(decoders)
        if n is not None and n > len(chosen):
            raise ApiError(400, f"n must be at most {len(chosen)}, the number of decoders that are named", param="n")
        return chosen, len(chosen) if n is None else n

    def named_decoders(self, decoders: Sequence[int]) -> list[int]:
        """The decoders of a list, in order; raises unless each exists and is named once."""
        if len(set(decoders)) < len(decoders) or max(decoders) >= self.model.num_decoders:
            message = f"expected different decoders from 0 to {self.model.num_decoders - 1}"
            raise ApiError(400, message, param="decoders")
        return sorted(decoders)

    def sampling(self, temperature: float | None, top_p: float | None, **more: Any) -> GenerationOptions:
        """The options of sampling; none if decoding is greedy."""
        given: GenerationOptions = {"top_p": top_p, **more}  # type: ignore[typeddict-item]
        if temperature is not None and temperature >= _LEAST_TEMPERATURE:
            return {**given, "do_sample": True, "temperature": temperature, "top_k": given.get("top_k") or 0}
        if idle := [name for name, value in given.items() if value not in (None, 1, 1.0)]:
            raise ApiError(400, f"{idle[0]} has no effect without a temperature above 0; set one", param=idle[0])
        return {}

    def decoding(
        self,
        k: int,
        max_tokens: int | None,
        seed: int | None,
        options: GenerationOptions,
        decode: str = "decoders",
        *,
        system: str = "",
    ) -> Decoding:
        """A checked description of how to decode, with a source of random numbers of its own."""
        given: GenerationOptions = {**options, "max_new_tokens": max_tokens}
        kind = (decode, k, *sorted((name, value) for name, value in given.items() if value is not None))
        if kind not in self._checked:
            if len(self._checked) >= _MOST_KINDS:
                self._checked.clear()
            try:
                self._checked[kind] = self.polyreply.check_request(decode, k, 0, given)
            except PolyReplyError as error:
                raise ApiError(400, str(error)) from error
        generator = torch.Generator(self.model.device)
        generator.manual_seed(secrets.randbits(62) if seed is None else seed)
        decoding = replace(self._checked[kind], generator=generator)
        if system and decoding.guidance_scale is not None:
            return replace(decoding, empty_context=self.polyreply.empty_context(self._format(system)))
        return decoding

    def longest(self, decoding: Decoding, context_length: int) -> int:
        """Most tokens of a reply to a context of a length."""
        return decoding.max_new_tokens(1 if self.model.family.encoder else context_length)

    def check_lengths(self, rows: int, max_tokens: int, context_length: int, param: str = "max_tokens") -> None:
        """Raise if a request may generate too much, or more than the model has positions for."""
        if rows * max_tokens > self.settings.max_tokens:
            message = f"expected at most {self.settings.max_tokens} tokens for a request, found {rows} · {max_tokens}"
            raise ApiError(400, message, param=param)
        most = _positions(self.model.backbone.config)
        used = max_tokens + (1 if self.model.family.encoder else context_length)
        if most is not None and used > most:
            message = f"context and reply may need {used} tokens, more than the model's {most}; lower max_tokens"
            raise ApiError(400, message, param=param, code="context_length_exceeded")


def supported_ways(model: PolyReplyModel) -> list[str]:
    """The ways to decode that a model supports: some need stage 1's single-decoder model."""
    try:
        check_single_decoder(model)
    except PolyReplyError:
        return [name for name, way in WAYS.items() if way.of_decoders]
    return list(WAYS)


def _positions(config: Any) -> int | None:
    """The length that a backbone is limited to; None for relative positions."""
    if config.model_type in ("t5", "mt5"):
        return None
    found = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    return int(found) if found else None
