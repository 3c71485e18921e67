"""A disk that takes no more ends a run with one clear line; what was saved is whole, and the run goes on from it."""

import ctypes
import resource

import pytest
from runs import recipe, train

from polyreply.data.tokenizer import train_tokenizer
from polyreply.errors import PolyReplyError
from polyreply.training.callbacks import Callback
from polyreply.training.interrupts import resumable_errors
from polyreply.training.loop import Run


class FullAfter(Callback):
    """From a step on, no file can grow beyond `size` bytes: the kernel refuses, as it does on a full disk."""

    def __init__(self, step, size):
        self.step, self.size = step, size

    def on_step(self, record):
        if record.step == self.step:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, resource.RLIM_INFINITY))


@pytest.fixture(autouse=True)
def room_again():
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.mark.parametrize("size", [10, 6_000], ids=["the log", "the weights"])
def test_a_full_disk_is_a_clear_line_and_the_run_goes_on_when_there_is_room(size, corpus, stage1, tmp_path):
    settings = [f"model.backbone={stage1}", "steps=6", "validation.every=10"]
    whole = train(recipe(corpus, tmp_path / "whole", *settings))
    made = recipe(corpus, tmp_path / "run", *settings)
    with pytest.raises(PolyReplyError, match=r"File too large.*intact.*--resume") as refused:
        train(made, callbacks=[FullAfter(3, size)])
    assert "\n" not in str(refused.value)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    with Run(made, resume=True) as run:
        assert run.step == 2
    model = train(made, resume=True)
    names = ("model.safetensors", "../usage.json", "../log.jsonl")
    assert all((model / name).read_bytes() == (whole / name).read_bytes() for name in names)


@pytest.mark.parametrize("size", [100, 20_000])
def test_a_disk_that_is_full_when_the_model_is_written_is_a_clear_line(size, corpus, stage1, tmp_path):
    made = recipe(corpus, tmp_path / "run", f"model.backbone={stage1}")
    with Run(made) as run:
        run.loop()
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    with pytest.raises(PolyReplyError, match=r"File too large.*intact.*--resume"):
        train(made, resume=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert not (tmp_path / "run" / "model").exists() and not list((tmp_path / "run").glob("*.tmp"))
    assert train(made, resume=True).is_dir()


def test_a_full_disk_that_the_tokenizer_meets_is_a_clear_line(tmp_path):
    tokenizer = train_tokenizer(["one sentence", "another one"] * 9, vocab_size=300).backend_tokenizer
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    with pytest.raises(PolyReplyError, match=r"File too large.*--resume runs/x"), resumable_errors("runs/x"):
        tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(KeyError), resumable_errors("runs/x"):
        raise KeyError


def test_a_place_where_nothing_can_be_written_is_a_clear_line(corpus, stage1, polyreply_here):
    found = polyreply_here("train", f"data={corpus}", "out=/proc/run", f"model.backbone={stage1}", "em.e_step_size=30")
    assert found.returncode == 2 and "/proc/run" in found.stderr and found.stderr.count("\n") == 1


_CAPABILITIES = 0x20080522
"""The version of the kernel's interface that has two words of each set."""
_OVERRIDE = 1 << 1
"""CAP_DAC_OVERRIDE: what lets root write where permissions forbid it."""


@pytest.fixture
def ordinary():
    """Permissions hold for this thread, even if it is root's."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    before = sets[0]
    sets[0] &= ~_OVERRIDE
    assert libc.capset(header, sets) == 0
    yield
    sets[0] = before
    assert libc.capset(header, sets) == 0


def test_a_folder_that_became_read_only_is_a_clear_line(corpus, stage1, tmp_path, ordinary):
    made = recipe(corpus, tmp_path / "run", f"model.backbone={stage1}")

    class Closing(Callback):
        def on_step(self, record):
            if record.step == 3:
                (tmp_path / "run" / "checkpoints").chmod(0o555)

    with pytest.raises(PolyReplyError, match=r"Permission denied.*intact.*--resume"):
        train(made, callbacks=[Closing()])
    (tmp_path / "run" / "checkpoints").chmod(0o755)
    assert train(made, resume=True).is_dir()
