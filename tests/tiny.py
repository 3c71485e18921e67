"""Tiny models with random weights, one for each architecture, shared by the tests."""

import copy
from dataclasses import replace
from functools import cache

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from polyreply.decoding.settings import Decoding
from polyreply.models.model import PolyReplyModel
from polyreply.models.score import Samples

VOCABULARY = 53
PAD, EOS = 0, 1


def _t5():
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCABULARY, d_model=12, d_ff=20, d_kv=4, num_layers=2, num_heads=3, decoder_start_token_id=PAD
        )
    )


def _flan_t5():
    sizes = {"d_model": 12, "d_ff": 20, "d_kv": 5, "num_layers": 2, "num_heads": 3, "decoder_start_token_id": PAD}
    return T5ForConditionalGeneration(T5Config(vocab_size=VOCABULARY, feed_forward_proj="gated-gelu", **sizes))


def _bart():
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 3, "decoder_attention_heads": 3}
    ids = {"pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": 2, "decoder_start_token_id": EOS}
    config = BartConfig(
        vocab_size=VOCABULARY,
        d_model=12,
        encoder_ffn_dim=20,
        decoder_ffn_dim=20,
        max_position_embeddings=64,
        forced_eos_token_id=None,
        **sizes,
        **ids,
    )
    return BartForConditionalGeneration(config)


def _gpt2():  # no pad token, as in the real one
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=12, n_layer=2, n_head=3, n_positions=64, eos_token_id=EOS, bos_token_id=EOS
    )
    return GPT2LMHeadModel(config)


def _llama():
    sizes = {"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(
        vocab_size=VOCABULARY, num_key_value_heads=2, pad_token_id=PAD, eos_token_id=EOS, bos_token_id=2, **sizes
    )
    return LlamaForCausalLM(config)


def _causal(model_type, **sizes):
    """Any decoder-only architecture of Transformers by its name, with the sizes of the tiny Llama."""
    common = {"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": 2}
    config = AutoConfig.for_model(model_type, vocab_size=VOCABULARY, **common, **ids, **sizes)
    return AutoModelForCausalLM.from_config(config)


FURTHER = {
    "mistral": {"num_key_value_heads": 2, "sliding_window": 4},
    "qwen2": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 4},
    "smollm3": {"num_key_value_heads": 2},
    "gemma3_text": {"num_key_value_heads": 2, "head_dim": 4, "sliding_window": 4, "query_pre_attn_scalar": 4},
    "granite": {
        "num_key_value_heads": 2,
        "logits_scaling": 3.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.3,
    },
    "olmo": {"num_key_value_heads": 2, "clip_qkv": 2.0},
    "olmo2": {"num_key_value_heads": 2},
    "olmo3": {"num_key_value_heads": 2, "sliding_window": 4},
    "phi": {"num_key_value_heads": 4},
    "phi3": {"num_key_value_heads": 2},
}
"""The other decoder-only architectures, with what makes each of them differ."""

BACKBONES = {"t5": _t5, "bart": _bart, "gpt2": _gpt2, "llama": _llama}
ENCODER_DECODER = ("t5", "bart")
LORA = {"adapter": "lora", "lora": {"rank": 2}}
EVERYTHING = {**LORA, "adapt": "everything"}
VARIANTS = [
    *((name, {}) for name in BACKBONES),
    *((name, LORA) for name in BACKBONES),
    *((name, EVERYTHING) for name in BACKBONES),
    ("t5", {"adapt": "everything"}),
    ("llama", {"adapt": "everything"}),
    ("flan-t5", {}),
    ("t5", {"adapter_sites": "layer"}),
    ("llama", {"adapter_sites": "layer"}),
    ("t5", {"adapter_skip": False, "adapter_init": "linear"}),
    ("llama", {"adapter_skip": False, "adapter_init": "linear"}),
    ("t5", {"architecture": "multi-decoder"}),
    ("bart", {"architecture": "multi-decoder"}),
    ("t5", {"architecture": "multi-decoder", "copy_embeddings": True}),
]


@cache
def backbone(name):
    torch.manual_seed(7)
    if name in FURTHER:
        return _causal(name, **FURTHER[name]).eval()
    return {**BACKBONES, "flan-t5": _flan_t5}[name]().eval()


def model(name="t5", num_decoders=3, dtype=torch.float64, spread=0.6, **settings):
    """A K-decoder model whose decoders really differ, with weights large enough that outputs vary."""
    stock = backbone(name)  # made first: it seeds too, but only once
    torch.manual_seed(11)
    made = PolyReplyModel.from_backbone(copy.deepcopy(stock), num_decoders=num_decoders, **settings)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        for parameter in made.decoder_parameters():
            parameter.add_(torch.randn_like(parameter) * spread)
    return made.to(dtype).eval()


def samples(seed=0, lengths=((7, 5), (3, 9), (5, 1), (1, 4), (6, 6))):
    """Ragged contexts and responses; every response ends in EOS."""
    generator = torch.Generator().manual_seed(seed)
    longest_context, longest_response = (max(column) for column in zip(*lengths, strict=True))
    context = torch.randint(3, VOCABULARY, (len(lengths), longest_context), generator=generator)
    response = torch.randint(3, VOCABULARY, (len(lengths), longest_response), generator=generator)
    context_mask = torch.arange(longest_context) < torch.tensor([[a] for a, _ in lengths])
    response_mask = torch.arange(longest_response) < torch.tensor([[b] for _, b in lengths])
    for row, (_, length) in enumerate(lengths):
        response[row, length - 1] = EOS
    return Samples(
        context.masked_fill(~context_mask, PAD), context_mask, response.masked_fill(~response_mask, PAD), response_mask
    )


def request(config, k=3, seed=None, **options):
    """A checked request from a GenerationConfig, for the functions of the ways to decode."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return replace(Decoding.of(config, k, generator), **options)
