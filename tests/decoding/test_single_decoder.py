"""Beam and nucleus against the stock model, diverse beam search against a plain version of the same algorithm."""

import logging
from collections import Counter
from functools import cache, partial
from itertools import pairwise

import pytest
import tiny
import torch
from transformers import GenerationConfig

from polyreply.decoding.generate import WAYS, check_request
from polyreply.errors import PolyReplyError

ENDS = [tiny.EOS, *range(5, tiny.VOCABULARY, 4)]
"""Several tokens end a reply, so that replies of random models end, and at different lengths."""
CONSTRAINTS = [
    {"no_repeat_ngram_size": 2},
    {"min_new_tokens": 4},
    {"bad_words_ids": [[5], [7, 8]]},
    {"repetition_penalty": 1.7},
]

STOPPING = [("t5", True), ("llama", "never")]
"""Rules that do not depend on the backbone."""


def config(**settings):
    return GenerationConfig(**{"max_new_tokens": 7, "eos_token_id": ENDS, "pad_token_id": tiny.PAD, **settings})


def beam(model, context, mask, k, config=None, way="beam", seed=None, **options):
    request = tiny.request(config or model.generation_config, k, seed, **options)
    return WAYS[way](model, context, mask, request)


nucleus = partial(beam, way="nucleus")
min_p = partial(beam, way="min-p")
diverse_beam = partial(beam, way="diverse-beam")


def model_of(name, **settings):
    tiny.backbone(name)  # made first, the model's weights do not depend on which test runs first
    return tiny.model(name, **settings)


def contexts(samples):
    """Each context alone, without padding."""
    pairs = zip(samples.context_NS, samples.context_mask_NS, strict=True)
    return [context[mask][None] for context, mask in pairs]


def pad_left(samples):
    order = torch.argsort(samples.context_mask_NS.long(), dim=1, stable=True)
    return samples.context_NS.gather(1, order), samples.context_mask_NS.gather(1, order)


def stock_model(model, name):
    """The backbone's weights in a model that knows nothing of polyreply."""
    stock = tiny.BACKBONES[name]().to(model.dtype).eval()
    stock.load_state_dict(model.backbone.state_dict())
    stock.generation_config = GenerationConfig()
    return stock


def start(stock):
    return [stock.config.decoder_start_token_id] if stock.config.is_encoder_decoder else []


@torch.no_grad()
def log_probabilities(stock, context, tokens):
    """log p(· | context, tokens) after each token: (tokens + 1, V)."""
    if stock.config.is_encoder_decoder:
        given = torch.tensor([[*start(stock), *tokens]])
        return stock(input_ids=context, decoder_input_ids=given).logits[0].log_softmax(-1)
    given = torch.cat([context, torch.tensor([tokens], dtype=torch.long)], 1)
    return stock(input_ids=given).logits[0, context.shape[1] - 1 :].log_softmax(-1)


def stock_beam(stock, context, k, **settings):
    """What `generate` gives for one context, up to and with EOS."""
    options = config(num_beams=k, num_return_sequences=k, **settings)
    options.decoder_start_token_id = (start(stock) or [None])[0]
    found = stock.generate(context, attention_mask=torch.ones_like(context), generation_config=options)
    rows = found[:, 1 if start(stock) else context.shape[1] :].tolist()
    ends = [next((i for i, token in enumerate(row) if token in ENDS), len(row)) for row in rows]
    return [row[: end + 1] for row, end in zip(rows, ends, strict=True)]


def tokens_of(replies):
    return [[response.tokens for response in row] for row in replies]


def assert_logprobs(replies, stock, samples):
    for row, (responses, context) in enumerate(zip(replies, contexts(samples), strict=True)):
        assert [response.context for response in responses] == [row] * len(responses)
        assert [response.decoder for response in responses] == list(range(len(responses)))
        for response in responses:
            found = log_probabilities(stock, context, response.tokens)[:-1]
            expected = found.gather(1, torch.tensor(response.tokens)[:, None]).sum().item()
            assert response.logprob == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", tiny.BACKBONES)
@pytest.mark.parametrize("early_stopping", [False, True, "never"])
def test_beam_and_one_group_are_the_beam_search_of_the_stock_model(name, early_stopping):
    model, samples = model_of(name), tiny.samples()
    stock = stock_model(model, name)
    options = config(early_stopping=early_stopping)
    model.backbone.generation_config.update(repetition_penalty=9.0, length_penalty=3.0)  # the config given is the whole
    replies = beam(model, samples.context_NS, samples.context_mask_NS, 4, options)
    expected = [stock_beam(stock, context, 4, early_stopping=early_stopping) for context in contexts(samples)]
    assert tokens_of(replies) == tokens_of(beam(model, *pad_left(samples), 4, options)) == expected
    assert tokens_of(diverse_beam(model, *pad_left(samples), 4, options, num_groups=1)) == expected
    assert len({len(tokens) for row in expected for tokens in row}) > 2
    assert_logprobs(replies, stock, samples)


