"""`beam`, `nucleus`, `top-k` and `min-p`: replies of the single-decoder model, through Transformers' own `generate`.

The single-decoder model is that of stage 1: the shared weights of a K-decoder model with its adapters off, or with
stage 1's own adapter.

Legend: B contexts, S context tokens, k responses for each, R rows (response, context), T response tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList
from transformers.modeling_outputs import BaseModelOutput

from polyreply.decoding.settings import Decoding, Response, Sampling, by_length, pad_left, prompt_length
from polyreply.errors import PolyReplyError
from polyreply.models.memory import Memory
from polyreply.models.model import PolyReplyModel
from polyreply.models.rows import Rows
from polyreply.models.score import Limits, token_nll

TOP_P, TOP_K, MIN_P = 0.95, 50, 0.1


@torch.no_grad()
def beam(model: PolyReplyModel, context_BS: Tensor, mask_BS: Tensor, decoding: Decoding) -> list[list[Response]]:
    """For each context the k hypotheses of beam search with k beams, best (log-probability per token) first.

    Constraints, lengths and `early_stopping` of the request are honoured. `Response.decoder` is the rank.
    """
    check_single_decoder(model)
    search = {"num_beams": decoding.k, "do_sample": False, "early_stopping": decoding.config.early_stopping or False}

    def run(context_BS: Tensor, mask_BS: Tensor) -> list[list[Response]]:
        return _generate(model, context_BS, mask_BS, replace(decoding, sampling=None), search)

    return by_length(model, context_BS, mask_BS, decoding, run)


@torch.no_grad()
def nucleus(model: PolyReplyModel, context_BS: Tensor, mask_BS: Tensor, decoding: Decoding) -> list[list[Response]]:
    """For each context k samples from the nucleus: the likeliest tokens that together have probability `top_p`."""
    sampling = nucleus_sampling(TOP_P if decoding.top_p is None else decoding.top_p)
    return _sample(model, context_BS, mask_BS, replace(decoding, sampling=sampling))


@torch.no_grad()
def top_k(model: PolyReplyModel, context_BS: Tensor, mask_BS: Tensor, decoding: Decoding) -> list[list[Response]]:
    """For each context k samples from the `top_k` likeliest tokens."""
    largest = TOP_K if decoding.top_k is None else decoding.top_k
    if largest < 1:
        raise PolyReplyError(f"top_k must be 1 or more, found {largest}")
    return _sample(model, context_BS, mask_BS, replace(decoding, sampling=Sampling(top_k=largest)))


@torch.no_grad()
def min_p(model: PolyReplyModel, context_BS: Tensor, mask_BS: Tensor, decoding: Decoding) -> list[list[Response]]:
    """For each context k samples from the tokens at least `min_p` times as probable as the likeliest one.

    The set is small where the model is sure and large where it is not (Nguyen et al., 2024).
    """
    least = MIN_P if decoding.min_p is None else decoding.min_p
    if not 0 < least <= 1:
        raise PolyReplyError(f"min_p must be above 0 and at most 1, found {least}")
    return _sample(model, context_BS, mask_BS, replace(decoding, sampling=Sampling(min_p=least)))


def _sample(model: PolyReplyModel, context_BS: Tensor, mask_BS: Tensor, decoding: Decoding) -> list[list[Response]]:
    """For each context k samples; `Response.decoder` is the sample's number.

    Constraints and lengths of the request are honoured. Its generator decides what is drawn, and PyTorch's own random
    state is left unchanged; without a generator one number is drawn from that state, and decides.
    """
    check_single_decoder(model)
    pure = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}  # `sampling` is among the processors

    def run(context_BS: Tensor, mask_BS: Tensor) -> list[list[Response]]:
        return _generate(model, context_BS, mask_BS, decoding, pure)

    device = decoding.generator.device if decoding.generator is not None else None
    seed = int(torch.randint(2**62, (), generator=decoding.generator, device=device))
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        return by_length(model, context_BS, mask_BS, decoding, run)


def nucleus_sampling(top_p: float) -> Sampling:
    """Pure nucleus sampling; raises unless `top_p` is a probability above 0."""
    if not 0 < top_p <= 1:
        raise PolyReplyError(f"top_p must be above 0 and at most 1, found {top_p}")
    return Sampling(top_p=top_p)


def check_single_decoder(model: PolyReplyModel) -> None:
    """Raise unless switching the adapters off gives the model of stage 1."""
    found = ""
    if model.extra_decoders:
        found = f"{model.num_decoders} full decoders (multi-decoder), none of them stage 1's"
    elif model.config.shared_weights_changed:
        found = "shared weights that stage 2 changed"
    if found:
        raise PolyReplyError(
            "beam, nucleus, top-k, min-p and diverse-beam expected the stage-1 weights with adapters off, found "
            f"{found}; use the model folder of stage 1, or decode with decoders"
        )


def _generate(
    model: PolyReplyModel, context_BS: Tensor, mask_BS: Tensor, decoding: Decoding, method: dict[str, Any]
) -> list[list[Response]]:
    """k responses for each context by `generate`, with the log-probabilities that the model gives them."""
    memory, length, k = model.encode(context_BS, mask_BS), prompt_length(model, context_BS), decoding.k
    pad = _padding_token(model, decoding)
    inputs: dict[str, Any] = {"attention_mask": memory.mask_BS.long()}
    ids: dict[str, Any] = {"eos_token_id": list(decoding.eos_ids) or None, "pad_token_id": pad}
    if model.family.encoder:
        states_BSD: Any = memory.states_BSD
        inputs["encoder_outputs"] = BaseModelOutput(last_hidden_state=states_BSD)
        ids["decoder_start_token_id"] = int(model.first_tokens(Rows.grid(1, [0], context_BS.device), memory)[0, 0])
    else:
        inputs["input_ids"], mask_BS = pad_left(context_BS, mask_BS, pad)
        inputs["attention_mask"] = mask_BS.long()
    longest = decoding.max_new_tokens(length)
    options = GenerationConfig(max_new_tokens=longest, num_return_sequences=k, **ids, **method)
    warpers = decoding.sampling.warpers if decoding.sampling is not None else []
    processors = LogitsProcessorList([*decoding.constraints(length, model.device), *warpers])
    with model.as_decoder(None) as backbone, without_own_settings(backbone):
        tokens_RT = backbone.generate(**inputs, generation_config=options, logits_processor=processors)
    new = tokens_RT[:, length:].tolist()
    tokens = [[_to_end(row, decoding.eos_ids) for row in new[b * k : (b + 1) * k]] for b in range(len(memory))]
    logprobs = _logprobs(model, memory, tokens)
    return [[Response(b, i, tokens[b][i], logprobs[b][i]) for i in range(k)] for b in range(len(memory))]


def _padding_token(model: PolyReplyModel, decoding: Decoding) -> int:
    """The pad token, or EOS in a model without one: masks decide what is padding."""
    configs = (decoding.config, model.backbone.generation_config, model.backbone.config)
    tokens = (*(config.pad_token_id for config in configs), *decoding.eos_ids)
    return next((int(token) for token in tokens if token is not None), 0)


@contextmanager
def without_own_settings(backbone: Any) -> Iterator[None]:
    """Keep `generate` from filling what a config leaves open from the model's own generation config."""
    own, backbone.generation_config = backbone.generation_config, GenerationConfig()
    try:
        yield
    finally:
        backbone.generation_config = own


