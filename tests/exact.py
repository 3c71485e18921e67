"""Checks that a model with K decoders computes exactly what the stock model does, once per decoder."""

import copy

import tiny
import torch

from polyreply.decoding.all_decoders import decode
from polyreply.decoding.settings import Decoding
from polyreply.models.model import PolyReplyModel
from polyreply.models.score import Samples, backward_nll, nll_NK


def loop_nll(model: PolyReplyModel, samples: Samples, k: int, row: int) -> torch.Tensor:
    """One sample under one decoder through the stock model, without padding: the sum of its token NLLs."""
    context = samples.context_NS[row][samples.context_mask_NS[row]][None]
    response = samples.response_NT[row][samples.response_mask_NT[row]][None]
    with model.as_decoder(k) as backbone:
        if model.family.encoder:
            logits = backbone(input_ids=context, labels=response).logits
        elif model.config.adapt == "everything":
            logits = backbone(torch.cat([context, response], 1)).logits[:, context.shape[1] - 1 : -1]
        else:
            # Adapters act from the invocation tokens on: the context before them is read first, without them.
            begin = context.shape[1] - model.config.num_invocation_tokens
            with model.routed(None):
                past = backbone(context[:, :begin], use_cache=True).past_key_values if begin else None
            logits = []
            for token in torch.cat([context[:, begin:], response[:, :-1]], 1).T:
                step = backbone(token[None], past_key_values=past, use_cache=True)
                past = step.past_key_values
                logits.append(step.logits)
            logits = torch.cat(logits[-response.shape[1] :], 1)
    return torch.nn.functional.cross_entropy(logits[0], response[0], reduction="sum")


def loop_nll_NK(model, samples):
    rows = [[loop_nll(model, samples, k, row) for k in range(model.num_decoders)] for row in range(len(samples))]
    return torch.stack([torch.stack(row) for row in rows])


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def shaken(model, size=0.4):
    """In float64, with decoders that differ."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.double().parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        for parameter in model.decoder_parameters():
            parameter.add_(torch.randn_like(parameter) * size)
    return model.eval()


def check_scores(model, samples=None):
    """Likelihoods and gradients of the decoders, against a loop through the stock model."""
    samples = samples or tiny.samples()
    for parameter in model.shared_parameters():
        parameter.requires_grad_(False)
    expected_nll = loop_nll_NK(model, samples)
    assert (expected_nll[:, 0] - expected_nll[:, 1]).abs().min() > 1e-3
    torch.testing.assert_close(nll_NK(model, samples), expected_nll.detach())
    weights = torch.rand(expected_nll.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (expected_nll * weights).sum().backward()
    expected = gradients(model)
    model.zero_grad(set_to_none=True)
    backward_nll(model, samples, weights)
    assert expected.keys() == gradients(model).keys() and expected
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-6, atol=1e-8, msg=name)


def check_replies(model, samples=None):
    """Greedy tokens against `generate`, once per decoder."""
    samples, config = samples or tiny.samples(), copy.deepcopy(model.generation_config)
    config.max_new_tokens = 8
    replies = decode(model, samples.context_NS, samples.context_mask_NS, Decoding.of(config, model.num_decoders))
    for row, responses in enumerate(replies):
        context = samples.context_NS[row][samples.context_mask_NS[row]][None]
        for k, response in enumerate(responses):
            with model.as_decoder(k) as backbone, torch.no_grad():
                tokens = backbone.generate(context, attention_mask=torch.ones_like(context), generation_config=config)
            start = 1 if model.family.encoder else context.shape[1]
            assert tokens[0, start:].tolist()[: len(response.tokens)] == response.tokens
    assert len({tuple(response.tokens) for row in replies for response in row}) > len(samples)