@pytest.mark.parametrize("name", tiny.BACKBONES)
@pytest.mark.parametrize("settings", CONSTRAINTS, ids=lambda settings: next(iter(settings)))
@pytest.mark.parametrize("search", [beam, lambda *given: diverse_beam(*given, num_groups=1)], ids=["beam", "diverse"])
def test_constraints_are_those_of_transformers(name, settings, search):
    """In a ragged batch too: the padding of a prompt is not something that was said."""
    model, samples = model_of(name), tiny.samples()
    stock = stock_model(model, name)
    replies = search(model, samples.context_NS, samples.context_mask_NS, 3, config(**settings))
    assert tokens_of(replies) == [stock_beam(stock, context, 3, **settings) for context in contexts(samples)]
    assert_logprobs(replies, stock, samples)


@pytest.mark.parametrize("name", tiny.BACKBONES)
def test_nucleus_follows_the_distribution(name):
    """First tokens against the stock model's nucleus (chi-square), whatever the model's own sampling settings are."""
    model, samples = model_of(name), tiny.samples(lengths=((5, 1), (2, 1)))
    model.backbone.generation_config = config(max_new_tokens=1, temperature=0.2, top_k=2, top_p=0.5, do_sample=True)
    times = 4000
    replies = nucleus(model, samples.context_NS, samples.context_mask_NS, times, seed=3)
    for context, responses in zip(contexts(samples), replies, strict=True):
        share = log_probabilities(stock_model(model, name), context, [])[-1].exp()
        ordered, order = share.sort(descending=True)
        inside = order[(ordered.cumsum(0) - ordered) < 0.95]
        share = torch.zeros_like(share).scatter(0, inside, share[inside])
        share /= share.sum()
        counts = torch.bincount(torch.tensor([found.tokens[0] for found in responses]), minlength=tiny.VOCABULARY)
        assert counts[share == 0].sum() == 0
        expected, seen = times * share[share > 0], counts[share > 0]
        freedom = len(expected) - 1
        assert freedom > 2
        assert ((seen - expected) ** 2 / expected).sum() < freedom + 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("name", ["t5", "llama"])
def test_min_p_draws_what_generate_draws(name):
    """The same samples as Transformers' `min_p` from the same seed, and with another share others."""
    model, samples = model_of(name), tiny.samples(lengths=((4, 1), (4, 1)))
    given = (model, samples.context_NS, samples.context_mask_NS, 5, config())
    drawn = {share: tokens_of(min_p(*given, seed=3, min_p=share)) for share in (0.3, 0.02)}
    assert drawn[0.3] != drawn[0.02]
    start = {"decoder_start_token_id": tiny.PAD} if model.family.encoder else {}
    settings = config(do_sample=True, min_p=0.3, top_k=0, num_return_sequences=5, **start)
    stock = stock_model(model, name)
    torch.manual_seed(int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(3))))
    found = stock.generate(
        samples.context_NS, attention_mask=samples.context_mask_NS.long(), generation_config=settings
    )
    new = found[:, 1 if model.family.encoder else samples.context_NS.shape[1] :].tolist()
    ends = [next((i + 1 for i, token in enumerate(row) if token in ENDS), len(row)) for row in new]
    assert [tokens for row in drawn[0.3] for tokens in row] == [row[:end] for row, end in zip(new, ends, strict=True)]


@pytest.mark.parametrize("name", tiny.BACKBONES)
def test_nucleus_samples_whole_replies_with_their_logprobs(name):
    model, samples = model_of(name), tiny.samples()
    options = config(no_repeat_ngram_size=2)
    replies = nucleus(model, samples.context_NS, samples.context_mask_NS, 6, options)
    assert len({len(tokens) for row in tokens_of(replies) for tokens in row}) > 2
    for row, context in zip(tokens_of(replies), contexts(samples), strict=True):
        for tokens in row:
            assert not set(tokens[:-1]) & set(ENDS) and (tokens[-1] in ENDS or len(tokens) == 7)
            said = ([] if model.family.encoder else context[0].tolist()) + tokens
            assert max(Counter(pairwise(said)).values(), default=1) == 1
    assert_logprobs(replies, stock_model(model, name), samples)


