"""All K decoders in one pass against Transformers' `generate`, once per decoder."""

import copy

import pytest
import tiny
import torch
from transformers import GenerationConfig

from polyreply.decoding import all_decoders
from polyreply.errors import PolyReplyError
from polyreply.models.score import Samples, nll_NK

IDS = [f"{name}-{'-'.join(map(str, settings.values()))}" for name, settings in tiny.VARIANTS]


ENDS = [tiny.EOS, *range(5, tiny.VOCABULARY, 5)]
"""Several tokens end a reply, so that greedy replies of random models end, and at different lengths."""


def config(**settings):
    ids = {"eos_token_id": ENDS, "pad_token_id": tiny.PAD, "decoder_start_token_id": None}
    return GenerationConfig(**{"max_new_tokens": 12, **ids, **settings})


def decode(model, context, mask, config, decoders=None, seed=None):
    return all_decoders.decode(model, context, mask, tiny.request(config, model.num_decoders, seed), decoders)


def stock_generate(model, samples, k, **settings):
    """What `generate` gives for each context with decoder k, one context at a time: up to and with EOS."""
    found = []
    for row in range(len(samples)):
        context = samples.context_NS[row][samples.context_mask_NS[row]][None]
        options = config(**settings)
        options.decoder_start_token_id = model.backbone.config.decoder_start_token_id if model.family.encoder else None
        with model.as_decoder(k) as backbone, torch.no_grad():
            tokens = backbone.generate(context, attention_mask=torch.ones_like(context), generation_config=options)[0]
        tokens = tokens[1 if model.family.encoder else context.shape[1] :].tolist()
        end = next((place for place, token in enumerate(tokens) if token in ENDS), len(tokens))
        found.append(tokens[: end + 1])
    return found


@pytest.mark.parametrize("name, settings", tiny.VARIANTS, ids=IDS)
def test_greedy_is_token_identical_to_generate(name, settings):
    model, samples = tiny.model(name, num_decoders=4, spread=0.4, **settings), tiny.samples()
    lengths = set()
    # Random models soon repeat one token for ever; forbidding that gives replies of many lengths.
    for constraint in [{}, {"no_repeat_ngram_size": 1}] if model.family.encoder else [{}]:
        replies = decode(model, samples.context_NS, samples.context_mask_NS, config(**constraint))
        for k in range(4):
            expected = stock_generate(model, samples, k, **constraint)
            assert [row[k].tokens for row in replies] == expected
            assert [row[k].decoder for row in replies] == [k] * len(samples)
            lengths |= {len(tokens) for tokens in expected}
    assert len(lengths) > 2, f"all replies end at the same lengths {lengths}, so the test shows little"


@pytest.mark.parametrize("name, settings", tiny.VARIANTS, ids=IDS)
def test_one_message_alone_gets_the_replies_it_gets_in_a_batch(name, settings):
    model, samples = tiny.model(name, num_decoders=6, spread=0.4, **settings), tiny.samples()
    together = decode(model, samples.context_NS, samples.context_mask_NS, config())
    for row, expected in enumerate(together):
        one = samples.select(torch.tensor([row]))
        [alone] = decode(model, one.context_NS, one.context_mask_NS, config())
        assert [response.tokens for response in alone] == [response.tokens for response in expected]


@pytest.mark.parametrize("name", tiny.BACKBONES)
def test_log_probabilities_are_those_of_scoring(name):
    model, samples = tiny.model(name), tiny.samples()
    replies = decode(model, samples.context_NS, samples.context_mask_NS, config())
    for row, responses in enumerate(replies):
        for response in responses:
            tokens = torch.tensor([response.tokens])
            alone = samples.select(torch.tensor([row]))
            scored = Samples(alone.context_NS, alone.context_mask_NS, tokens, torch.ones_like(tokens).bool())
            assert response.logprob == pytest.approx(-nll_NK(model, scored)[0, response.decoder].item(), abs=1e-9)


@pytest.mark.parametrize("name, settings", tiny.VARIANTS, ids=IDS)
def test_log_probabilities_in_bfloat16_are_close_to_those_of_scoring_in_float32(name, settings):
    """The lean steps attend in float32, and multiply with packed weights where the processor can."""
    model, samples = tiny.model(name, dtype=torch.bfloat16, spread=0.2, **settings), tiny.samples()
    replies = decode(model, samples.context_NS, samples.context_mask_NS, config(min_new_tokens=6))
    exact = copy.deepcopy(model).float()
    for row, responses in enumerate(replies):
        alone = samples.select(torch.tensor([row]))
        for response in responses:
            tokens = torch.tensor([response.tokens])
            scored = Samples(alone.context_NS, alone.context_mask_NS, tokens, torch.ones_like(tokens).bool())
            expected = -nll_NK(exact, scored)[0, response.decoder].item()
            assert response.logprob == pytest.approx(expected, rel=0.05, abs=0.2)


@pytest.mark.parametrize("name", tiny.BACKBONES)
@pytest.mark.parametrize(
    "settings",
    [{"no_repeat_ngram_size": 2}, {"min_new_tokens": 6}, {"bad_words_ids": [[5], [7, 8]]}, {"repetition_penalty": 1.7}],
    ids=lambda settings: next(iter(settings)),
)
def test_constraints_are_those_of_transformers(name, settings):
    model, samples = tiny.model(name), tiny.samples()
    replies = decode(model, samples.context_NS, samples.context_mask_NS, config(**settings))
    for k in (0, 2):
        alone = [
            decode(model, part.context_NS, part.context_mask_NS, config(**settings), decoders=[k])[0][0].tokens
            for part in (samples.select(torch.tensor([row])) for row in range(len(samples)))
        ]
        assert alone == stock_generate(model, samples, k, **settings)
        assert [row[k].tokens for row in replies] == alone


