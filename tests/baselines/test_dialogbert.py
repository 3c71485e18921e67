"""DialogBERT: how contexts are read and altered, its losses worked out by hand, and K samples in one batch."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pair import SENTENCES

from polyreply.baselines.dialogbert import DialogBertObjective, alter, order_divergence, order_scores, positions
from polyreply.baselines.settings import DialogBertSettings
from polyreply.data.context_format import ContextFormat, encode_contexts, encode_responses
from polyreply.data.tokenizer import train_tokenizer
from polyreply.distributed import Processes
from polyreply.errors import PolyReplyError, RecipeError
from polyreply.models.backbones import MiniConfig, load_bert
from polyreply.models.dialogbert import Turns, build_dialogbert, turn_tokenizer
from polyreply.models.model import PolyReplyModel
from polyreply.models.score import Limits, Samples
from polyreply.reply import PolyReply
from polyreply.training.recipe import load_train_recipe

SIZES = MiniConfig(d_model=12, d_ff=20, num_layers=2, num_decoder_layers=2, num_heads=3, dropout=0.0)
TURNS = (
    "How are you today?",
    "What a lovely day",
    "No way",
    "driving test",
    "really?",
    "I passed",
    "it is",
    "day",
    "test",
)


@pytest.fixture(scope="module")
def tokenizer():
    trained = train_tokenizer(SENTENCES * 3, vocab_size=320)
    trained.add_special_tokens({"cls_token": "<cls>", "sep_token": "<sep>", "mask_token": "<mask>"})
    return turn_tokenizer(trained, "here")


@pytest.fixture(scope="module")
def model(tokenizer):
    made = PolyReplyModel.from_backbone(
        build_dialogbert(tokenizer, SIZES, max_turns=5, max_turn_tokens=6),
        num_decoders=1,
        architecture="multi-decoder",
    )
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return made.double().eval()


def samples_of(tokenizer, contexts, responses=None):
    responses = responses or [SENTENCES[0]] * len(contexts)
    rows = (
        [torch.from_numpy(row).long() for row in encode(tokenizer, texts, ContextFormat())[0]]
        for encode, texts in ((encode_contexts, contexts), (encode_responses, responses))
    )
    padded = []
    for some in rows:
        ids = torch.nn.utils.rnn.pad_sequence(some, True, tokenizer.pad_token_id)
        padded += [ids, torch.arange(ids.shape[1]) < torch.tensor([[len(row)] for row in some])]
    return Samples(*padded)


def objective(model, **settings):
    torch.manual_seed(5)
    return DialogBertObjective(model, replace(DialogBertSettings(), **settings)).to(model.dtype)


def backward(made, model, samples, seed=0, limits=None):
    model.requires_grad_(True)
    model.zero_grad()
    made.zero_grad()
    rng = np.random.default_rng(seed)
    return made.backward(model, samples, len(samples), rng, Processes(), limits or Limits())


def many_turns(config, count, number):
    """Contexts of `count` turns each, whose only text token tells context and turn."""
    tokens = torch.full((number, count, 3), config.sep_token_id)
    tokens[..., 0] = config.cls_token_id
    tokens[..., 1] = 1000 + torch.arange(number * count).view(number, count)
    return Turns(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.full((number,), count))


def test_contexts_are_split_at_their_turns_and_cut(model, tokenizer):
    samples = samples_of(tokenizer, [TURNS[:3], TURNS[:1], TURNS])
    encoder = model.backbone.encoder
    turns = encoder.split(samples.context_NS, samples.context_mask_NS)
    assert turns.count_B.tolist() == [3, 1, 5]
    for row, kept in enumerate((TURNS[:3], TURNS[:1], TURNS[-5:])):
        for place, text in enumerate(kept):
            ids = tokenizer(text, add_special_tokens=False)["input_ids"][:4]
            expected = [tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]
            assert turns.tokens_BUL[row, place][turns.mask_BUL[row, place]].tolist() == expected
    assert not turns.mask_BUL[1, 1:].any()
    memory = model.encode(samples.context_NS, samples.context_mask_NS)
    assert memory.mask_BS.sum(1).tolist() == [5, 3, 7] and memory.states_BSD.shape == (3, 7, 12)


def test_states_do_not_depend_on_padding_or_on_other_contexts(model, tokenizer):
    samples = samples_of(tokenizer, [TURNS[:3], TURNS[:1], TURNS])
    together = model.encode(samples.context_NS, samples.context_mask_NS)
    for row, length in enumerate((5, 3, 7)):
        part = samples.select(torch.tensor([row]))
        alone = model.encode(part.context_NS, part.context_mask_NS)
        torch.testing.assert_close(together.states_BSD[row, :length], alone.states_BSD[0])


def test_the_model_reads_turns_in_their_order(model, tokenizer):
    one, other = (samples_of(tokenizer, [turns]) for turns in (TURNS[:3], TURNS[2::-1]))
    states = [model.encode(some.context_NS, some.context_mask_NS).states_BSD for some in (one, other)]
    assert (states[0] - states[1]).abs().max() > 1e-3


@pytest.mark.parametrize("count", range(1, 10))
def test_masks_are_as_frequent_as_the_context_is_long_and_80_10_10(model, count):
    config, number, settings = model.backbone.config, 6000, replace(DialogBertSettings(), shuffle_share=0.0)
    turns = many_turns(config, count, number)
    numbers = torch.from_numpy(np.random.default_rng(count).random((number, 5 + count)))
    altered = alter(turns, numbers, settings, config)
    share = (0.0, 0.1, 0.4, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0)[count - 1]
    masked = (altered.masked_B >= 0).nonzero()[:, 0]
    assert len(masked) / number == pytest.approx(share, abs=0.03)
    assert torch.equal(altered.original.tokens_BUL, turns.tokens_BUL) and not altered.is_shuffled_B.any()
    if not len(masked):
        return
    place = altered.masked_B[masked]
    assert torch.bincount(place, minlength=count).tolist() == pytest.approx([len(masked) / count] * count, rel=0.25)
    before, after = (some.tokens_BUL[masked, place, 1] for some in (turns, altered.turns))
    by_mask, unchanged = (after == config.mask_token_id), (after == before)
    shares = [float(kind.double().mean()) for kind in (by_mask, ~by_mask & ~unchanged, unchanged)]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.03 if share > 0.3 else 0.06)
    untouched = torch.ones(number, count, dtype=torch.bool).index_put((masked, place), torch.tensor(False))
    assert torch.equal(altered.turns.tokens_BUL[untouched], turns.tokens_BUL[untouched])


def test_shuffled_contexts_are_permutations_and_never_masked(model):
    config, number = model.backbone.config, 4000
    turns = many_turns(config, 4, number)
    numbers = torch.from_numpy(np.random.default_rng(1).random((number, 9)))
    altered = alter(turns, numbers, DialogBertSettings(mask_shares=(1.0,)), config)
    shuffled = altered.is_shuffled_B
    assert float(shuffled.double().mean()) == pytest.approx(0.4, abs=0.03)
    assert torch.equal(altered.masked_B >= 0, ~shuffled)
    moved = turns.tokens_BUL.take_along_dim(altered.order_BU[..., None], 1)
    assert torch.equal(altered.turns.tokens_BUL[shuffled], moved[shuffled])
    _, counts = altered.order_BU[shuffled].unique(dim=0, return_counts=True)
    assert len(counts) == math.factorial(4) and counts.min() > 0.5 * shuffled.sum() / 24


@given(seed=st.integers(0, 10_000), share=st.floats(0, 1))
def test_single_turns_are_neither_shuffled_nor_masked(model, seed, share):
    turns = many_turns(model.backbone.config, 1, 20)
    numbers = torch.from_numpy(np.random.default_rng(seed).random((20, 10)))
    altered = alter(turns, numbers, DialogBertSettings(shuffle_share=share), model.backbone.config)
    assert torch.equal(altered.turns.tokens_BUL, turns.tokens_BUL) and (altered.masked_B == -1).all()


def test_order_scores_and_their_divergence_by_hand():
    projected = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [1.0, 1.0], [9.0, 9.0]]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True, False]])
    scores = order_scores(projected, mask)
    assert scores[0, :3].tolist() == pytest.approx([(1 + 0 + 1) / 3, (0 + 4 + 2) / 3, (1 + 2 + 2) / 3])
    # Two turns of which the second comes first: the places of CLS, the turns and SEP are 0, 2, 1, 3.
    position = positions(torch.tensor([[1, 0]]), torch.tensor([2]))
    assert position.tolist() == [[0, 2, 1, 3]]
    true = [math.exp(goal) for goal in (3 / 3, 1 / 3, 2 / 3, 0 / 3)]
    found = [math.exp(score) for score in (0.3, -0.2, 0.5, 0.1)]
    expected = sum(
        t / sum(true) * math.log((t / sum(true)) / (f / sum(found))) for t, f in zip(true, found, strict=True)
    )
    scores = torch.tensor([[0.3, -0.2, 0.5, 0.1]], dtype=torch.float64)
    four = torch.ones(1, 4, dtype=torch.bool)
    assert float(order_divergence(scores, position, four)) == pytest.approx(expected)
    perfect = (3 - position).double() / 3
    assert float(order_divergence(perfect, position, four)) == pytest.approx(0, abs=1e-12)
    padded = order_divergence(*(torch.nn.functional.pad(x, (0, 2)) for x in (scores, position, four)))
    assert float(padded) == pytest.approx(expected)


def test_targets_of_the_regression_have_no_gradient(model, tokenizer):
    made, encoder = objective(model), model.backbone.encoder
    samples = samples_of(tokenizer, [TURNS[:3]] * 2)
    turns = encoder.split(samples.context_NS, samples.context_mask_NS)
    numbers = torch.tensor([[0.9, 0.0, 0.5, 0.1, 0.0, *[0.0] * 5]] * 2, dtype=torch.float64)
    altered = alter(turns, numbers, DialogBertSettings(mask_shares=(1.0,)), model.backbone.config)
    assert altered.masked_B.tolist() == [1, 1]
    model.requires_grad_(True)
    model.zero_grad()
    states = encoder.encode(altered.turns)
    states.last_hidden_state = states.last_hidden_state.detach()
    loss = made.regression_loss(encoder, altered, states, dummy_X=torch.tensor([], dtype=torch.long))
    loss.backward()
    assert all(parameter.grad is None for parameter in encoder.parameters())
    assert made.regression.dense.weight.grad is not None
    ids = [
        tokenizer.cls_token_id,
        *tokenizer(TURNS[1], add_special_tokens=False)["input_ids"][:4],
        tokenizer.sep_token_id,
    ]
    target = encoder.pooled(torch.tensor([ids]), torch.ones(1, len(ids)))
    found = made.regression(states.last_hidden_state[:1, 2])
    assert float(loss.detach()) == pytest.approx(2 * float((found - target).detach().square().mean()))


def test_no_response_is_learned_from_a_shuffled_context(model, tokenizer):
    samples = samples_of(tokenizer, [TURNS[:4]] * 6)
    made = objective(model, shuffle_share=1.0)
    totals = backward(made, model, samples)
    head = model.backbone.decoder.embed_tokens.weight
    assert float(totals.nll_K) == 0 and totals.parts["shuffled"] == 6 and totals.parts["masked"] == 0
    assert head.grad is None or not head.grad.any()
    assert model.backbone.encoder.context.encoder.layer[0].output.dense.weight.grad.any()
    assert float(totals.parts["order"]) > 0
    some = backward(objective(model, mask_shares=(0.0,)), model, samples)
    nll = backward(objective(model, shuffle_share=0.0, mask_shares=(0.0,)), model, samples)
    kept = 6 - int(some.parts["shuffled"])
    assert 0 < kept < 6 and float(some.nll_K) == pytest.approx(float(nll.nll_K) * kept / 6)


def test_single_turn_data_has_no_order_and_a_dummy_target_and_says_so(model, tokenizer):
    samples, made, encoder = samples_of(tokenizer, [TURNS[:1], TURNS[1:2]]), objective(model), model.backbone.encoder
    totals = backward(made, model, samples)
    assert [float(totals.parts[name]) for name in ("order", "masked", "shuffled")] == [0, 0, 0]
    with torch.no_grad():
        memory = model.encode(samples.context_NS, samples.context_mask_NS)
        target = encoder.pooled(torch.full((1, 3), tokenizer.pad_token_id), torch.ones(1, 3))
    expected = (made.regression(memory.states_BSD[:1, 0]) - target).detach().square().mean()
    assert float(totals.parts["regression"]) == pytest.approx(float(expected))
    assert float(totals.tokens_K) == float(samples.response_mask_NT.sum())


def test_gradients_do_not_depend_on_chunks(model, tokenizer):
    samples = samples_of(tokenizer, [TURNS[:5], TURNS[:2], TURNS[2:6], TURNS[:1], TURNS], SENTENCES + SENTENCES[:1])
    made = objective(model)
    found = []
    for limits in (Limits(), Limits(max_tokens=8, max_logits=700)):
        totals = backward(made, model, samples, seed=2, limits=limits)
        gradients = [p.grad for p in (*model.parameters(), *made.parameters()) if p.grad is not None]
        found.append([*gradients, totals.nll_K, *totals.parts.values()])
        assert totals.parts["masked"] > 0 and totals.parts["shuffled"] > 0
    assert len(found[0]) == len(found[1])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_k_samples_in_one_batch_are_draws_from_the_top_k(model, tokenizer):
    poly, context, top = PolyReply(model, tokenizer), TURNS[:3], 5
    options = {"decode": "top-k", "top_k": top, "max_new_tokens": 1, "min_new_tokens": 0}
    draws = poly.reply(context, k=1500, seed=1, **options)
    samples = samples_of(tokenizer, [context])
    memory = model.encode(samples.context_NS, samples.context_mask_NS)
    start = torch.tensor([[tokenizer.cls_token_id]])
    logits = model.backbone(
        attention_mask=memory.mask_BS.long(), encoder_outputs=(memory.states_BSD,), decoder_input_ids=start
    )
    largest = logits.logits[0, 0].topk(top)
    log_share = largest.values.log_softmax(0)
    counts = {float(logprob): 0 for logprob in logits.logits[0, 0].detach().log_softmax(0)[largest.indices]}
    for draw in draws:
        nearest = min(counts, key=lambda logprob: abs(logprob - draw.logprob))
        assert nearest == pytest.approx(draw.logprob, abs=1e-6)
        counts[nearest] += 1
    assert [count / 1500 for count in counts.values()] == pytest.approx(log_share.exp().tolist(), abs=0.04)
    one, again, other = (poly.reply(context, k=20, seed=seed, **options) for seed in (1, 1, 2))
    assert one == again != other
    with pytest.raises(PolyReplyError, match=r"k from 1 to 1, the number of decoders, found 4; .*top-k"):
        poly.reply(context, k=4)
    with pytest.raises(PolyReplyError, match=r"top_k must be 1 or more, found 0"):
        poly.reply(context, decode="top-k", top_k=0)


def test_a_pretrained_utterance_encoder_keeps_its_weights(model, tokenizer, tmp_path):
    model.backbone.encoder.utterance.float().save_pretrained(tmp_path)
    model.double()
    tokenizer.save_pretrained(tmp_path)
    bert, loaded = load_bert(tmp_path)
    made = build_dialogbert(turn_tokenizer(loaded, "here"), bert, seed=1)
    assert made.config.d_model == 12 and made.config.decoder_layers == 2
    own = made.encoder.utterance.state_dict()
    assert all(torch.equal(own[name], weight) for name, weight in bert.state_dict().items())


def test_an_utterance_encoder_comes_from_a_package():
    bert, tokenizer = load_bert("minilm-l6-pip")
    assert (bert.config.hidden_size, bert.config.num_hidden_layers) == (384, 6)
    assert turn_tokenizer(tokenizer, "minilm").eos_token == "[SEP]"


def test_what_cannot_be_trained_is_one_clear_line(tmp_path):
    plain = train_tokenizer(SENTENCES * 3, vocab_size=320)
    with pytest.raises(PolyReplyError, match=r"found in plain one without cls_token, sep_token, mask_token; "):
        turn_tokenizer(plain, "plain")
    with pytest.raises(PolyReplyError, match=r"num_heads to divide d_model 12, found 5"):
        build_dialogbert(plain, replace(SIZES, num_heads=5))
    with pytest.raises(RecipeError, match=r"prefix or turn_separator, but dialogbert"):
        load_train_recipe("dialogbert", ["data=x", "out=y", "context.prefix=Reply"])
    with pytest.raises(RecipeError, match=r"(?s)max_turns is 0.*mask_shares is \[2.0\]"):
        load_train_recipe("dialogbert", ["data=x", "out=y", "dialogbert.max_turns=0", "dialogbert.mask_shares=[2]"])
    with pytest.raises(PolyReplyError, match=r"expected a BERT as utterance encoder, found in .* a t5; "):
        (tmp_path / "config.json").write_text('{"model_type": "t5"}')
        load_bert(tmp_path)
