"""bfloat16 is chosen where the device claims it and is faster with it, and nowhere else."""

import json

import pytest
import torch
from torch import nn

from polyreply import precision
from polyreply.errors import PolyReplyError
from polyreply.precision import auto_dtype, computing_in
from polyreply.reply import _dtype_of
from polyreply.training.recipe import TrainRecipe
from polyreply.training.setup import _autocast


@pytest.fixture
def processor(monkeypatch):
    """Sets what the processor claims and how long a product takes in each type."""
    monkeypatch.delenv("POLYREPLY_PRECISION")

    def set_up(claims, float32, bfloat16):
        precision._cpu_pays.cache_clear()
        seconds = {torch.float32: float32, torch.bfloat16: bfloat16}
        monkeypatch.setattr(precision, "_cpu_claims", lambda: claims)
        monkeypatch.setattr(precision, "_seconds", lambda dtype, width: seconds[dtype])

    yield set_up
    precision._cpu_pays.cache_clear()


@pytest.mark.parametrize(
    "claims, float32, bfloat16, expected",
    [
        (True, 2.0, 1.0, torch.bfloat16),
        (True, 1.0, 1.0, torch.float32),  # it claims too much
        (True, 1.1, 1.0, torch.float32),  # not worth the lost digits
        (False, 2.0, 1.0, torch.float32),
    ],
)
def test_a_cpu_must_claim_it_and_be_faster(claims, float32, bfloat16, expected, processor):
    processor(claims, float32, bfloat16)
    assert auto_dtype("cpu") == expected
    assert _autocast(TrainRecipe(precision="auto"), torch.device("cpu"), 512) == (
        torch.bfloat16 if expected == torch.bfloat16 else None
    )


def test_a_recipe_overrides_it(processor):
    processor(True, 2.0, 1.0)
    assert _autocast(TrainRecipe(precision="float32"), torch.device("cpu"), 512) is None
    assert _autocast(TrainRecipe(precision="bfloat16"), torch.device("cpu"), 512) == torch.bfloat16


def test_the_environment_says_what_auto_means(monkeypatch):
    monkeypatch.setenv("POLYREPLY_PRECISION", "bfloat16")
    assert auto_dtype("cpu") == torch.bfloat16
    monkeypatch.setenv("POLYREPLY_PRECISION", "half")
    with pytest.raises(PolyReplyError, match="expected float32 or bfloat16, found 'half'"):
        auto_dtype("cpu")


def test_the_width_of_the_model_decides(processor, monkeypatch):
    processor(True, 0.0, 0.0)
    monkeypatch.setattr(precision, "_seconds", lambda dtype, width: {torch.float32: width, torch.bfloat16: 300}[dtype])
    assert auto_dtype("cpu", 192) == torch.float32
    assert auto_dtype("cpu", 576) == torch.bfloat16


def test_this_processor_gets_an_answer(monkeypatch):
    monkeypatch.delenv("POLYREPLY_PRECISION")
    assert precision._seconds(torch.float32, 64) > 0
    assert precision._seconds(torch.bfloat16, 64) > 0
    assert auto_dtype() in (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:1", "no-device", torch.device("cpu")])
def test_every_name_of_a_device_has_a_fastest_type(device, monkeypatch):
    monkeypatch.delenv("POLYREPLY_PRECISION")
    assert _dtype_of("fastest", device, 512) in (torch.float32, torch.bfloat16)


def test_the_command_line_replies_in_the_fastest_type(polyreply_here, monkeypatch):
    monkeypatch.delenv("POLYREPLY_PRECISION")
    done = polyreply_here("reply", "How are you?", "--model", "t5-mini-10", "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["responses"]) == 10


@torch.no_grad()
def test_frozen_weights_are_converted_once_and_come_back(monkeypatch):
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    stock, x = [layer.weight for layer in model], torch.randn(5, 4)
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(x)
    used = []
    for _ in range(2):
        with computing_in(torch.bfloat16, model, torch.device("cpu")):
            assert torch.equal(model(x), expected)
            used.append([layer.weight for layer in model])
        assert all(layer.weight is weight for layer, weight in zip(model, stock, strict=True))
    assert used[0][0] is used[1][0]
    assert used[0][0].dtype == torch.bfloat16
    assert used[0][1] is stock[1]
    stock[0].mul_(2)
    with computing_in(torch.bfloat16, model, torch.device("cpu")):
        torch.testing.assert_close(model[0].weight.float(), stock[0], rtol=0.01, atol=0)


def test_exact_layers_keep_their_weights():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).requires_grad_(False)
    with computing_in(torch.bfloat16, model, torch.device("cpu"), exact=[model[1]]):
        assert [layer.weight.dtype for layer in model] == [torch.bfloat16, torch.float32]
