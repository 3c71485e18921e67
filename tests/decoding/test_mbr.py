"""Minimum Bayes risk: what it chooses from, how it measures agreement, and that no exchange makes its choice better."""

from itertools import product

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.translate.bleu_score import sentence_bleu
from transformers import GenerationConfig

from polyreply.decoding.all_decoders import decode
from polyreply.decoding.mbr import agreement, best_set, f_beta, mbr
from polyreply.decoding.settings import Response, Sampling
from polyreply.errors import PolyReplyError
from polyreply.reply import PolyReply

ENDS = [tiny.EOS, *range(5, tiny.VOCABULARY, 4)]
CONFIG = GenerationConfig(max_new_tokens=7, eos_token_id=ENDS, pad_token_id=tiny.PAD)


def asked(name="t5", **options):
    model, samples = tiny.model(name), tiny.samples()
    options = {"k": model.num_decoders, "seed": 0, **options}
    return mbr(model, samples.context_NS, samples.context_mask_NS, tiny.request(CONFIG, **options))


def tokens(replies):
    return [[reply.tokens for reply in replies] for replies in replies]


@pytest.mark.parametrize("name, settings", tiny.VARIANTS)
def test_each_context_gets_the_best_set_of_its_own_candidates(name, settings):
    model, samples = tiny.model(name, **settings), tiny.samples()
    context = samples.context_NS, samples.context_mask_NS
    chosen_sets = mbr(model, *context, tiny.request(CONFIG, model.num_decoders, 0, samples=3))
    greedy = decode(model, *context, tiny.request(CONFIG, model.num_decoders))
    often = sorted([*range(model.num_decoders)] * 3)
    drawn = decode(model, *context, tiny.request(CONFIG, seed=0, sampling=Sampling(top_p=0.7)), decoders=often)
    for replies, likely, others in zip(chosen_sets, greedy, drawn, strict=True):
        groups = [[one, *others[3 * k : 3 * k + 3]] for k, one in enumerate(likely)]
        [agreement_KGX] = agreement([groups], ENDS)
        chosen = [group[place] for group, place in zip(groups, best_set(agreement_KGX, 2.0), strict=True)]
        assert [one.tokens for one in replies] == [one.tokens for one in chosen]
        assert [one.decoder for one in replies] == list(range(model.num_decoders))


def test_the_seed_decides():
    assert tokens(asked(samples=3)) == tokens(asked(samples=3)) != tokens(asked(samples=3, seed=1))


@pytest.mark.parametrize("name, settings", tiny.VARIANTS)
def test_a_decoder_can_be_asked_several_times_in_one_pass(name, settings):
    model, samples = tiny.model(name, **settings), tiny.samples()
    context = samples.context_NS, samples.context_mask_NS
    once = decode(model, *context, tiny.request(CONFIG, model.num_decoders))
    often = decode(model, *context, tiny.request(CONFIG), decoders=sorted([*range(model.num_decoders)] * 3))
    for replies, repeated in zip(once, often, strict=True):
        assert [one.tokens for one in repeated] == [one.tokens for one in replies for _ in range(3)]


def test_samples_keep_the_order_of_the_request():
    model, samples = tiny.model("t5"), tiny.samples()
    request = tiny.request(CONFIG, seed=0, sampling=Sampling())
    drawn = decode(model, samples.context_NS, samples.context_mask_NS, request, decoders=[0] * 20)
    assert any(lengths != sorted(lengths) for lengths in ([len(one.tokens) for one in replies] for replies in drawn))


def test_no_context_no_replies():
    model, samples = tiny.model("t5"), tiny.samples()
    assert mbr(model, samples.context_NS[:0], samples.context_mask_NS[:0], tiny.request(CONFIG)) == []


def test_with_a_tiny_nucleus_every_sample_is_the_greedy_reply():
    model, samples = tiny.model("t5"), tiny.samples()
    greedy = decode(model, samples.context_NS, samples.context_mask_NS, tiny.request(CONFIG))
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
    for place, column in product(range(6), range(4)):
        scores = {
            other: sentence_bleu([texts[other]], texts[place], weights=(0.5, 0.5))
            for other in (1, 2, 4, 5)
            if other != place
        }
        expected = scores.get((1, 2, 4, 5)[column], sum(scores.values()) / len(scores))
        assert found_KGX[place // 3, place % 3, column] == pytest.approx(expected, abs=1e-9)


def value(agreement_KGX, taken, beta):
    """The expected F of a set, by its definition."""
    said_KX = np.array([agreement_KGX[k, place] for k, place in enumerate(taken)])
    return float(f_beta(said_KX.mean(), said_KX.max(0).mean(), beta))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32 - 1), st.sampled_from([0.5, 1.0, 2.0, 8.0]))
@settings(max_examples=100, deadline=None)
def test_no_exchange_of_a_single_reply_improves_the_set(num_replies, size, seed, beta):
    agreement_KGX = np.random.default_rng(seed).random((num_replies, size, num_replies * size)) ** 4
    taken = best_set(agreement_KGX, beta)
    best = value(agreement_KGX, taken, beta)
    for k, place in product(range(num_replies), range(size)):
        assert value(agreement_KGX, [*taken[:k], place, *taken[k + 1 :]], beta) <= best + 1e-12
    begun = agreement_KGX.mean(-1).argmax(1)
    assert best >= value(agreement_KGX, begun, beta) - 1e-12
    if num_replies == 1:
        assert best == pytest.approx(max(value(agreement_KGX, [place], beta) for place in range(size)))


def test_candidates_with_nothing_in_common():
    assert best_set(np.zeros((3, 2, 6)), 2.0) == [0, 0, 0]


@pytest.mark.parametrize(
    "options, message",
    [({"samples": 0}, "samples: expected 1 or more, found 0"), ({"beta": 0.0}, "beta: expected a number above 0")],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(PolyReplyError, match=message):
        asked(**options)


def test_reply_has_it_as_a_way_to_decode(shipped):
    found = shipped.reply(["Hello!", "I like football."], decode="mbr", samples=2, max_new_tokens=6)
    assert [[reply.decoder for reply in replies] for replies in found] == [list(range(10))] * 2
    assert found == shipped.reply(["Hello!", "I like football."], decode="mbr", samples=2, max_new_tokens=6)
    assert len(shipped.reply("Hello!", decode="mbr", samples=1, k=3, max_new_tokens=4)) == 3
    with pytest.raises(PolyReplyError, match="samples: no effect with decode decoders"):
        shipped.reply("Hello!", samples=2)
    with pytest.raises(PolyReplyError, match="temperature: no effect with decode mbr"):
        shipped.reply("Hello!", decode="mbr", temperature=0.7)


@pytest.fixture(scope="module")
def shipped():
    return PolyReply.from_pretrained("t5-mini-10")
