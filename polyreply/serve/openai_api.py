"""`/v1/chat/completions`, `/v1/completions` and `/v1/models`: OpenAI's API, n choices from n decoders in one pass.

With n = K, choice i is decoder i's reply. With fewer, all K decoders reply and n replies are selected: the most likely
or the most different ones, in that order; a stream then begins when the last decoder has ended.
"""

import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, StreamingResponse

from polyreply.decoding.continuous import Job, Row
from polyreply.decoding.select import diverse_subset
from polyreply.serve.engine import Ask
from polyreply.serve.prompts import conversation, supported_ways
from polyreply.serve.reply_text import ReplyText
from polyreply.serve.schema import (
    ChatCompletion,
    ChatLogprobs,
    ChatRequest,
    ChosenToken,
    Completion,
    CompletionLogprobs,
    CompletionRequest,
    ModelInfo,
    ModelList,
    TokenLogprob,
)
from polyreply.serve.service import Service
from polyreply.web.errors import ApiError, ErrorAnswer
from polyreply.web.logs import note

EVENTS = "text/event-stream"
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": text}
    for status, text in {
        400: "The request is wrong.",
        401: "The API key is missing or wrong.",
        404: "There is no such model.",
        413: "The body is too large.",
        429: "Too many requests wait; see Retry-After.",
        503: "The server is stopping, or the request took too long.",
    }.items()
}


def _answers(model: Any) -> dict[int | str, dict[str, Any]]:
    return {**ERRORS, 200: {"model": model, "content": {EVENTS: {"schema": {"type": "string"}}}}}


@dataclass(frozen=True)
class _Shape:
    """How one of the two endpoints writes choices."""

    prefix: str
    whole: str
    """The `object` of an answer."""
    chunk: str
    text: Callable[[str], dict[str, Any]]
    delta: Callable[[str, bool], dict[str, Any]]
    """The new text of a chunk; the second argument is whether it is the choice's first."""
    logprobs: "Callable[[_Tokens, Row, int, int], Any]"


