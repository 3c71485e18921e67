"""One optimizer step equals one for each decoder by itself, and a decoder without samples stays as it is."""

import copy

import numpy as np
import pytest
import tiny
import torch

from polyreply.data.batches import DrawStream
from polyreply.distributed import Processes
from polyreply.em.e_step import e_step
from polyreply.em.em_step import EM, _parts, em_step
from polyreply.em.m_step import m_step
from polyreply.em.optimizer import DecoderOptimizer, learning_rate_at
from polyreply.em.settings import EMSettings, OptimizerSettings
from polyreply.models.score import Limits, nll_NK

K = 3
VARIANTS = [("t5", {}), ("bart", {}), ("llama", {}), ("t5", {"architecture": "multi-decoder"})]
IDS = ["t5", "bart", "llama", "t5-multi-decoder"]


def fresh(name, **settings):
    return copy.deepcopy(tiny.model(name, num_decoders=K, **settings))


def hard_weights(decoders):
    return torch.nn.functional.one_hot(torch.tensor(decoders), K).double()


def parameters_of(model, k):
    """The weights of decoder k by name, copied."""
    if model.config.architecture == "multi-adapter":
        return {name: p[k].detach().clone() for name, p in model.adapters.named_parameters()}
    return {name: p.detach().clone() for name, p in model.decoders[k].named_parameters() if "embed_tokens" not in name}


def take_step(model, optimizer, samples, weights, limits=None):
    totals = m_step(model, samples, weights, len(samples), limits=limits)
    optimizer.step((totals.samples_K > 0).tolist(), optimizer.settings.learning_rate)
    return totals.nll_K


@pytest.mark.parametrize("name, settings", VARIANTS, ids=IDS)
@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.05}, {"relative": True}], ids=["plain", "clipped", "relative"])
def test_a_step_of_all_is_a_step_of_each_alone(name, settings, options):
    samples, weights = tiny.samples(), hard_weights([0, 1, 2, 0, 1][: len(tiny.samples())])
    together, options = fresh(name, **settings), OptimizerSettings(**options)
    optimizer = DecoderOptimizer(together, options, train_shared=False)
    for _ in range(2):
        take_step(together, optimizer, samples, weights)
    for k in range(K):
        alone = fresh(name, **settings)
        own = DecoderOptimizer(alone, options, train_shared=False)
        for _ in range(2):
            take_step(alone, own, samples, weights * torch.nn.functional.one_hot(torch.tensor(k), K))
        for key, value in parameters_of(alone, k).items():
            torch.testing.assert_close(parameters_of(together, k)[key], value, rtol=1e-7, atol=1e-10, msg=key)


@pytest.mark.parametrize("name, settings", VARIANTS, ids=IDS)
def test_a_decoder_without_samples_keeps_weights_and_moments(name, settings):
    samples, model = tiny.samples(), fresh(name, **settings)
    optimizer = DecoderOptimizer(model, OptimizerSettings(), train_shared=False)
    number = len(samples)
    take_step(model, optimizer, samples, hard_weights([i % K for i in range(number)]))
    before = parameters_of(model, 2)
    moments = {key: value.clone() for key, value in optimizer.state_dict().items()}
    shared = [p.clone() for p in model.shared_parameters()]
    others = [parameters_of(model, k) for k in (0, 1)]
    take_step(model, optimizer, samples, hard_weights([i % 2 for i in range(number)]))
    for key, value in parameters_of(model, 2).items():
        assert torch.equal(value, before[key]), key
    after = optimizer.state_dict()
    place = {id(p): str(i) for i, p in enumerate(p for group in optimizer.adam.param_groups for p in group["params"])}
    own = {place[id(piece)] for piece, _ in optimizer._decoders[2]}
    for key, value in moments.items():
        assert torch.equal(after[key], value) == (key.split(".")[0] in own), key
    for k in (0, 1):
        assert any(not torch.equal(value, others[k][key]) for key, value in parameters_of(model, k).items())
    assert all(torch.equal(a, b) for a, b in zip(shared, model.shared_parameters(), strict=True))


