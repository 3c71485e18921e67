"""Scoring against a plain loop over samples and decoders on the stock model."""

import pytest
import tiny
import torch
from exact import gradients, loop_nll_NK
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from transformers.pytorch_utils import Conv1D

from polyreply.models import packed
from polyreply.models.score import _CHUNK_COST, Limits, Samples, backward_nll, chunks, nll_NK
from polyreply.precision import computing_in

IDS = [f"{name}-{'-'.join(map(str, settings.values()))}" for name, settings in tiny.VARIANTS]
SMALL = Limits(max_tokens=20, max_logits=3 * tiny.VOCABULARY)


@pytest.mark.parametrize("name, settings", tiny.VARIANTS, ids=IDS)
@pytest.mark.parametrize("limits", [Limits(), SMALL], ids=["one chunk", "many chunks"])
def test_all_decoders_at_once_equal_a_loop(name, settings, limits):
    model, samples = tiny.model(name, **settings), tiny.samples()
    with torch.no_grad():
        expected = loop_nll_NK(model, samples)
    found = nll_NK(model, samples, limits=limits)
    torch.testing.assert_close(found, expected)
    assert (expected[:, 0] - expected[:, 1]).abs().min() > 1e-3, "the decoders do not differ, so the test shows nothing"
    mean = nll_NK(model, samples, reduce="mean", limits=limits)
    torch.testing.assert_close(mean, found / samples.response_mask_NT.sum(1, keepdim=True))


@pytest.mark.parametrize("name", tiny.BACKBONES)
def test_left_padding_and_the_content_of_padding_change_nothing(name):
    model, samples = tiny.model(name), tiny.samples()
    expected = nll_NK(model, samples)
    flipped = Samples(
        samples.context_NS.clone(), samples.context_mask_NS, samples.response_NT.clone(), samples.response_mask_NT
    )
    flipped.context_NS[~samples.context_mask_NS] = 9
    flipped.response_NT[~samples.response_mask_NT] = 9
    torch.testing.assert_close(nll_NK(model, flipped), expected)
    order = torch.argsort(samples.context_mask_NS.long(), dim=1, stable=True)
    left = Samples(samples.context_NS.gather(1, order), samples.context_mask_NS.gather(1, order), *_responses(samples))
    assert not left.context_mask_NS[1, 0]
    torch.testing.assert_close(nll_NK(model, left), expected)


def _responses(samples):
    return samples.response_NT, samples.response_mask_NT


@pytest.mark.parametrize("name", tiny.BACKBONES)
def test_some_decoders_and_one_sample(name):
    model, samples = tiny.model(name), tiny.samples()
    whole = nll_NK(model, samples)
    torch.testing.assert_close(nll_NK(model, samples, decoders=[2, 0]), whole[:, [2, 0]])
    torch.testing.assert_close(nll_NK(model, samples.select(torch.tensor([1]))), whole[[1]])