class _Tokens:
    """The texts of single tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, token: int) -> str:
        """A token's own text, special tokens included."""
        return str(self._tokenizer.decode([token], skip_special_tokens=False))

    def with_logprob(self, token: int, logprob: float) -> dict[str, Any]:
        """A token as the API shows it."""
        text = self(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _chat_logprobs(tokens: _Tokens, row: Row, begin: int, end: int) -> Any:
    content = [
        ChosenToken(
            **tokens.with_logprob(row.tokens[place], row.logprobs[place]),
            top_logprobs=[
                TokenLogprob(**tokens.with_logprob(*one))
                for one in (row.alternatives[place] if row.alternatives else ())
            ],
        )
        for place in range(begin, end)
    ]
    return ChatLogprobs(content=content).model_dump()


def _completion_logprobs(tokens: _Tokens, row: Row, begin: int, end: int) -> Any:
    texts = [tokens(token) for token in row.tokens[:end]]
    offsets = [sum(map(len, texts[:place])) for place in range(begin, end)]
    likely = [
        {tokens(token): logprob for token, logprob in (row.alternatives[place] if row.alternatives else ())}
        for place in range(begin, end)
    ]
    return CompletionLogprobs(
        tokens=texts[begin:], token_logprobs=row.logprobs[begin:end], top_logprobs=likely, text_offset=offsets
    ).model_dump()


_CHAT = _Shape(
    "chatcmpl",
    "chat.completion",
    "chat.completion.chunk",
    lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
    lambda text, first: {"delta": {**({"role": "assistant"} if first else {}), "content": text}},
    _chat_logprobs,
)
_PLAIN = _Shape(
    "cmpl",
    "text_completion",
    "text_completion",
    lambda text: {"text": text},
    lambda text, first: {"text": text},
    _completion_logprobs,
)


class _Answer:
    """The answer to one request, whole or as a stream."""

    def __init__(
        self, service: Service, shape: _Shape, request: ChatRequest | CompletionRequest, ask: Ask, n: int
    ) -> None:
        self.service, self.shape, self.request, self.ask, self.n = service, shape, request, ask, n
        self.with_logprobs = request.logprobs is not None and request.logprobs is not False
        self.tokens = _Tokens(service.polyreply.tokenizer)
        self.head = {
            "id": f"{shape.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": service.settings.name,
            "system_fingerprint": service.fingerprint,
        }

    @property
    def selects(self) -> bool:
        """Whether replies are selected, which is possible only when all have ended."""
        return self.n < len(self.ask.jobs[0].rows)

    def selected(self) -> list[ReplyText]:
        """The replies that are returned: for each context n, in the order of their choices."""
        return [reply for replies in self.ask.texts for reply in self._select(replies)]

    def _select(self, replies: Sequence[ReplyText]) -> list[ReplyText]:
        if not self.selects:
            return list(replies)
        logprobs = [reply.row.logprob for reply in replies]
        if self.request.select == "different":
            return [replies[i] for i in diverse_subset([one.text for one in replies], self.n, logprobs=logprobs)]
        order = sorted(range(len(replies)), key=lambda place: -logprobs[place])
        return [replies[place] for place in order[: self.n]]

    def usage(self, replies: Sequence[ReplyText]) -> dict[str, int]:
        """The tokens of the request."""
        prompt = sum(len(job.context_S) for job in self.ask.jobs)
        generated = sum(len(row.tokens) for job in self.ask.jobs for row in job.rows)
        used = self.service.usage(prompt, sum(len(reply.row.tokens) for reply in replies), generated)
        if self.service.settings.log_texts:
            note(replies=[reply.text for reply in replies])
        return used.model_dump()

    def whole(self) -> JSONResponse:
        """All choices at once."""
        replies = self.selected()
        choices = [
            self._choice(index, reply, self.shape.text(reply.text), (0, len(reply.row.tokens)))
            for index, reply in enumerate(replies)
        ]
        return JSONResponse({**self.head, "object": self.shape.whole, "choices": choices, "usage": self.usage(replies)})

    def _choice(self, index: int, reply: ReplyText, text: dict[str, Any], span: tuple[int, int]) -> dict[str, Any]:
        row = reply.row
        logprobs = self.shape.logprobs(self.tokens, row, *span) if self.with_logprobs else None
        ended = {"finish_reason": row.finish, "logprob": row.logprob} if reply.is_done else {}
        origin = {"decoder": row.decoder, "manner": self.service.manner(row.decoder)}
        return {"index": index, **text, "finish_reason": None, "logprob": None, **ended, "logprobs": logprobs, **origin}

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events; a failure after the first one is an event too."""
        try:
            async for event in self._chunks():
                yield event
            replies = self.selected()
            options = self.request.stream_options
            used = self.usage(replies)
            if options is not None and options.include_usage:
                yield self._event([], usage=used)
            yield b"data: [DONE]\n\n"
        except ApiError as error:
            note(error=error.code)
            yield b"data: " + bytes(error.answer().body) + b"\n\n"

    async def _chunks(self) -> AsyncIterator[bytes]:
        if self.selects:
            async for _ in self.service.updates(self.ask):
                pass
            for index, reply in enumerate(self.selected()):
                text = self.shape.delta(reply.text, True)
                yield self._event([self._choice(index, reply, text, (0, len(reply.row.tokens)))])
            return
        index_of = {id(reply): index for index, reply in enumerate(self.selected())}
        sent: dict[int, int] = {}
        async for updates in self.service.updates(self.ask):
            choices = []
            for update in updates:
                index = index_of[id(update.reply)]
                text = self.shape.delta(update.text, index not in sent)
                begin, sent[index] = sent.get(index, 0), update.num_tokens
                choices.append((index, self._choice(index, update.reply, text, (begin, update.num_tokens))))
            for _, choice in sorted(choices, key=lambda pair: pair[0]):
                yield self._event([choice])

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        options = self.request.stream_options
        body: dict[str, Any] = {**self.head, "object": self.shape.chunk, "choices": choices}
        if options is not None and options.include_usage:
            body["usage"] = usage
        return f"data: {json.dumps(body, ensure_ascii=False)}\n\n".encode()


def openai_routes(service: Service) -> APIRouter:
    """The endpoints that OpenAI's clients use."""
    routes, prompts, settings = APIRouter(prefix="/v1"), service.prompts, service.settings

    @routes.post("/chat/completions", responses=_answers(ChatCompletion), response_model=None)
    async def chat(request: Request, body: ChatRequest) -> Any:
        """Replies to a conversation: n choices, each from another decoder."""
        if body.max_tokens is not None and body.max_completion_tokens is not None:
            raise ApiError(400, "give max_tokens or max_completion_tokens, not both", param="max_tokens")
        if body.top_logprobs is not None and not body.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
        system, turns = conversation(body.messages)
        if settings.log_texts:
            note(system=system, turns=turns)
        context_S = prompts.encode(turns, system=system, param="messages")
        longest = body.max_tokens or body.max_completion_tokens
        return await _respond(service, _CHAT, request, body, [context_S], longest, body.top_logprobs or 0, system)

    @routes.post("/completions", responses=_answers(Completion), response_model=None)
    async def completions(request: Request, body: CompletionRequest) -> Any:
        """Replies to single messages: for each prompt n choices, each from another decoder."""
        texts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
        prompts.check_contexts(len(texts), "prompt")
        if settings.log_texts:
            note(turns=texts)
        contexts = [prompts.encode([text], param="prompt") for text in texts]
        return await _respond(service, _PLAIN, request, body, contexts, body.max_tokens, body.logprobs or 0)

    @routes.get("/models", responses=_only(401))
    async def models() -> ModelList:
        """The model that is served."""
        return ModelList(data=[info])

    @routes.get("/models/{name:path}", responses=_only(401, 404))
    async def model(name: str) -> ModelInfo:
        """A model by its name."""
        service.check_model(name)
        return info

    info = model_info(service)
    return routes


def _only(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: ERRORS[status] for status in (400, *statuses)}


async def _respond(
    service: Service,
    shape: _Shape,
    request: Request,
    body: ChatRequest | CompletionRequest,
    contexts: Sequence[Any],
    max_tokens: int | None,
    num_alternatives: int,
    system: str = "",
) -> Any:
    service.check_model(body.model)
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options needs stream: true", param="stream_options")
    if any(not stop for stop in body.stops):
        raise ApiError(400, "expected stop sequences of at least one character", param="stop")
    prompts = service.prompts
    decoders, n = prompts.chosen_decoders(body.n, body.decoders)
    options = prompts.sampling(body.temperature, body.top_p)
    options["guidance_scale"] = body.guidance_scale
    decodings = [prompts.decoding(len(decoders), max_tokens, body.seed, options, system=system) for _ in contexts]
    longest = max(prompts.longest(one, len(context)) for one, context in zip(decodings, contexts, strict=True))
    prompts.check_lengths(n * len(contexts), longest, max(map(len, contexts)))
    jobs = [
        Job(context, decoders, decoding, num_alternatives=num_alternatives)
        for context, decoding in zip(contexts, decodings, strict=True)
    ]
    note(n=n, contexts=len(jobs), stream=bool(body.stream))
    ask = Ask(jobs, body.stops, is_live=bool(body.stream) and n == len(decoders))
    answer = _Answer(service, shape, body, ask, n)
    if body.stream:
        service.submit(ask)
        return StreamingResponse(answer.events(), media_type=EVENTS)
    await service.finish(request, ask)
    return answer.whole()


def model_info(service: Service) -> ModelInfo:
    """The model as `/v1/models` lists it."""
    polyreply = service.polyreply
    return ModelInfo(
        id=service.settings.name,
        created=service.created,
        num_decoders=polyreply.num_decoders,
        manners=polyreply.manners,
        decode=supported_ways(polyreply.model),
    )
