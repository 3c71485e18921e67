"""A tiny PolyReply: a tokenizer trained here and a model of the same vocabulary whose decoders say different things."""

from functools import cache

import torch
from transformers import GenerationConfig, T5Config, T5ForConditionalGeneration

from polyreply.data.tokenizer import train_tokenizer
from polyreply.models.model import PolyReplyModel
from polyreply.reply import PolyReply

SENTENCES = ["I finally passed my driving test!", "How are you today?", "What a lovely day it is.", "No way, really?"]


@cache
def tokenizer():
    return train_tokenizer(SENTENCES * 3, vocab_size=320)


def t5(seed=3):
    torch.manual_seed(seed)
    sizes = {"d_model": 12, "d_ff": 20, "d_kv": 4, "num_layers": 2, "num_heads": 3}
    return T5ForConditionalGeneration(T5Config(vocab_size=len(tokenizer()), decoder_start_token_id=0, **sizes)).eval()


def shaken(model, seed=5):
    """Weights large enough that outputs vary, and decoders that differ."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        for parameter in model.decoder_parameters():
            parameter.add_(torch.randn_like(parameter) * 0.6)
    return model


def pair(num_decoders=3, max_new_tokens=8, **settings):
    model = shaken(PolyReplyModel.from_backbone(t5(), num_decoders=num_decoders, **settings))
    ids = {"eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0}
    model.generation_config = GenerationConfig(max_new_tokens=max_new_tokens, **ids)
    return PolyReply(model, tokenizer())