@pytest.mark.parametrize("name, settings", tiny.VARIANTS, ids=IDS)
@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "all trained"])
def test_gradients_equal_those_of_a_loop(name, settings, reduce, frozen):
    model, samples = tiny.model(name, **settings), tiny.samples()
    for parameter in model.shared_parameters():
        parameter.requires_grad_(not frozen)
    weights = torch.rand(
        len(samples), model.num_decoders, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    weights[weights < 0.5] = 0
    weights[:, 1] = 0
    lengths = samples.response_mask_NT.sum(1, keepdim=True)
    expected_nll = loop_nll_NK(model, samples) / (lengths if reduce == "mean" else 1)
    (expected_nll * weights).sum().backward()
    expected = gradients(model)
    model.zero_grad(set_to_none=True)
    found_nll = backward_nll(model, samples, weights, reduce=reduce, limits=SMALL)
    found = gradients(model)
    torch.testing.assert_close(found_nll, expected_nll.detach() * (weights > 0))
    assert set(found) <= set(expected)
    assert any(gradient.abs().max() > 1e-3 for gradient in found.values())
    for key, gradient in expected.items():
        torch.testing.assert_close(found.get(key, torch.zeros_like(gradient)), gradient, rtol=1e-6, atol=1e-8, msg=key)


def with_repeated_contexts(samples):
    """The same responses, to two of the contexts in turn."""
    index = torch.arange(len(samples)) % 2
    return Samples(samples.context_NS[index], samples.context_mask_NS[index], *_responses(samples))


@pytest.mark.parametrize("name, settings", tiny.VARIANTS, ids=IDS)
def test_samples_that_share_a_context_equal_a_loop(name, settings):
    model, samples = tiny.model(name, **settings), with_repeated_contexts(tiny.samples())
    weights = torch.rand(len(samples), model.num_decoders, dtype=torch.float64)
    expected = loop_nll_NK(model, samples)
    for limits in (Limits(), SMALL):
        torch.testing.assert_close(nll_NK(model, samples, limits=limits), expected.detach())
    (expected * weights).sum().backward()
    expected_gradients = gradients(model)
    model.zero_grad(set_to_none=True)
    torch.testing.assert_close(backward_nll(model, samples, weights, limits=SMALL), expected.detach())
    for key, gradient in gradients(model).items():  # norms of T5 and Llama compute in float32
        torch.testing.assert_close(gradient, expected_gradients[key], rtol=1e-4, atol=1e-5, msg=key)


@pytest.mark.parametrize("name", ["t5", "llama"])
def test_a_context_that_samples_share_is_read_once(name):
    model, samples = tiny.model(name), with_repeated_contexts(tiny.samples())
    first_U, context_N = samples.different_contexts()
    assert first_U.tolist() == [0, 1] and context_N.tolist() == [n % 2 for n in range(len(samples))]
    read, encode = [], model.encode
    model.encode = lambda context, mask, rows=None: read.append(len(context)) or encode(context, mask, rows)
    nll_NK(model, samples, limits=SMALL)
    backward_nll(model, samples, torch.ones(len(samples), model.num_decoders), limits=SMALL)
    assert sum(read) <= 2 * 2 + 2, "at most one context more where chunks of contexts meet"


def test_memory_is_bounded_by_the_limits():
    """No piece of logits is larger than the setting, whatever N and K are."""
    model, samples = tiny.model("t5", num_decoders=6), tiny.samples(lengths=tuple((4, 1 + n % 9) for n in range(40)))
    seen, tokens = [], []
    head = model.backbone.get_output_embeddings()
    handles = [
        head.register_forward_hook(lambda module, arguments, output: seen.append(output.numel())),
        model.decoders[0].register_forward_hook(
            lambda module, arguments, output: tokens.append(output[0].shape[:2].numel())
        ),
    ]
    limits = Limits(max_tokens=200, max_logits=7 * tiny.VOCABULARY)
    found = nll_NK(model, samples, limits=limits)
    for handle in handles:
        handle.remove()
    assert max(seen) <= limits.max_logits and max(tokens) <= limits.max_tokens
    assert sum(seen) == 6 * int(samples.response_mask_NT.sum()) * tiny.VOCABULARY, "padding reached the vocabulary"
    torch.testing.assert_close(found, nll_NK(model, samples))


@pytest.mark.parametrize("name", ["t5", "llama"])
def test_max_activations_bounds_the_tokens_of_a_backward_pass_and_changes_no_update(name):
    model = tiny.model(name, num_decoders=4)
    for parameter in model.shared_parameters():
        parameter.requires_grad_(False)
    samples = tiny.samples(lengths=tuple((4, 1 + n % 9) for n in range(40)))
    weights = torch.ones(len(samples), 4, dtype=torch.float64)
    most, updates = [], []
    for limits in (Limits(), Limits(max_activations=30 * model.numbers_per_token)):
        tokens = []
        hook = model.sites[0].register_forward_hook(
            lambda module, arguments, output, seen=tokens: seen.append(
                (output[0] if isinstance(output, tuple) else output).shape[:2].numel() * torch.is_grad_enabled()
            )
        )
        backward_nll(model, samples, weights, limits=limits)
        hook.remove()
        most.append(max(tokens))
        updates.append(gradients(model))
        model.zero_grad(set_to_none=True)
    assert most[1] <= 30 < most[0]
    for key, gradient in updates[0].items():
        torch.testing.assert_close(updates[1][key], gradient, rtol=1e-6, atol=1e-8, msg=key)


def test_the_encoder_and_cross_attention_keys_run_once_for_all_decoders():
    model, samples = tiny.model("t5", num_decoders=5), tiny.samples()
    rows = []
    keys = model.backbone.decoder.block[0].layer[1].EncDecAttention.k
    handles = [
        m.register_forward_hook(lambda m, a, out: rows.append(out.shape[0]))
        for m in (keys, model.backbone.encoder.block[0].layer[0].SelfAttention.q)
    ]
    nll_NK(model, samples)
    for handle in handles:
        handle.remove()
    assert rows == [len(samples)] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_likelihoods_are_summed_in_float32(dtype):
    model, samples = tiny.model("t5", dtype=dtype), tiny.samples()
    found = nll_NK(model, samples)
    exact = nll_NK(tiny.model("t5"), samples).float()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact, rtol=1e-5 if dtype == torch.float32 else 0.1, atol=1e-4)


