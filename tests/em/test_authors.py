"""What the code of the paper's authors does otherwise: idle decoders drift, other means, steps in turn, shares."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import runs
import tiny
import torch

from polyreply.em.assign import Evidence, assign
from polyreply.em.e_step import e_step
from polyreply.em.em_step import em_step
from polyreply.em.m_step import m_step
from polyreply.em.optimizer import DecoderOptimizer
from polyreply.em.settings import OptimizerSettings
from polyreply.errors import RecipeError
from polyreply.models.score import nll_NK
from polyreply.training.loop import Run
from polyreply.training.recipe import load_train_recipe

K = 3
DRIFT = OptimizerSettings(learning_rate=0.01, idle="drift", loss="samples")


def one_hot(decoders):
    return torch.nn.functional.one_hot(torch.tensor(decoders), K).double()


def differentiable_nll(model, samples):
    """NLL per token of each sample under all decoders, (N, K), one large graph."""
    columns = []
    for k in range(K):
        labels = samples.response_NT.masked_fill(~samples.response_mask_NT, -100)
        decoder_ids = torch.full((len(samples),), k)
        logits = model(samples.context_NS, samples.context_mask_NS, decoder_ids, labels)
        nll = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
        columns.append(nll.sum(1) / samples.response_mask_NT.sum(1))
    return torch.stack(columns, 1)


@pytest.mark.parametrize("architecture", ["multi-adapter", "multi-decoder"])
def test_idle_decoders_drift_as_under_one_adamw_with_gradients_of_zero(architecture):
    samples, made = tiny.samples(), tiny.model("t5", num_decoders=K, architecture=architecture)
    ours, theirs = copy.deepcopy(made), copy.deepcopy(made)
    optimizer = DecoderOptimizer(ours, DRIFT, train_shared=False)
    parameters = list(theirs.decoder_parameters())
    theirs.requires_grad_(False)
    for parameter in parameters:
        parameter.requires_grad_(True)
    adamw = torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.0)
    for decoders in ([0, 1, 2, 0, 1], [1, 1, 1, 1, 1], [1, 0, 1, 0, 0]):
        before = [p[2].clone() if architecture == "multi-adapter" else None for p in parameters]
        weights = one_hot(decoders)
        totals = m_step(ours, samples, weights, len(samples), reduce="samples")
        optimizer.step((totals.samples_K > 0).tolist(), 0.01)
        adamw.zero_grad(set_to_none=False)
        (weights * differentiable_nll(theirs, samples)).sum(1).mean().backward()
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        adamw.step()
        moved = [not torch.equal(p[2], old) for p, old in zip(parameters, before, strict=True) if old is not None]
        assert architecture == "multi-decoder" or any(moved), "decoder 2 has no samples after the first step, and moves"
    for own, expected in zip(ours.decoder_parameters(), parameters, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-6, atol=1e-9)


def test_the_mean_of_sample_means_is_reported_per_token_all_the_same():
    samples, model = tiny.samples(), tiny.model("t5", num_decoders=K)
    weights = one_hot([0, 1, 2, 0, 1])
    totals = m_step(model, samples, weights, len(samples), reduce="samples")
    torch.testing.assert_close(totals.nll_K, (weights * nll_NK(model, samples)).sum(0))
    model.zero_grad()


def run_of(corpus, stage1, folder, *settings):
    made = runs.recipe(corpus, folder, f"model.backbone={stage1}", "optimizer.learning_rate=0.01", *settings)
    return Run(made, callbacks=[])


def without_dropout(model):
    for module in model.modules():
        for name in ("p", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def decoders_of(run):
    return [parameter.detach().clone() for parameter in run.em.model.decoder_parameters()]


def test_steps_in_turn_are_steps_together_unless_idle_decoders_drift(corpus, stage1, tmp_path):
    found = {}
    for idle in ("rest", "drift"):
        for updates in ("together", "in-turn"):
            settings = [f"optimizer.idle={idle}", f"em.updates={updates}", "precision=float64"]
            with run_of(corpus, stage1, tmp_path / f"{idle}-{updates}", *settings) as run:
                without_dropout(run.em.model)
                for _ in range(2):
                    record = em_step(run.em)
                found[idle, updates] = decoders_of(run)
                assert record.usage_K == pytest.approx([1 / K] * K)
    pairs = {idle: zip(found[idle, "together"], found[idle, "in-turn"], strict=True) for idle in ("rest", "drift")}
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs["rest"])
    gaps = [float((a - b).abs().max()) for a, b in pairs["drift"]]
    assert max(gaps) > 1e-3, "decoders drift while the others take their steps"


def test_shares_are_counted_without_dropout(corpus, stage1, tmp_path):
    settings = ["method=hard-em", "em.e_step_dropout=true", "em.usage=eval", "em.likelihood=mean", "em.e_step_size=32"]
    with run_of(corpus, stage1, tmp_path / "run", *settings, "model.adapter_init=linear") as run:
        em = run.em
        differs = False
        for _ in range(3):
            plan = em.stream.plan(em.stream.epoch).batch(em.stream.step)
            own = e_step(em.model, em.samples(plan), replace(em.settings, e_step_dropout=False), em.limits)
            evidence = Evidence(*(part.numpy() for part in own), plan, seed=em.seed, step=em.step)
            expected = assign("hard-em", evidence).weights_NK.mean(0)
            with em.computing("e-step"):
                noisy = e_step(em.model, em.samples(plan), em.settings, em.limits).nll_NK.argmin(1)
            record = em_step(em)
            assert record.usage_K == pytest.approx(expected.tolist())
            differs |= not np.allclose(expected, torch.bincount(noisy, minlength=K) / len(plan))
        assert differs, "dropout decides at least one sample"


def test_the_recipe_holds_all_of_it_and_fits_both_methods():
    hard = load_train_recipe("authors", ["data=x", "out=y"])
    assert hard.method == "hard-em" and hard.em.e_step_size == 64 and hard.model.num_decoders == 10
    assert (hard.em.likelihood, hard.em.cost, hard.em.e_step_dropout, hard.em.usage) == ("mean", "nll", True, "eval")
    assert (hard.optimizer.learning_rate, hard.optimizer.idle, hard.optimizer.loss) == (5e-5, "drift", "samples")
    plain = ("constant", None, 0.0)
    assert (hard.optimizer.schedule, hard.optimizer.clip_norm, hard.optimizer.weight_decay) == plain
    balanced = ["method=eqhard-em", "em.updates=in-turn", "optimizer.loss=tokens", "data=x", "out=y"]
    assert load_train_recipe("authors", [*balanced, "em.e_step_size=640"]).em.e_step_size == 640
    with pytest.raises(RecipeError, match="e_step_size 64 cannot be split equally over 10"):
        load_train_recipe("authors", balanced)
