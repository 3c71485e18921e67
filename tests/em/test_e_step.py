"""The E-step on beginnings alone, and with whole responses for the decoders that can still win."""

import pytest
import tiny
import torch

from polyreply.em.e_step import e_step
from polyreply.em.settings import EMSettings
from polyreply.models.score import nll_NK, nll_pairs

K = 4


@pytest.fixture(scope="module", params=["t5", "llama", "gpt2"])
def model(request):
    return tiny.model(request.param, num_decoders=K)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_chosen_pairs_score_as_all_pairs_do(model, reduce):
    samples = tiny.samples()
    sample_P, decoder_P = torch.tensor([[3, 0], [0, 2], [4, 1], [0, 0], [1, 3]]).T
    expected = nll_NK(model, samples, reduce=reduce)[sample_P, decoder_P]
    torch.testing.assert_close(nll_pairs(model, samples, sample_P, decoder_P, reduce=reduce), expected)


def test_candidates_are_scored_whole_and_the_others_stay_behind(model):
    samples = tiny.samples()
    whole = e_step(model, samples).nll_NK
    begin = e_step(model, samples, EMSettings(e_step_max_tokens=2)).nll_NK
    pruned = e_step(model, samples, EMSettings(e_step_max_tokens=2, e_step_candidates=2)).nll_NK
    best = begin.topk(2, largest=False).indices
    torch.testing.assert_close(pruned.gather(1, best), whole.gather(1, best))
    others = begin.topk(2).indices
    rest = (whole - begin).gather(1, best).mean(1, keepdim=True)
    torch.testing.assert_close(pruned.gather(1, others), begin.gather(1, others) + rest)


def test_with_all_decoders_as_candidates_nothing_is_estimated(model):
    found = e_step(model, tiny.samples(), EMSettings(e_step_max_tokens=1, e_step_candidates=K))
    torch.testing.assert_close(found.nll_NK, e_step(model, tiny.samples()).nll_NK)


def test_candidates_need_beginnings():
    assert any("e_step_candidates" in problem for problem in EMSettings(e_step_candidates=2).problems())
    assert not list(EMSettings(e_step_candidates=2, e_step_max_tokens=4).problems())
