"""The requests and answers of the API: OpenAI's, with a few fields of our own, and `/v1/replies`.

A field that a request has and that is not here is an error. Fields that clients send with a value that changes nothing
(`NEUTRAL`) are accepted with that value.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from polyreply.web.errors import ApiError, Text

MAX_STOPS, MAX_ALTERNATIVES, MAX_MESSAGES = 4, 20, 1000
_ANY_TEXT = "a text"
NEUTRAL: dict[str, tuple[Any, ...] | str] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "metadata": ({},),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0,),
    "prompt_cache_key": _ANY_TEXT,
    "prompt_cache_retention": _ANY_TEXT,
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "safety_identifier": _ANY_TEXT,
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "user": _ANY_TEXT,
    "verbosity": (),
    "web_search_options": (),
}
"""By name the values with which a field of OpenAI's API is accepted, besides null."""


class _Request(BaseModel):
    """A body in which unknown fields, and values of another type, are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _drop_neutral(data: Any) -> Any:
    """The fields of a body without those that ask for nothing."""
    if not isinstance(data, dict):
        return data
    for name in [name for name in data if name in NEUTRAL]:
        value, allowed = data[name], NEUTRAL[name]
        is_neutral = isinstance(value, str) if isinstance(allowed, str) else any(value == one for one in allowed)
        if value is not None and not is_neutral:
            known = allowed if isinstance(allowed, str) else ", ".join(map(json.dumps, (*allowed, None)))
            message = f"{name} is not supported: expected {known}, or no such field"
            raise ApiError(400, message, param=name, code="unsupported_parameter")
    return {name: value for name, value in data.items() if name not in NEUTRAL}


class TextPart(_Request):
    """A part of a message."""

    type: Literal["text"]
    text: Text


class Message(_Request):
    """A turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[TextPart], Field(min_length=1, max_length=100)]
    name: Text | None = Field(None, description="Accepted and not used: the model does not see names.")

    @property
    def text(self) -> str:
        """The whole content."""
        return self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)


class StreamOptions(_Request):
    """What a stream tells besides replies."""

    include_usage: bool | None = Field(None, description="End the stream with a chunk that holds the usage.")
    include_obfuscation: bool | None = Field(None, description="Accepted and not used: chunks are not padded.")


Stops = Text | Annotated[list[Text], Field(max_length=MAX_STOPS)]
GuidanceScale = Annotated[float, Field(ge=1, le=10)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Decoders = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=1024)]
Select = Literal["likely", "different"]


