"""Minimum Bayes risk: what it chooses from, how it measures agreement, and that no exchange makes its choice better."""

from itertools import product

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.translate.bleu_score import sentence_bleu
from transformers import GenerationConfig

from polyreply.api import PolyReply
from polyreply.decoding.all_decoders import decode
from polyreply.decoding.mbr import agreement, best_set, f_beta, mbr
from polyreply.decoding.response import Response
from polyreply.errors import PolyReplyError

ENDS = [tiny.EOS, *range(5, tiny.VOCABULARY, 4)]
CONFIG = GenerationConfig(max_new_tokens=7, eos_token_id=ENDS, pad_token_id=tiny.PAD)


def asked(name="t5", **options):
    model, samples = tiny.model(name), tiny.samples()
    generator = torch.Generator().manual_seed(options.pop("seed", 0))
    k = options.pop("k", model.num_decoders)
    return mbr(model, samples.context_NS, samples.context_mask_NS, k, CONFIG, generator=generator, **options)


def tokens(replies):
    return [[reply.tokens for reply in replies] for replies in replies]


@pytest.mark.parametrize("name", tiny.BACKBONES)
def test_every_decoder_says_one_of_its_own_candidates(name):
    model, found = tiny.model(name), asked(name, samples=3)
    assert tokens(found) == tokens(asked(name, samples=3)) != tokens(asked(name, samples=3, seed=1))
    for replies in found:
        assert [reply.decoder for reply in replies] == list(range(model.num_decoders))
        assert all(1 <= len(reply.tokens) <= 7 and reply.logprob < 0 for reply in replies)


@pytest.mark.parametrize("name", tiny.BACKBONES)
def test_a_decoder_can_be_asked_several_times_in_one_pass(name):
    model, samples = tiny.model(name), tiny.samples()
    context = samples.context_NS, samples.context_mask_NS
    once = decode(model, *context, CONFIG)
    often = decode(model, *context, CONFIG, decoders=sorted([*range(model.num_decoders)] * 3))
    for replies, repeated in zip(once, often, strict=True):
        assert [one.tokens for one in repeated] == [one.tokens for one in replies for _ in range(3)]


def test_with_a_tiny_nucleus_every_sample_is_the_greedy_reply():
    model, samples = tiny.model("t5"), tiny.samples()
    greedy = decode(model, samples.context_NS, samples.context_mask_NS, CONFIG)
    assert tokens(asked(samples=2, top_p=1e-6)) == tokens(greedy)


def test_more_replies_than_decoders_take_turns():
    model = tiny.model("t5")
    k = 2 * model.num_decoders + 1
    for replies in asked(k=k, samples=2):
        assert [reply.decoder for reply in replies] == [place % model.num_decoders for place in range(k)]


@pytest.mark.filterwarnings("ignore::UserWarning:nltk")
@given(st.lists(st.lists(st.integers(2, 5), max_size=6), min_size=6, max_size=6))
@settings(max_examples=60, deadline=None)
def test_agreement_is_bleu_2_with_every_sample(texts):
    candidates = [Response(0, place // 3, [*text, tiny.EOS]) for place, text in enumerate(texts)]
    [found_KGX] = agreement([[candidates[:3], candidates[3:]]], [tiny.EOS])
    drawn = [texts[place] for place in (1, 2, 4, 5)]
    for place, column in product(range(6), range(4)):
        is_itself = place == (1, 2, 4, 5)[column]
        expected = 0.0 if is_itself else sentence_bleu([drawn[column]], texts[place], weights=(0.5, 0.5))
        assert found_KGX[place // 3, place % 3, column] == pytest.approx(expected, abs=1e-9)


def value(agreement_KGX, taken, beta):
    """The expected F of a set, by its definition."""
    said_KX = np.array([agreement_KGX[k, place] for k, place in enumerate(taken)])
    return float(f_beta(said_KX.mean(), said_KX.max(0).mean(), beta))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32 - 1), st.sampled_from([0.5, 1.0, 2.0, 8.0]))
@settings(max_examples=100, deadline=None)
def test_no_exchange_of_a_single_reply_makes_the_set_better(num_replies, size, seed, beta):
    agreement_KGX = np.random.default_rng(seed).random((num_replies, size, num_replies * size)) ** 4
    taken = best_set(agreement_KGX, beta)
    best = value(agreement_KGX, taken, beta)
    for k, place in product(range(num_replies), range(size)):
        assert value(agreement_KGX, [*taken[:k], place, *taken[k + 1 :]], beta) <= best + 1e-12
    begun = agreement_KGX.mean(-1).argmax(1)
    assert best >= value(agreement_KGX, begun, beta) - 1e-12
    if num_replies == 1:
        assert best == pytest.approx(max(value(agreement_KGX, [place], beta) for place in range(size)))


def test_nothing_in_common_is_no_mistake():
    assert best_set(np.zeros((3, 2, 6)), 2.0) == [0, 0, 0]


@pytest.mark.parametrize(
    "options, message",
    [({"samples": 0}, "samples: expected 1 or more, found 0"), ({"beta": 0.0}, "beta: expected a number above 0")],
)
def test_mistakes_are_one_clear_line(options, message):
    with pytest.raises(PolyReplyError, match=message):
        asked(**options)


def test_reply_has_it_as_a_way_to_decode(shipped):
    found = shipped.reply(["Hello!", "I like football."], decode="mbr", samples=2, max_new_tokens=6)
    assert [[reply.decoder for reply in replies] for replies in found] == [list(range(10))] * 2
    assert found == shipped.reply(["Hello!", "I like football."], decode="mbr", samples=2, max_new_tokens=6)
    assert len(shipped.reply("Hello!", decode="mbr", samples=1, k=3, max_new_tokens=4)) == 3
    with pytest.raises(PolyReplyError, match="samples is no option of reply"):
        shipped.reply("Hello!", samples=2)


@pytest.fixture(scope="module")
def shipped():
    return PolyReply.from_pretrained("shipped")