def _to_end(tokens: list[int], eos_ids: tuple[int, ...]) -> list[int]:
    """The tokens up to and including the first EOS."""
    end = next((place for place, token in enumerate(tokens) if token in eos_ids), len(tokens))
    return tokens[: end + 1]


def _logprobs(model: PolyReplyModel, memory: Memory, tokens: list[list[list[int]]]) -> list[list[float]]:
    """log p(response | context) of the single-decoder model, for the k responses of every context."""
    longest = max(len(response) for responses in tokens for response in responses)
    slots_at_once = max(1, Limits().max_tokens // (len(memory) * longest))
    totals: list[Tensor] = []
    for begin in range(0, len(tokens[0]), slots_at_once):
        slots = range(begin, min(begin + slots_at_once, len(tokens[0])))
        flat = [torch.tensor(responses[slot]) for slot in slots for responses in tokens]
        target_RT = torch.nn.utils.rnn.pad_sequence(flat, True, -1).to(memory.mask_BS.device)
        rows = Rows.grid(len(memory), range(len(slots)), target_RT.device)
        nll_RT = token_nll(model, memory, rows, target_RT.clamp(min=0), target_RT >= 0, single=True)
        totals += (-nll_RT.double().sum(1)).view(len(slots), -1)
    by_context: list[list[float]] = torch.stack(totals, 1).tolist()
    return by_context
