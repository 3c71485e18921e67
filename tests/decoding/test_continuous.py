"""Continuous batching against its oracle: every job decoded alone."""

from dataclasses import replace

import hypothesis
import hypothesis.strategies as st
import pytest
import tiny
import torch
from transformers import GenerationConfig

from polyreply.decoding.all_decoders import decode
from polyreply.decoding.continuous import Continuous, Job
from polyreply.decoding.settings import Decoding

JOINING = [("t5", {}), ("flan-t5", {}), ("llama", {}), ("llama", tiny.LORA), ("gpt2", {}), ("qwen3", {})]
TAKING_TURNS = [
    ("bart", {}),
    ("t5", {"architecture": "multi-decoder"}),
    ("llama", tiny.EVERYTHING),
    ("gemma3_text", {}),
]
INVOCATION = 3


def made(name, settings):
    if name not in tiny.ENCODER_DECODER and name != "flan-t5" and settings.get("adapt") != "everything":
        settings = {**settings, "invocation_tokens": list(range(4, 4 + INVOCATION))}
    return tiny.model(name, **settings)


def config(longest=9, **settings):
    return GenerationConfig(max_new_tokens=longest, eos_token_id=tiny.EOS, pad_token_id=tiny.PAD, **settings)


KINDS = {
    "greedy": {},
    "ngrams": {"no_repeat_ngram_size": 2, "min_new_tokens": 4},
    "penalty": {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2},
    "sampled": {"do_sample": True, "temperature": 1.3, "top_k": 0, "top_p": 0.9},
    "guided": {"guidance_scale": 3.0, "no_repeat_ngram_size": 2},
    "guided-sampled": {"guidance_scale": 1.5, "do_sample": True, "top_k": 0},
    "sampled-ngrams": {"do_sample": True, "top_k": 0, "no_repeat_ngram_size": 2, "min_new_tokens": 3},
}


def job(place, length, kind, decoders, longest):
    tokens = torch.randint(3, tiny.VOCABULARY, (length,), generator=torch.Generator().manual_seed(place))
    tokens = torch.cat([tokens, torch.arange(4, 4 + INVOCATION)])
    generator = torch.Generator().manual_seed(place)
    decoding = Decoding.of(config(longest, **KINDS[kind]), len(decoders), generator)
    return Job(tokens, decoders, replace(decoding, empty_context=(7, *range(4, 4 + INVOCATION))))


def alone(model, one):
    """The oracle."""
    decoding = replace(one.decoding, generator=torch.Generator().manual_seed(one.decoding.generator.initial_seed()))
    context = one.context_S[None]
    return decode(model, context, torch.ones_like(context), decoding, [row.decoder for row in one.rows])[0]


def run(model, jobs, arrivals):
    """Decode jobs that arrive before the given steps."""
    continuous, step = Continuous(model), 0
    while step <= max(arrivals) or continuous.num_rows:
        continuous.add([one for one, arrival in zip(jobs, arrivals, strict=True) if arrival == step])
        continuous.advance()
        step += 1
    return continuous


def check(model, jobs):
    for one in jobs:
        expected = alone(model, one)
        assert [row.tokens for row in one.rows] == [response.tokens for response in expected]
        assert [row.logprob for row in one.rows] == pytest.approx([response.logprob for response in expected])
        assert one.is_done


@pytest.mark.parametrize(("name", "settings"), [*JOINING, *TAKING_TURNS])
def test_tokens_are_those_of_each_job_alone(name, settings):
    model = made(name, settings)
    kinds = [*KINDS] * 2
    arrivals = [0, 0, 1, 2, 2, 5, 7, 7, 8, 20, 21, 23, 24, 30]
    jobs = [
        job(place, (7, 1, 12, 3, 5)[place % 5], kind, [[0, 1, 2], [1], [0, 2]][place % 3], 4 + 3 * place)
        for place, kind in enumerate(kinds)
    ]
    run(model, jobs, arrivals)
    check(model, jobs)
    assert len({tuple(row.tokens) for one in jobs for row in one.rows}) > len(jobs)


@hypothesis.settings(max_examples=6)
@hypothesis.given(st.data())
@pytest.mark.parametrize("name", ["t5", "llama"])
def test_any_order_of_arrivals(name, data):
    model = made(name, {})
    number = data.draw(st.integers(1, 8))
    lengths = st.integers(1, 20)
    decoders = st.sets(st.integers(0, 2), min_size=1).map(sorted)
    jobs = [
        job(i, data.draw(lengths), data.draw(st.sampled_from([*KINDS])), data.draw(decoders), data.draw(lengths))
        for i in range(number)
    ]
    run(model, jobs, [data.draw(st.integers(0, 30)) for _ in jobs])
    check(model, jobs)


def test_long_service_keeps_no_columns_and_contexts_of_the_past():
    model = made("t5", {})
    continuous = Continuous(model)
    for place in range(120):
        continuous.add([job(place, 30 if place == 0 else 4, "greedy", [0, 1, 2], 9)])
        continuous.advance()
    step = continuous._batches[0].step
    assert len(continuous._batches) == 1 and step.cache.capacity <= 64 and len(step.mask_BS) < 12
    assert step.mask_BS.shape[1] == 4 + INVOCATION


@pytest.mark.parametrize("kind", ["ngrams", "guided"])
def test_jobs_that_are_ended_leave_and_change_nothing_for_others(kind):
    model = made("llama", {})
    jobs = [job(place, 4, kind, [0, 1, 2], 20) for place in range(3)]
    continuous = Continuous(model)
    continuous.add(jobs)
    continuous.advance()
    jobs[1].end()
    length = [len(row.tokens) for row in jobs[1].rows]
    while continuous.num_rows:
        assert all(row.job is not jobs[1] for row in continuous.advance())
    assert [len(row.tokens) for row in jobs[1].rows] == length
    check(model, [jobs[0], jobs[2]])


def test_alternatives_are_the_likeliest_tokens_of_the_model():
    model = made("t5", {})
    one = job(1, 5, "ngrams", [0, 2], 9)
    one.num_alternatives = 3
    run(model, [one], [0])
    plain = job(1, 5, "greedy", [0, 2], 9)
    plain.num_alternatives = 1
    run(model, [plain], [0])
    for row in one.rows:
        assert [len(some) for some in row.alternatives] == [3] * len(row.tokens)
        assert all(a[1] >= b[1] >= c[1] for a, b, c in row.alternatives)
    for row in plain.rows:
        assert [some[0][0] for some in row.alternatives] == row.tokens
        assert [some[0][1] for some in row.alternatives] == pytest.approx(row.logprobs)
