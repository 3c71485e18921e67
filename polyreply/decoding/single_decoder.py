"""`beam` and `nucleus`: what the single-decoder model says, through Transformers' own `generate`.

The single-decoder model is the shared weights of a K-decoder model with its adapters off, as stage 1 left them.

Legend: B contexts, S context tokens, k responses for each, R rows (response, context), T response tokens, P positions,
D model size, V vocabulary.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList
from transformers.modeling_outputs import BaseModelOutput

from polyreply.decoding.batching import in_parts, pad_left, prompt_length
from polyreply.decoding.response import Response
from polyreply.decoding.settings import Decoding, decoding_of
from polyreply.errors import PolyReplyError
from polyreply.models.memory import Memory
from polyreply.models.polyreply_model import PolyReplyModel
from polyreply.models.rows import Rows
from polyreply.models.score import Limits, wide

TOP_P = 0.95


@torch.no_grad()
def beam(
    model: PolyReplyModel, context_BS: Tensor, mask_BS: Tensor, k: int, config: GenerationConfig | None = None
) -> list[list[Response]]:
    """For each context the k hypotheses of beam search with k beams, best (log-probability per token) first.

    The config's constraints, lengths and `early_stopping` are honoured. `Response.decoder` is the place in the beam.
    """
    check_single_decoder(model, k)
    config = searched(model, config)
    how = {"num_beams": k, "do_sample": False, "early_stopping": config.early_stopping or False}

    def part(context_BS: Tensor, mask_BS: Tensor) -> list[list[Response]]:
        settings = decoding_of(config, prompt_length(model, context_BS), model.device)
        return _generate(model, context_BS, mask_BS, k, settings, config, how)

    return in_parts(model, context_BS, mask_BS, config, part)


@torch.no_grad()
def nucleus(
    model: PolyReplyModel,
    context_BS: Tensor,
    mask_BS: Tensor,
    k: int,
    config: GenerationConfig | None = None,
    *,
    top_p: float = TOP_P,
    generator: torch.Generator | None = None,
) -> list[list[Response]]:
    """For each context k samples from the nucleus: the likeliest tokens that together have probability `top_p`.

    Temperature 1 and no top-k. The config's constraints and lengths are honoured; `Response.decoder` is the sample's
    number. The generator decides what is drawn and PyTorch's own random state stays as it is; without a generator one
    number is drawn from that state, and decides.
    """
    check_single_decoder(model, k)
    config = sampled(model, config, top_p)
    how = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}  # settings.warpers hold the nucleus

    def part(context_BS: Tensor, mask_BS: Tensor) -> list[list[Response]]:
        settings = decoding_of(config, prompt_length(model, context_BS), model.device)
        return _generate(model, context_BS, mask_BS, k, settings, config, how)

    device = generator.device if generator is not None else None
    seed = int(torch.randint(2**62, (), generator=generator, device=device))
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        return in_parts(model, context_BS, mask_BS, config, part)


def check_single_decoder(model: PolyReplyModel, k: int) -> None:
    """Raises unless switching the adapters off gives the model of stage 1."""
    if k < 1:
        raise PolyReplyError(f"k must be 1 or more, found {k}")
    found = ""
    if model.extra_decoders:
        found = f"{model.num_decoders} full decoders (multi-decoder), none of them stage 1's"
    elif model.config.shared_weights_changed:
        found = "shared weights that stage 2 changed"
    if found:
        raise PolyReplyError(
            f"beam, nucleus and diverse-beam expected the stage-1 weights with adapters off, found {found}; "
            "use the model folder of stage 1, or decode with decoders"
        )


def searched(model: PolyReplyModel, config: GenerationConfig | None) -> GenerationConfig:
    """A config for beam search; sampling settings that come from the model are left aside, the user's are an error."""
    own = model.backbone.generation_config
    made = copy.deepcopy(config or own)
    if made.do_sample and not own.do_sample:
        raise PolyReplyError("beam search does not sample, found do_sample=True; remove it or use nucleus")
    made.do_sample = False
    return made


def sampled(model: PolyReplyModel, config: GenerationConfig | None, top_p: float) -> GenerationConfig:
    """A config for pure nucleus sampling, with the same rule."""
    if not 0 < top_p <= 1:
        raise PolyReplyError(f"top_p must be above 0 and at most 1, found {top_p}")
    own = model.backbone.generation_config
    made = copy.deepcopy(config or own)
    for name, pure in (("temperature", 1.0), ("top_k", 0), ("top_p", top_p)):
        found = getattr(made, name)
        if found not in (None, pure, getattr(own, name)):
            raise PolyReplyError(
                f"nucleus samples with temperature 1, top_k off and top_p {top_p}, found {name}={found}; "
                "remove it (top_p is an argument of nucleus)"
            )
    made.do_sample, made.temperature, made.top_k, made.top_p = True, None, None, top_p
    return made