def test_a_generator_decides_what_is_sampled_and_pytorch_keeps_its_state():
    model, samples = model_of("t5"), tiny.samples()
    given = (model, samples.context_NS, samples.context_mask_NS, 4, config())

    def draw(seed):
        return tokens_of(nucleus(*given, seed=seed))

    before = torch.get_rng_state()
    assert draw(1) == draw(1) != draw(2)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    first, second = tokens_of(nucleus(*given)), tokens_of(nucleus(*given))
    torch.manual_seed(5)
    assert first == tokens_of(nucleus(*given)) != second


def plain_diverse_beam(following, k, num_groups, penalty, early_stopping, most=7, carry=False):
    """One context, no batches, no caches, every candidate sorted; `following(tokens)` gives log p of the next token.

    `carry` is the other convention, in which penalties add up in the score.
    """
    size = k // num_groups
    running, finished = [[((), 0.0)] for _ in range(num_groups)], [[] for _ in range(num_groups)]
    for length in range(1, most + 1):
        said = Counter()
        for group in range(num_groups):
            ranked = []
            for tokens, score in running[group]:
                for token, step in enumerate(following(tokens)):
                    away = penalty * said[token]
                    ranked.append((score + step - away, (*tokens, token), score + step - (away if carry else 0)))
            if not ranked:
                continue
            ranked.sort(key=lambda found: -found[0])
            goes_on = []
            for place, (_, tokens, score) in enumerate(ranked):
                ends = tokens[-1] in ENDS
                if place < size and (ends or length == most):
                    finished[group].append((score / length, tokens))
                    said[tokens[-1]] += 1
                if not ends and len(goes_on) < size and length < most:
                    goes_on.append((tokens, score))
                    said[tokens[-1]] += 1
            finished[group] = sorted(finished[group], key=lambda found: -found[0])[:size]
            running[group] = goes_on
            if len(finished[group]) == size and goes_on:
                reach = most if early_stopping == "never" else length
                best = max(score for _, score in goes_on) / reach
                if early_stopping is True or best <= finished[group][-1][0]:
                    running[group] = []
    return [list(tokens) for group in finished for _, tokens in group]


def next_tokens(stock, samples):
    """For each context a function that gives log p of the next token after some tokens."""

    def following(context):
        return cache(lambda tokens: log_probabilities(stock, context, list(tokens))[-1].tolist())

    return [following(context) for context in contexts(samples)]


@pytest.mark.parametrize("name, early_stopping", [*((name, False) for name in tiny.BACKBONES), *STOPPING])
def test_diverse_beam_is_the_plain_algorithm(name, early_stopping):
    model, samples = model_of(name), tiny.samples()
    stock = stock_model(model, name)
    following = next_tokens(stock, samples)
    options = config(early_stopping=early_stopping)
    differs, lengths = set(), set()
    for k, num_groups, penalty in ((4, 1, 0.7), (4, 2, 0.7), (6, 2, 2.5), (6, 3, 1.5), (4, 4, 3.0)):

        def plain(penalty, settings=(k, num_groups), **convention):
            return [plain_diverse_beam(after, *settings, penalty, early_stopping, **convention) for after in following]

        grouped = {"num_groups": num_groups, "diversity_penalty": penalty}
        replies = diverse_beam(model, samples.context_NS, samples.context_mask_NS, k, options, **grouped)
        expected = plain(penalty)
        assert tokens_of(replies) == expected
        assert tokens_of(diverse_beam(model, *pad_left(samples), k, options, **grouped)) == expected
        assert_logprobs(replies, stock, samples)
        lengths |= {len(tokens) for row in expected for tokens in row}
        others = {"no penalty": plain(0.0), "penalty carried along": plain(penalty, carry=True)}
        differs |= {what for what, found in others.items() if found != expected}
    assert len(differs) == 2, f"only {differs} made a difference, so the test shows little"
    assert len(lengths) > 2


def test_a_large_penalty_gives_each_group_its_own_first_token():
    model, samples = model_of("t5"), tiny.samples()
    replies = diverse_beam(model, samples.context_NS, samples.context_mask_NS, 6, config(), diversity_penalty=1e4)
    assert all(len({tokens[0] for tokens in row}) == 6 for row in tokens_of(replies))


