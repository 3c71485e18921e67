"""`/v1/replies`: a batch of contexts, any way to decode, and for each reply its decoder, manner and log-probability."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request

from polyreply.decoding.continuous import Job
from polyreply.decoding.generate import SINGLE_DECODER_K, WAYS, GenerationOptions
from polyreply.decoding.mbr import SAMPLES
from polyreply.decoding.select import diverse_subset
from polyreply.reply import PolyReply, ReplyOptions
from polyreply.serve.engine import Ask, Work
from polyreply.serve.openai_api import ERRORS
from polyreply.serve.schema import ContextReplies, RepliesAnswer, RepliesRequest, Reply
from polyreply.serve.service import Service
from polyreply.web.errors import ApiError
from polyreply.web.logs import note


def replies_routes(service: Service) -> APIRouter:
    """The endpoint."""
    routes = APIRouter(prefix="/v1")

    @routes.post("/replies", responses=ERRORS)
    async def replies(request: Request, body: RepliesRequest) -> RepliesAnswer:
        """K replies to each context, by any way to decode."""
        service.check_model(body.model)
        service.prompts.check_contexts(len(body.contexts), "contexts")
        contexts = [(one,) if isinstance(one, str) else tuple(one) for one in body.contexts]
        note(decode=body.decode, contexts=len(contexts))
        if service.settings.log_texts:
            note(turns=contexts)
        if body.m is not None and body.k is not None and body.m > body.k:
            raise ApiError(400, f"m must be at most k, {body.k}", param="m")
        run = _continuous if body.decode == "decoders" else _one_by_one
        return await run(service, request, body, contexts)

    return routes


async def _continuous(
    service: Service, request: Request, body: RepliesRequest, contexts: Sequence[tuple[str, ...]]
) -> RepliesAnswer:
    """One reply of each decoder, in the batch that all requests share."""
    prompts, num_decoders = service.prompts, service.polyreply.num_decoders
    for name in ("samples", "beta", "num_groups", "diversity_penalty"):
        if getattr(body, name) is not None:
            raise ApiError(400, f"{name} has no effect with decode decoders; remove it", param=name)
    if body.decoders is not None and body.k is not None:
        raise ApiError(400, "give k or decoders, not both", param="k")
    if body.k is not None and body.k > num_decoders:
        raise ApiError(400, f"k must be at most {num_decoders}, the model's number of decoders", param="k")
    decoders = list(range(body.k or num_decoders)) if body.decoders is None else prompts.named_decoders(body.decoders)
    options = prompts.sampling(body.temperature, body.top_p, top_k=body.top_k, min_p=body.min_p)
    options["guidance_scale"] = body.guidance_scale
    jobs = []
    for place, turns in enumerate(contexts):
        context_S = prompts.encode(turns, param=f"contexts.{place}")
        decoding = prompts.decoding(len(decoders), body.max_tokens, body.seed, options)
        longest = prompts.longest(decoding, len(context_S))
        prompts.check_lengths(len(decoders) * len(contexts), longest, len(context_S))
        jobs.append(Job(context_S, decoders, decoding))
    ask = Ask(jobs)
    await service.finish(request, ask)
    results = []
    for place, texts in enumerate(ask.texts):
        replies = [
            Reply(
                text=one.text,
                logprob=one.row.logprob,
                decoder=one.row.decoder,
                manner=service.manner(one.row.decoder),
                rank=rank,
            )
            for rank, one in enumerate(texts)
        ]
        results.append(ContextReplies(context=place, replies=_most_different(replies, body.m)))
    generated = sum(len(row.tokens) for job in jobs for row in job.rows)
    usage = service.usage(sum(len(job.context_S) for job in jobs), generated, generated)
    return _answer(service, body, results, usage)


async def _one_by_one(
    service: Service, request: Request, body: RepliesRequest, contexts: Sequence[tuple[str, ...]]
) -> RepliesAnswer:
    """Any other way to decode: each context by itself, between the steps of the batch."""
    if body.decoders is not None:
        raise ApiError(400, f"decoders has no effect with decode {body.decode}; remove it", param="decoders")
    if body.temperature is not None:
        raise ApiError(400, f"temperature has no effect with decode {body.decode}; remove it", param="temperature")
    prompts, of_decoders = service.prompts, WAYS[body.decode].of_decoders
    default = service.polyreply.num_decoders if of_decoders else SINGLE_DECODER_K
    k = default if body.k is None else body.k
    options: GenerationOptions = {
        "guidance_scale": body.guidance_scale,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "min_p": body.min_p,
        "samples": body.samples,
        "beta": body.beta,
        "num_groups": body.num_groups,
        "diversity_penalty": body.diversity_penalty,
    }
    lengths = []
    for place, turns in enumerate(contexts):
        context_S = prompts.encode(turns, param=f"contexts.{place}")
        lengths.append(len(context_S))
        rows = k * len(contexts) * ((body.samples or SAMPLES) + 1 if body.decode == "mbr" else 1)
        decoding = prompts.decoding(k, body.max_tokens, body.seed, options, body.decode)
        prompts.check_lengths(rows, prompts.longest(decoding, len(context_S)), len(context_S), "k")
    own: ReplyOptions = {"decode": body.decode, "k": k, "seed": body.seed, "max_new_tokens": body.max_tokens}
    given: ReplyOptions = {**own, **options}
    ask = Ask(works=[_work(turns, given) for turns in contexts])
    await service.finish(request, ask)
    results = []
    for place, found in enumerate(ask.results):
        replies = [
            Reply(
                text=one.text,
                logprob=one.logprob,
                decoder=one.decoder if of_decoders else None,
                manner=service.manner(one.decoder) if of_decoders else None,
                rank=rank,
            )
            for rank, one in enumerate(found)
        ]
        results.append(ContextReplies(context=place, replies=_most_different(replies, body.m)))
    tokenizer = service.polyreply.tokenizer
    texts = [reply.text for result in results for reply in result.replies]
    generated = sum(len(ids) for ids in tokenizer(texts, add_special_tokens=True)["input_ids"])
    return _answer(service, body, results, service.usage(sum(lengths), generated, generated))


def _work(turns: tuple[str, ...], options: ReplyOptions) -> Work:
    def work(polyreply: PolyReply) -> Any:
        return polyreply.reply(turns, **options)

    return work


def _answer(service: Service, body: RepliesRequest, results: list[ContextReplies], usage: Any) -> RepliesAnswer:
    if service.settings.log_texts:
        note(replies=[[reply.text for reply in result.replies] for result in results])
    return RepliesAnswer(model=service.settings.name, decode=body.decode, results=results, usage=usage)


def _most_different(replies: list[Reply], m: int | None) -> list[Reply]:
    """The m most different replies, in the order of their ranks."""
    if m is None:
        return replies
    places = diverse_subset([one.text for one in replies], m, logprobs=[one.logprob for one in replies])
    return [replies[place] for place in sorted(places)]