class _Generation(_Request):
    """What chat and plain completions have in common."""

    model: Text = Field(description="The model's name, as /v1/models lists it.")
    n: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="Choices, each from another decoder: by default 1, at most K. With fewer than K, see select.",
    )
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = Field(
        None, description="Above 0, decoders sample; without it, or at 0, they are greedy."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="Sample from the likeliest tokens with this total probability; needs a temperature."
    )
    guidance_scale: GuidanceScale | None = Field(
        None, description="Above 1, choices move away from what would be said to an empty message; 1 turns that off."
    )
    max_tokens: Annotated[int, Field(ge=1)] | None = Field(None, description="Most tokens of a choice.")
    stop: Stops | None = Field(None, description="Texts at which a choice ends, without them; at most 4.")
    stream: bool | None = Field(None, description="Send server-sent events, choices interleaved by index.")
    stream_options: StreamOptions | None = None
    seed: Seed | None = Field(None, description="Decides what sampling draws; a random one if not given.")
    select: Select = Field(
        "likely", description="With n below K: the most likely replies of all decoders, or the most different ones."
    )
    decoders: Decoders | None = Field(
        None, description="The decoders to reply with, instead of a selection; then n may be left out."
    )

    @model_validator(mode="before")
    @classmethod
    def _neutral(cls, data: Any) -> Any:
        return _drop_neutral(data)

    @property
    def stops(self) -> list[str]:
        """The stop sequences, if any."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())


class ChatRequest(_Generation):
    """The body of /v1/chat/completions."""

    messages: list[Message] = Field(
        min_length=1, max_length=MAX_MESSAGES, description="A conversation; the last message is the user's."
    )
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = Field(None, description="Another name of max_tokens.")
    logprobs: bool | None = Field(None, description="Return the log-probability of each token.")
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = Field(
        None, description="Also of so many likeliest tokens in its place; needs logprobs."
    )


class CompletionRequest(_Generation):
    """The body of /v1/completions."""

    prompt: Text | Annotated[list[Text], Field(min_length=1)] = Field(
        description="A message, or several, each of which gets n choices."
    )
    logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = Field(
        None, description="Return the log-probability of each token, and of so many likeliest ones in its place."
    )


Turns = Annotated[list[Text], Field(min_length=1, max_length=MAX_MESSAGES)]


class RepliesRequest(_Request):
    """The body of /v1/replies."""

    contexts: Annotated[list[Text | Turns], Field(min_length=1)] = Field(
        description="Messages, or conversations: lists of turns, oldest first."
    )
    model: Text | None = Field(None, description="The model's name; the server has one, so it may be left out.")
    decode: Literal["decoders", "mbr", "beam", "nucleus", "top-k", "min-p", "diverse-beam"] = Field(
        "decoders", description="The way to decode. All but decoders and mbr use the single-decoder model."
    )
    k: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Replies to each context: by default one of each decoder, or 10."
    )
    m: Annotated[int, Field(ge=1)] | None = Field(None, description="Keep only the m most different of them.")
    decoders: Decoders | None = Field(None, description="With decode decoders: which of them reply, instead of k.")
    max_tokens: Annotated[int, Field(ge=1)] | None = Field(None, description="Most tokens of a reply.")
    guidance_scale: GuidanceScale | None = Field(
        None, description="decoders and mbr: above 1, replies move away from what would be said to an empty message."
    )
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = Field(
        None, description="With decode decoders: above 0, sample."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(None, description="With a temperature, nucleus or mbr.")
    top_k: Annotated[int, Field(ge=1)] | None = Field(None, description="With a temperature, or top-k.")
    min_p: Annotated[float, Field(gt=0, le=1)] | None = Field(None, description="With a temperature, or min-p.")
    samples: Annotated[int, Field(ge=1, le=64)] | None = Field(None, description="mbr: samples for each reply.")
    beta: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="mbr: how much more recall counts than precision."
    )
    num_groups: Annotated[int, Field(ge=1)] | None = Field(None, description="diverse-beam: groups of beams.")
    diversity_penalty: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None, description="diverse-beam: penalty for tokens that earlier groups chose."
    )
    seed: Seed = Field(0, description="Decides what sampling draws.")


# Answers.

FinishReason = Literal["stop", "length"]


class Usage(BaseModel):
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    """Of the choices that are returned."""
    total_tokens: int
    generated_tokens: int
    """Of all decoders that replied, also those whose replies were not selected."""


class TokenLogprob(BaseModel):
    """A token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class ChosenToken(TokenLogprob):
    """A token of a reply, and what else was likely."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(BaseModel):
    """The tokens of a choice."""

    content: list[ChosenToken] | None
    refusal: None = None


class Origin(BaseModel):
    """Our own fields of a choice: where it comes from."""

    decoder: int
    manner: str | None
    """What the decoder tends to do."""
    logprob: float | None
    """log p(reply | context, decoder), summed over tokens; in a stream null until the reply has ended."""


class AssistantMessage(BaseModel):
    """A reply."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(Origin):
    """A reply of one decoder."""

    index: int
    message: AssistantMessage
    finish_reason: FinishReason
    logprobs: ChatLogprobs | None = None


class ChatCompletion(BaseModel):
    """The answer of /v1/chat/completions without `stream`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str


class CompletionLogprobs(BaseModel):
    """The tokens of a choice."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(Origin):
    """A reply of one decoder."""

    index: int
    text: str
    finish_reason: FinishReason
    logprobs: CompletionLogprobs | None = None


class Completion(BaseModel):
    """The answer of /v1/completions without `stream`."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str


class Reply(BaseModel):
    """A reply to a context."""

    text: str
    logprob: float
    decoder: int | None
    """Null for ways to decode without K decoders."""
    manner: str | None
    rank: int
    """The place among the replies of the way to decode."""


class ContextReplies(BaseModel):
    """The replies to one context."""

    context: int
    replies: list[Reply]


class RepliesAnswer(BaseModel):
    """The answer of /v1/replies."""

    model: str
    decode: str
    results: list[ContextReplies]
    usage: Usage


class ModelInfo(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["polyreply"] = "polyreply"
    num_decoders: int
    manners: list[str]
    """What each decoder tends to do; empty if that was not measured."""
    decode: list[str]
    """The ways to decode that the model supports."""


class ModelList(BaseModel):
    """The models that are served."""

    object: Literal["list"] = "list"
    data: list[ModelInfo]


class Status(BaseModel):
    """How the server is."""

    status: str
