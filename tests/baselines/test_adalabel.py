"""AdaLabel: its targets worked out by hand, where gradients go, and what the auxiliary decoder sees."""

import math
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch

from polyreply.baselines.adalabel import AdaLabel, Smoothing, divergence, smooth, smoothing_factor
from polyreply.baselines.settings import AdaLabelSettings
from polyreply.distributed import Processes
from polyreply.errors import PolyReplyError, RecipeError
from polyreply.models.rows import Rows
from polyreply.models.score import Limits
from polyreply.training.recipe import load_train_recipe

PLAIN = AdaLabelSettings(temperature=2.0, candidates=4)
LOGITS = torch.tensor([[9.0, 2.0, 4.0, 6.0, 8.0, 0.0, 3.0]], dtype=torch.float64)
GOLD = torch.tensor([3])


def objective(model, settings=PLAIN):
    """AdaLabel for a model, with auxiliary weights large enough to matter."""
    torch.manual_seed(5)
    made = AdaLabel(model, settings, tiny.PAD)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return made.to(model.dtype)


@pytest.fixture(scope="module")
def single():
    return tiny.model("t5", num_decoders=1, architecture="multi-decoder")


def test_v_is_the_softmax_of_the_largest_logits_without_target_padding_and_the_very_largest():
    found = smooth(LOGITS, GOLD, PLAIN, pad_id=0)
    # Without 0 (padding) and 3 (the target), the four largest are 4, 2, 6, 1 with 8, 4, 3, 2; 4 is left out.
    assert found.token_PC.tolist() == [[2, 6, 1]]
    shares = [math.exp(logit / 2) for logit in (4, 3, 2)]
    assert found.v_PC[0].tolist() == pytest.approx([share / sum(shares) for share in shares])
    everything = smooth(LOGITS, GOLD, replace(PLAIN, candidates=500), pad_id=0)
    v_V = torch.zeros(7, dtype=torch.float64).scatter(0, everything.token_PC[0], everything.v_PC[0])
    assert v_V[[0, 3, 4]].tolist() == [0, 0, 0] and float(v_V.sum()) == pytest.approx(1)


@pytest.mark.parametrize(
    "p, expected",
    [
        ([0.1, 0.6, 0.3], 0.4 * 0.5**2),  # 1 − p_max is the smaller bound
        ([0.3, 0.4, 0.3], (1 / 1.5 - 0.2) * 0.75**2),  # 1 / (1 + max v) − margin is
        ([0.05, 0.05, 0.9], 0.1),  # the target is the likeliest token
        ([0.999, 0.0005, 0.0005], 0.001 * (0.0005 / 0.999) ** 2),  # the model is sure and wrong
    ],
)
def test_epsilon_by_hand(p, expected):
    log_p = torch.tensor([p], dtype=torch.float64).log()
    smoothing = Smoothing(torch.tensor([[0, 1]]), torch.tensor([[0.5, 0.5]], dtype=torch.float64))
    found = smoothing_factor(log_p, torch.tensor([2]), smoothing, AdaLabelSettings())
    assert float(found) == pytest.approx(expected)


def test_the_loss_is_the_divergence_of_the_smoothed_target_and_without_smoothing_cross_entropy():
    log_p = LOGITS.log_softmax(-1)
    smoothing = smooth(LOGITS.flip(1), GOLD, PLAIN, pad_id=0)
    for epsilon in (0.3, 1e-12, 0.0):
        q = torch.zeros(7, dtype=torch.float64).scatter(0, smoothing.token_PC[0], epsilon * smoothing.v_PC[0])
        q[3] += 1 - epsilon
        expected = float(torch.xlogy(q, q).sum() - (q * log_p[0]).sum())
        found = float(divergence(log_p, GOLD, torch.tensor([epsilon], dtype=torch.float64), smoothing))
        assert found == pytest.approx(expected, abs=1e-12)
        if epsilon < 1e-6:
            assert found == pytest.approx(-float(log_p[0, 3]), abs=1e-9)