@pytest.mark.parametrize("name, settings", VARIANTS, ids=IDS)
def test_small_chunks_give_the_update_of_one_large_batch(name, settings):
    samples = tiny.samples()
    weights = torch.rand(len(samples), K, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    models = [fresh(name, **settings) for _ in range(2)]
    for model, limits in zip(models, (Limits(1 << 20, 1 << 24), Limits(5, 100)), strict=True):
        take_step(model, DecoderOptimizer(model, OptimizerSettings(), train_shared=False), samples, weights, limits)
    for k in range(K):
        for key, value in parameters_of(models[0], k).items():
            torch.testing.assert_close(parameters_of(models[1], k)[key], value, rtol=1e-6, atol=1e-9, msg=key)


class OneOfTwo(Processes):
    """A process whose sums are those of all samples, as if the others had added theirs."""

    def __init__(self, totals):
        super().__init__()
        self.totals = totals

    def sum_(self, tensors):
        for tensor, total in zip(tensors, self.totals, strict=True):
            tensor.copy_(total)


def test_parts_of_an_em_step_add_up_to_it():
    """What two processes do: each its own samples, with the totals of all."""
    samples, weights = tiny.samples(), torch.rand(5, K, dtype=torch.float64)[: len(tiny.samples())]
    whole, parts = fresh("t5"), fresh("t5")
    totals = m_step(whole, samples, weights, len(samples))
    for index in (torch.tensor([0, 2, 4]), torch.tensor([1, 3])):
        index = index[index < len(samples)]
        others = OneOfTwo((totals.tokens_K, totals.samples_K))
        m_step(parts, samples.select(index), weights[index], len(samples), others)
    for a, b in zip(whole.decoder_parameters(), parts.decoder_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-12)


def test_the_loss_is_the_weighted_nll_and_the_prior_learns_the_weights():
    samples, model = tiny.samples(), fresh("t5", prior="learned")
    weights = hard_weights([1] * len(samples))
    expected = (weights * nll_NK(model, samples)).sum(0)
    optimizer = DecoderOptimizer(model, OptimizerSettings(learning_rate=0.01), train_shared=False)
    torch.testing.assert_close(take_step(model, optimizer, samples, weights), expected)

    def prior_of_decoder_1():
        with torch.no_grad():
            memory = model.encode(samples.context_NS, samples.context_mask_NS)
            return model.log_prior(memory)[:, 1].mean().item()

    before = prior_of_decoder_1()
    for _ in range(20):
        take_step(model, optimizer, samples, weights)
    assert prior_of_decoder_1() > before + 0.1


def test_shared_weights_move_only_when_they_are_trained():
    samples, model = tiny.samples(), fresh("t5")
    shared = [p.clone() for p in model.shared_parameters()]
    optimizer = DecoderOptimizer(model, OptimizerSettings(), train_shared=True)
    take_step(model, optimizer, samples, hard_weights([i % K for i in range(len(samples))]))
    assert any(not torch.equal(a, b) for a, b in zip(shared, model.shared_parameters(), strict=True))


def test_optimizer_state_survives_saving():
    samples, weights = tiny.samples(), hard_weights([i % K for i in range(len(tiny.samples()))])
    first = fresh("t5")
    optimizer = DecoderOptimizer(first, OptimizerSettings(), train_shared=False)
    take_step(first, optimizer, samples, weights)
    second = copy.deepcopy(first)
    other = DecoderOptimizer(second, OptimizerSettings(), train_shared=False)
    other.load_state_dict({key: value.clone() for key, value in optimizer.state_dict().items()})
    for model, own in ((first, optimizer), (second, other)):
        take_step(model, own, samples, weights)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_a_relative_step_is_a_share_of_the_size_of_the_weights():
    samples, model = tiny.samples(), fresh("t5")
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = DecoderOptimizer(model, OptimizerSettings(learning_rate=0.02, relative=True), train_shared=True)
    take_step(model, optimizer, samples, hard_weights([i % K for i in range(len(samples))]))
    shared = {id(p) for p in model.shared_parameters()}
    checked = set()
    for name, after in model.named_parameters():
        moved = (after - before[name]).abs().max()
        if id(after) in shared and moved:  # Adam's first step is the learning rate wherever there is a gradient
            size = before[name].square().mean().sqrt()
            assert moved.item() == pytest.approx(0.02 * size.item(), rel=1e-3), name
            checked.add(round(size.item(), 6))
    assert len(checked) > 3


def test_learning_rates():
    linear = OptimizerSettings(learning_rate=1.0, schedule="linear", warmup_steps=4)
    assert [learning_rate_at(step, 8, linear) for step in range(8)] == [0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5, 0.25]
    cosine = OptimizerSettings(learning_rate=1.0, schedule="cosine")
    assert learning_rate_at(0, 10, cosine) == 1.0 and learning_rate_at(5, 10, cosine) == pytest.approx(0.5)
    assert learning_rate_at(7, 10, OptimizerSettings(learning_rate=0.3)) == 0.3


class Corpus:
    """Twelve samples, as many as a draw."""

    samples = tiny.samples(lengths=[(1 + n % 5, 2 + n % 4) for n in range(12)])
    response_lengths = samples.response_mask_NT.sum(1).numpy()

    def __len__(self):
        return 12


class Training(EM):
    """An EM training of a tiny model at its first step."""

    def __init__(self, **settings):
        model, corpus = fresh("t5"), Corpus()
        optimizer = DecoderOptimizer(model, OptimizerSettings(), train_shared=False)
        chosen = EMSettings(e_step_size=12, **settings)
        super().__init__("eqhard-em", model, corpus, DrawStream(12, size=12), optimizer, chosen, total_steps=4)

    def samples(self, ids_n):
        return Corpus.samples.select(torch.from_numpy(ids_n))


def test_parts_hold_every_sample_once_and_equally_many_of_each_decoder():
    em = Training(m_step_parts=2, m_step_passes=3)
    weights_NK = np.eye(K)[np.random.default_rng(0).permutation(np.arange(12) % K)]
    parts = list(_parts(em, weights_NK))
    assert len(parts) == 6
    np.testing.assert_array_equal(parts[0] + parts[1], weights_NK)
    for place, part_NK in enumerate(parts):
        np.testing.assert_array_equal(part_NK, parts[place % 2])
        assert part_NK.sum(0).tolist() == [2, 2, 2]


def test_two_passes_are_two_optimizer_steps_with_one_assignment(monkeypatch):
    scored = []
    monkeypatch.setattr("polyreply.em.em_step.e_step", lambda *given: scored.append(1) or e_step(*given))
    once, twice = Training(), Training(m_step_passes=2)
    for em in (once, twice):
        em_step(em)
    assert len(scored) == 2
    states = [em.optimizer.state_dict() for em in (once, twice)]
    assert [{int(value) for name, value in state.items() if name.endswith(".step")} for state in states] == [{1}, {2}]


def test_a_process_without_samples_of_a_part_adds_nothing():
    model, nobody = fresh("t5"), torch.tensor([], dtype=torch.long)
    totals = m_step(model, tiny.samples().select(nobody), torch.zeros(0, K), num_samples=1)
    assert totals.nll_K.tolist() == [0] * K
    assert all(p.grad is None for p in model.parameters())