def padding_token(model: PolyReplyModel, config: GenerationConfig, eos_ids: tuple[int, ...]) -> int:
    """The pad token, or EOS in a model without one: masks decide what is padding."""
    found = (config.pad_token_id, model.backbone.generation_config.pad_token_id, model.backbone.config.pad_token_id)
    return next((int(token) for token in (*found, *eos_ids) if token is not None), 0)


def _generate(
    model: PolyReplyModel,
    context_BS: Tensor,
    mask_BS: Tensor,
    k: int,
    settings: Decoding,
    config: GenerationConfig,
    how: dict[str, Any],
) -> list[list[Response]]:
    """k responses for each context by `generate`, with the log-probabilities the model gives them."""
    memory = model.encode(context_BS, mask_BS)
    pad = padding_token(model, config, settings.eos_ids)
    inputs: dict[str, Any] = {"attention_mask": memory.mask_BS.long()}
    ids: dict[str, Any] = {"eos_token_id": list(settings.eos_ids) or None, "pad_token_id": pad}
    if model.family.encoder:
        states_BSD: Any = memory.states_BSD
        inputs["encoder_outputs"] = BaseModelOutput(last_hidden_state=states_BSD)
        ids["decoder_start_token_id"] = int(model.first_tokens(Rows.grid(1, [0], context_BS.device), memory)[0])
    else:
        inputs["input_ids"], mask_BS = pad_left(context_BS, mask_BS, pad)
        inputs["attention_mask"] = mask_BS.long()
    options = GenerationConfig(max_new_tokens=settings.max_new_tokens, num_return_sequences=k, **ids, **how)
    processors = LogitsProcessorList([*settings.processors, *settings.warpers])
    with model.routed(None), _without_own_settings(model.backbone):
        found_RT = model.backbone.generate(**inputs, generation_config=options, logits_processor=processors)
    new = found_RT[:, prompt_length(model, context_BS) :].tolist()
    tokens = [[_to_end(row, settings.eos_ids) for row in new[b * k : (b + 1) * k]] for b in range(len(memory))]
    logprobs = _logprobs(model, memory, tokens)
    return [[Response(b, i, tokens[b][i], logprobs[b][i]) for i in range(k)] for b in range(len(memory))]


@contextmanager
def _without_own_settings(backbone: Any) -> Iterator[None]:
    """Within it `generate` does not fill what a config leaves open from the model's own generation config."""
    own, backbone.generation_config = backbone.generation_config, GenerationConfig()
    try:
        yield
    finally:
        backbone.generation_config = own


def _to_end(tokens: list[int], eos_ids: tuple[int, ...]) -> list[int]:
    """The tokens up to the first EOS, with it."""
    end = next((place for place, token in enumerate(tokens) if token in eos_ids), len(tokens))
    return tokens[: end + 1]


def _logprobs(model: PolyReplyModel, memory: Memory, tokens: list[list[list[int]]]) -> list[list[float]]:
    """log p(response | context) with adapters off, for the k responses of every context; memory as in scoring."""
    longest = max(len(found) for responses in tokens for found in responses)
    together = max(1, Limits().max_tokens // (len(memory) * longest))
    totals: list[Tensor] = []
    for begin in range(0, len(tokens[0]), together):
        slots = range(begin, min(begin + together, len(tokens[0])))
        flat = [torch.tensor(responses[slot]) for slot in slots for responses in tokens]
        target_RT = torch.nn.utils.rnn.pad_sequence(flat, True, -1).to(memory.mask_BS.device)
        totals += _logprob_R(model, memory, target_RT, len(slots)).view(len(slots), -1)
    by_context: list[list[float]] = torch.stack(totals, 1).tolist()
    return by_context


def _logprob_R(model: PolyReplyModel, memory: Memory, target_RT: Tensor, num_slots: int) -> Tensor:
    """The same for rows (response, context), padded with -1, in float64."""
    mask_RT = target_RT >= 0
    rows = Rows.grid(len(memory), range(num_slots), target_RT.device)
    states_RTD = model.states(model.shift(target_RT.clamp(min=0), rows, memory), rows, memory, adapters=False)
    states_PD, target_P = states_RTD[mask_RT], target_RT[mask_RT]
    size = max(1, Limits().max_logits // model.backbone.get_output_embeddings().weight.shape[0])
    nll_P = torch.cat(
        [
            torch.nn.functional.cross_entropy(wide(model.logits(states)), target, reduction="none")
            for states, target in zip(states_PD.split(size), target_P.split(size), strict=True)
        ]
    ).double()
    return -nll_P.new_zeros(mask_RT.shape).masked_scatter(mask_RT, nll_P).sum(1)