@example(lengths=[9] + [8] * 8, max_tokens=60, rows=1)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=2, max_size=9), max_tokens=st.integers(20, 60), rows=st.integers(1, 3)
)
def test_chunks_are_the_cheapest_cuts_within_the_limit(lengths, max_tokens, rows):
    found = chunks(torch.tensor(lengths), max_tokens, rows)
    assert torch.equal(torch.cat(found).sort()[0], torch.arange(len(lengths)))
    ordered, fixed = sorted(lengths, reverse=True), max(1, int(_CHUNK_COST * max_tokens))

    def cost(sizes):
        total, begin = 0, 0
        for size in sizes:
            tokens = ordered[begin] * rows * size
            total, begin = total + fixed + (tokens if tokens <= max_tokens or size == 1 else 10**6), begin + size
        return total

    def cuts(number):
        if not number:
            yield []
        yield from ([first, *rest] for first in range(1, number + 1) for rest in cuts(number - first))

    assert [lengths[place] for index in found for place in index.tolist()] == ordered
    assert cost([len(index) for index in found]) == min(map(cost, cuts(len(lengths))))


@pytest.mark.parametrize("name", tiny.BACKBONES)
def test_packed_weights_change_nothing_and_are_used_in_all_layers(name, monkeypatch):
    model, samples = tiny.model(name).float(), tiny.samples()
    used = set()
    with monkeypatch.context() as patch:
        patch.setattr(packed, "_pack", lambda layers: used.update(map(id, layers)) or layers[0].forward)
        expected = nll_NK(model, samples)
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear | Conv1D)]
    assert used == {id(layer) for layer in layers}
    torch.testing.assert_close(nll_NK(model, samples), expected)
    assert not any("forward" in vars(layer) for layer in layers)


@pytest.mark.parametrize("name, settings", [("gpt2", {}), ("t5", {"architecture": "multi-decoder"}), ("llama", {})])
def test_autocast_decides_the_type_of_all_products_but_the_logits(name, settings):
    model, found = tiny.model(name, **settings, dtype=torch.float32), {}
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear | Conv1D)]
    nll_NK(model, tiny.samples())  # packed in float32, which must not be used below
    with computing_in(torch.bfloat16, model, model.device, exact=[model.vocabulary]):
        for layer in layers:
            layer.register_forward_hook(lambda layer, inputs, output: found.update({layer: output.dtype}))
        nll_NK(model, tiny.samples())
    assert found.pop(model.vocabulary) == torch.float32
    assert len(found) > 2 and set(found.values()) == {torch.bfloat16}