def test_no_gradient_passes_through_v_or_epsilon(single):
    own = LOGITS.flip(1).clone().requires_grad_()
    auxiliary = LOGITS.clone().requires_grad_()
    made = objective(single)
    made._sums = dict.fromkeys(("kl", "auxiliary", "epsilon"), torch.zeros(()))
    loss, nll = made.losses([own, auxiliary], GOLD)
    loss.sum().backward()
    # With q constant the gradient of KL(q‖p) is p − q, and the auxiliary decoder learns by cross-entropy alone.
    smoothing = smooth(LOGITS, GOLD, PLAIN, tiny.PAD)
    log_p = own.detach().log_softmax(-1)
    epsilon = smoothing_factor(log_p, GOLD, smoothing, PLAIN)
    q = torch.zeros(1, 7, dtype=torch.float64).scatter(1, smoothing.token_PC, epsilon * smoothing.v_PC)
    q[0, 3] += 1 - float(epsilon)
    torch.testing.assert_close(own.grad, log_p.exp() - q)
    one_hot = torch.nn.functional.one_hot(GOLD, 7)
    torch.testing.assert_close(auxiliary.grad, LOGITS.softmax(-1) - one_hot)
    assert float(nll) == pytest.approx(-float(log_p[0, 3])) and float(epsilon) > 0


@pytest.mark.parametrize("name", tiny.ENCODER_DECODER)
def test_the_auxiliary_decoder_sees_every_token_but_its_own(name):
    model = tiny.model(name, num_decoders=1, architecture="multi-decoder")
    made, samples = objective(model).eval(), tiny.samples(lengths=((5, 6), (4, 3)))
    rows = Rows.grid(2, [0])
    memory = model.encode(samples.context_NS, samples.context_mask_NS)

    def states(response):
        mask = samples.response_mask_NT
        return made.further_states(model, response, mask, rows, memory)[0][mask].split([6, 3])[0]

    before = states(samples.response_NT)
    for place in range(5):
        changed = samples.response_NT.clone()
        changed[0, place] = (changed[0, place] + 7) % tiny.VOCABULARY
        moved = (states(changed) - before).abs().amax(1) > 1e-9
        assert moved.tolist() == [other != place for other in range(6)]
    padded = samples.response_NT.clone()
    padded[1, 3:] = 9
    torch.testing.assert_close(states(padded), before)


def test_gradients_are_those_of_one_large_graph_and_reach_the_encoder(single):
    made, samples = objective(single).eval(), tiny.samples()
    single.requires_grad_(True)
    totals = made.backward(
        single, samples, len(samples), np.random.default_rng(0), Processes(), Limits(8, max_logits=99)
    )
    parameters = [*single.parameters(), *made.parameters()]
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    single.zero_grad()
    made.zero_grad()

    rows, mask = Rows.grid(len(samples), [0]), samples.response_mask_NT
    memory = single.encode(samples.context_NS, samples.context_mask_NS)
    states = [single.response_states(samples.response_NT, rows, memory)]
    states += made.further_states(single, samples.response_NT, mask, rows, memory)
    loss, nll = made.losses([single.logits(one[mask]) for one in states], samples.response_NT[mask])
    loss.mean().backward()
    for ours, parameter in zip(found, parameters, strict=True):
        torch.testing.assert_close(ours, torch.zeros_like(ours) if parameter.grad is None else parameter.grad)
    assert float(totals.nll_K) == pytest.approx(float(nll.sum()))
    assert float(totals.parts["kl"] + totals.parts["auxiliary"]) == pytest.approx(float(loss.detach().mean()), rel=1e-6)

    single.zero_grad()
    memory = single.encode(samples.context_NS, samples.context_mask_NS)
    made.further_states(single, samples.response_NT, mask, rows, memory)[0].sum().backward()
    encoder = single.backbone.encoder.block[0].layer[0].SelfAttention.q.weight
    assert encoder.grad is not None and encoder.grad.abs().sum() > 0
    single.zero_grad()


def test_what_cannot_be_trained_is_one_clear_line():
    with pytest.raises(PolyReplyError, match=r"adalabel expected an encoder-decoder backbone .*found llama"):
        AdaLabel(tiny.model("llama", num_decoders=1), AdaLabelSettings(), None)
    with pytest.raises(RecipeError, match=r"stage1 is adapter, but adalabel trains all weights"):
        load_train_recipe("adalabel", ["data=x", "out=y", "model.stage1=adapter"])
    with pytest.raises(RecipeError, match=r"(?s)temperature is 0.0.*candidates is 1"):
        load_train_recipe("adalabel", ["data=x", "out=y", "adalabel.temperature=0", "adalabel.candidates=1"])
