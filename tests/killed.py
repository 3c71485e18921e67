"""Runs a training in a process of its own that kills itself at a chosen moment, or tells which moments there are.

A moment is a call of a function of polyreply (or of one that puts files in their place): the n-th of a run is the same
in every run of the same recipe.
"""

import json
import os
import signal
import sys
from pathlib import Path

from forks import context

import polyreply

HOME = str(Path(polyreply.__file__).parent)
_FILE_CALLS = ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir")


class _Counter:
    """Called by Python at every call; kills at one of them, or writes down the file of each."""

    def __init__(self, kill_at, record):
        self.kill_at, self.record, self.number = kill_at, record, 0

    def __call__(self, frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(HOME):
            name = frame.f_code.co_filename.removeprefix(HOME + "/")
        elif event == "c_call" and argument.__module__ == "posix" and argument.__name__ in _FILE_CALLS:
            name = argument.__name__
        else:
            return
        if self.record is not None:
            self.record.append(name)
        if self.number == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.number += 1


def _train(folder, settings, resume, kill_at, moments, cache):
    os.chdir(folder)
    os.environ["POLYREPLY_CACHE"] = cache  # the same for all runs of a test file, so that all make the same calls
    import torch

    from polyreply.config import load_recipe
    from polyreply.training.loop import train
    from polyreply.training.recipe import TrainRecipe

    torch.set_num_threads(1)
    record = [] if moments is not None else None
    recipe = load_recipe(TrainRecipe, None, settings)
    sys.setprofile(_Counter(kill_at, record))
    train(recipe, resume=resume, callbacks=[])
    sys.setprofile(None)
    if moments is not None:
        Path(moments).write_text(json.dumps(record))


def run(folder, settings, cache, *, resume=False, kill_at=-1, moments=None):
    """Trains with `folder` as the working directory; whether the process came to its end or was killed."""
    process = context.Process(target=_train, args=(str(folder), settings, resume, kill_at, moments, str(cache)))
    process.start()
    process.join(120)
    assert process.exitcode in (0, -signal.SIGKILL), f"the training ended with {process.exitcode}"
    return process.exitcode == 0
