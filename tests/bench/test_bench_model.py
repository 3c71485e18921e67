"""The model benchmarks compare like with like: every way computes the same thing, on replies of the same lengths."""

from dataclasses import replace

import torch
from transformers import T5Config, T5ForConditionalGeneration

from polyreply.bench import reply, score, t5_small, timing
from polyreply.models.model import PolyReplyModel


def small_model(vocabulary):
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_ff": 20, "d_kv": 4, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
    backbone = T5ForConditionalGeneration(T5Config(vocab_size=vocabulary, **sizes))
    return PolyReplyModel.from_backbone(backbone, num_decoders=3, adapter_init="linear")


def test_all_ways_of_scoring_agree():
    model, samples = small_model(1000), t5_small.natural_samples(70)
    samples = replace(samples, context_NS=samples.context_NS % 1000, response_NT=samples.response_NT % 1000)
    expected = score.nll_NK(model, samples)
    torch.testing.assert_close(score.loop_nll(model, samples), expected, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(score.authors_nll(model, samples), expected, rtol=1e-4, atol=1e-3)


def test_every_way_of_replying_gives_replies_of_the_forced_lengths():
    model, batch = small_model(32128), 2
    ways = reply.reply_ways(model, batch)
    lengths = t5_small.natural_lengths(batch * 3, t5_small.RESPONSE_QUANTILES, seed=batch)
    expected = [sorted(lengths[:3]), sorted(lengths[3:])]
    assert [sorted(len(response.tokens) for response in row) for row in ways["ours"]()] == expected
    for name in ("beam", "nucleus"):
        found = ways[name]()
        ended = (found == t5_small.EOS).float().argmax(1).tolist()
        assert [sorted(ended[:3]), sorted(ended[3:])] == expected


def test_lengths_are_natural():
    lengths = t5_small.natural_lengths(20_000, t5_small.RESPONSE_QUANTILES, seed=0)
    assert 20 < sum(lengths) / len(lengths) < 23 and min(lengths) == 2 and max(lengths) == 64


def test_medians_do_not_count_the_first_run():
    calls = []
    found = timing.medians({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=2)
    assert calls == ["a"] * 3 + ["b"] * 3 and set(found) == {"a", "b"}


def _allocate(begin):
    begin()
    torch.ones(30 << 18).sum()


def test_peak_growth_sees_what_is_allocated_after_the_start():
    assert 25 < timing.peak_growth(_allocate) < 60