def test_one_decoder_one_context_and_early_ends():
    model, samples = tiny.model("t5", num_decoders=1), tiny.samples(lengths=((4, 2),))
    [[response]] = decode(model, samples.context_NS, samples.context_mask_NS, config(max_new_tokens=3))
    assert len(response.tokens) <= 3
    with torch.no_grad():  # every reply ends at once
        model.decoders[0].final_layer_norm.weight.fill_(1.0)
        head = model.backbone.get_output_embeddings().weight
        head.zero_()
    always = decode(model, samples.context_NS, samples.context_mask_NS, config(eos_token_id=0))
    assert always[0][0].tokens == [0]


@pytest.mark.parametrize("name", tiny.BACKBONES)
def test_sampling_follows_the_distribution(name):
    """First tokens of many samples against the model's own probabilities (chi-square), for each decoder."""
    model, samples = tiny.model(name, num_decoders=2), tiny.samples(lengths=((5, 1),))
    times = 3000
    context = samples.context_NS.expand(times, -1)
    options = config(do_sample=True, max_new_tokens=1, temperature=1.3, top_p=0.9, top_k=0)
    replies = decode(model, context, torch.ones_like(context), options, seed=3)
    memory_tokens = torch.arange(tiny.VOCABULARY)[:, None]
    every = Samples(
        context[: tiny.VOCABULARY],
        torch.ones(tiny.VOCABULARY, 5).bool(),
        memory_tokens,
        torch.ones_like(memory_tokens).bool(),
    )
    for k in range(2):
        scores = -nll_NK(model, every)[:, k] / 1.3
        share = scores.softmax(0)
        ordered, order = share.sort(descending=True)
        allowed = order[(ordered.cumsum(0) - ordered) < 0.9]
        share = torch.zeros_like(share).scatter(0, allowed, share[allowed])
        share /= share.sum()
        counts = torch.bincount(torch.tensor([row[k].tokens[0] for row in replies]), minlength=tiny.VOCABULARY)
        assert counts[share == 0].sum() == 0
        seen = share > 0
        statistic = ((counts[seen] - times * share[seen]) ** 2 / (times * share[seen])).sum().item()
        freedom = int(seen.sum()) - 1
        assert statistic < freedom + 5 * (2 * freedom) ** 0.5


def test_a_seed_decides_what_is_sampled():
    model, samples = tiny.model("t5"), tiny.samples()

    def draw(seed):
        replies = decode(model, samples.context_NS, samples.context_mask_NS, config(do_sample=True), seed=seed)
        return [[response.tokens for response in row] for row in replies]

    assert draw(1) == draw(1) != draw(2)


def test_an_unsupported_setting_is_refused():
    model, samples = tiny.model("t5"), tiny.samples()
    for settings in ({"num_beams": 4}, {"penalty_alpha": 0.6}, {"typical_p": 0.9}):
        with pytest.raises(PolyReplyError, match=next(iter(settings))):
            decode(model, samples.context_NS, samples.context_mask_NS, config(**settings))


def test_rows_that_ended_leave_the_batch():
    """The decoder sees as many rows in all as there are tokens in the replies."""
    model, samples = tiny.model("t5", num_decoders=4), tiny.samples()
    rows = []
    norm = model.decoders[0].final_layer_norm
    handle = norm.register_forward_hook(lambda m, a, out: rows.append(len(out)))
    replies = decode(model, samples.context_NS, samples.context_mask_NS, config())
    handle.remove()
    assert sum(rows) == sum(len(response.tokens) for row in replies for response in row)
    assert rows[0] == 20 and rows[-1] < 20


@pytest.mark.parametrize("name, settings", tiny.VARIANTS, ids=IDS)
def test_float32_differs_only_where_the_choice_is_a_tie(name, settings):
    """Packed weights and other orders of summation may only flip a choice between two nearly equal tokens."""
    model, samples = tiny.model(name, num_decoders=2, dtype=torch.float32, **settings), tiny.samples()
    replies = decode(model, samples.context_NS, samples.context_mask_NS, config())
    exact = model.double()
    for k in range(2):
        for row, expected in enumerate(stock_generate(exact, samples, k)):
            found = replies[row][k].tokens
            if found != expected:
                place = next(i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b)
                prefix = torch.tensor([[*expected[:place], 0]])
                alone = samples.select(torch.tensor([row]))
                logits = exact(alone.context_NS, alone.context_mask_NS, torch.tensor([k]), prefix)[0, -1]
                best, second = logits.topk(2).values
                assert best - second < 1e-4


def test_packed_weights_follow_a_change_of_the_weights():
    model, samples = tiny.model("t5", dtype=torch.float32), tiny.samples()
    before = decode(model, samples.context_NS, samples.context_mask_NS, config())
    with torch.no_grad():
        for parameter in model.decoders[0].parameters():
            parameter.mul_(-1.3)
    after = decode(model, samples.context_NS, samples.context_mask_NS, config())
    fresh = decode(copy.deepcopy(model), samples.context_NS, samples.context_mask_NS, config())
    assert after == fresh != before
    assert not any("forward" in vars(module) for module in model.modules())