def test_beams_that_have_finished_leave_the_batch():
    model, samples = model_of("t5"), tiny.samples()
    rows = []
    handle = model.decoders[0].block[0].register_forward_hook(lambda m, a, out: rows.append(out[0].shape[0]))
    options = config(max_new_tokens=20, no_repeat_ngram_size=1)
    diverse_beam(model, samples.context_NS, samples.context_mask_NS, 4, options, num_groups=2)
    handle.remove()
    assert rows[0] == len(samples) and max(rows) == 4 * len(samples) and rows[-1] < max(rows)


@pytest.mark.parametrize("name", tiny.BACKBONES)
@pytest.mark.parametrize("decode", [beam, nucleus, min_p, diverse_beam])
def test_defaults_and_edge_cases(name, decode, recwarn):
    """No pad token, one EOS or none, k = 1, one context or none; 64 tokens unless told; not a word on the log."""
    logged = []
    handler = logging.Handler()
    handler.emit = logged.append
    logging.getLogger("transformers").addHandler(handler)
    model, samples = model_of(name), tiny.samples(lengths=((4, 1), (2, 1)))
    model.backbone.config.max_position_embeddings = 128
    for eos in (None, tiny.EOS):
        options = GenerationConfig(max_new_tokens=9, eos_token_id=eos)
        for k in (1, 3):
            replies = tokens_of(decode(model, samples.context_NS, samples.context_mask_NS, k, options))
            assert [len(row) for row in replies] == [k, k]
            assert eos is not None or all(len(tokens) == 9 for row in replies for tokens in row)
    assert decode(model, samples.context_NS[:0], samples.context_mask_NS[:0], 2, config()) == []
    if name in ("t5", "llama"):  # the others have no positions for more
        [row] = decode(model, samples.context_NS[:1], samples.context_mask_NS[:1], 2, GenerationConfig())
        assert [len(response.tokens) for response in row] == [64, 64]
    logging.getLogger("transformers").removeHandler(handler)
    assert not logged and not recwarn.list


@pytest.mark.parametrize("decode", [beam, nucleus, min_p, diverse_beam])
@pytest.mark.parametrize(
    "settings, changed, message",
    [
        ({"architecture": "multi-decoder"}, False, "expected the stage-1 weights .*, found 3 full decoders .*; use"),
        ({}, True, "expected the stage-1 weights .*, found shared weights that stage 2 changed; use"),
    ],
)
def test_only_the_weights_of_stage_1_are_accepted(decode, settings, changed, message):
    model, samples = model_of("t5", **settings), tiny.samples()
    model.config.shared_weights_changed = changed
    with pytest.raises(PolyReplyError, match=message):
        decode(model, samples.context_NS, samples.context_mask_NS, 2, config())


@pytest.mark.parametrize(
    "way, k, options, message",
    [
        ("beam", 0, {}, "k must be 1 or more, found 0"),
        ("beam", 2, {"generation_config": GenerationConfig(num_beams=4)}, "num_beams"),
        ("beam", 2, {"do_sample": True}, "do_sample"),
        ("beam", 2, {"generation_config": GenerationConfig(do_sample=True)}, "do_sample"),
        ("beam", 2, {"generation_config": GenerationConfig(length_penalty=2.0)}, "length_penalty"),
        ("nucleus", 2, {"temperature": 0.7}, "temperature"),
        ("nucleus", 2, {"top_k": 50}, "top_k"),
        ("nucleus", 2, {"min_p": 0.1}, "min_p"),
        ("min-p", 2, {"top_p": 0.9}, "top_p"),
        ("min-p", 2, {"min_p": 1.5}, "min_p must be above 0 and at most 1, found 1.5"),
        ("nucleus", 2, {"top_p": 0.0}, "top_p must be above 0 and at most 1, found 0.0"),
        ("diverse-beam", 2, {"generation_config": GenerationConfig(penalty_alpha=0.6)}, "penalty_alpha"),
        ("diverse-beam", 10, {"num_groups": 4}, "use k 8 or 12, or num_groups 2 or 5"),
        ("diverse-beam", 2, {"num_groups": 3}, "over 3 groups; use k 3, or num_groups 1 or 2"),
        ("diverse-beam", 2, {"num_groups": 0}, "num_groups must be 1 or more, found 0"),
        ("diverse-beam", 2, {"diversity_penalty": -1.0}, "diversity_penalty must be 0 or more, found -1.0"),
    ],
    ids=str,
)
def test_invalid_requests_are_errors_of_one_line(way, k, options, message):
    model, samples = model_of("t5"), tiny.samples()
    with pytest.raises(PolyReplyError, match=message) as raised:
        WAYS[way](model, samples.context_NS, samples.context_mask_NS, check_request(model, way, k, options=options))
    assert "\n" not in str(raised.value)
