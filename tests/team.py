"""Training runs, one after the other, in this process or by a team of processes as a launcher starts them.

A job is {"settings": [...], "resume": bool, "die": [rank, step], "apart": bool, "full": step}: one process may be
killed on the way; each may work in a folder of its own; the disk of the main one may become full. The weights of every
E-step are kept beside the run folder, or the error that ended the run.
"""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
from forks import context, places

from polyreply.config import load_recipe
from polyreply.em import em_step
from polyreply.errors import PolyReplyError
from polyreply.training.callbacks import Callback
from polyreply.training.loop import train
from polyreply.training.recipe import TrainRecipe


def rank():
    return int(os.environ.get("RANK", "0"))


class Told(Callback):
    """Prints what it is told; after a step no large file can be written."""

    def __init__(self, full):
        self.full = full

    def on_message(self, text):
        print(text)

    def on_step(self, record):
        if record.step == self.full:
            resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, resource.RLIM_INFINITY))


def attempt(apart=False, full=None, **job):
    """A job that may fail: what it says is written beside the run folder."""
    home = Path.cwd()
    if apart:
        os.chdir(f"apart.{rank()}")
    try:
        run(callbacks=[Told(full)], **job)
    except PolyReplyError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        [out] = [setting.removeprefix("out=") for setting in job["settings"] if setting.startswith("out=")]
        Path(f"{out}.{rank()}.error").write_text(str(error))
    os.chdir(home)


def run(settings, resume=False, die=(), callbacks=()):
    """Trains; returns the run folder, beside which lie the weights of all E-steps as this process saw them."""
    recipe = load_recipe(TrainRecipe, None, settings)
    original, seen = em_step.assign, []
    dies_at = die[1] if die and die[0] == rank() else -1

    def remember(*arguments, **options):
        if len(seen) == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        assignment = original(*arguments, **options)
        seen.append(assignment.weights_NK)
        return assignment

    em_step.assign = remember
    try:
        train(recipe, resume=resume, callbacks=callbacks)
    finally:
        em_step.assign = original
    np.savez(assignments_file(recipe.out, rank()), *seen)
    return Path(recipe.out)


def assignments_file(out, rank):
    """Where the weights that process `rank` saw are kept."""
    return Path(f"{out}.{rank}.npz")


def launch(jobs, folder, number=2, may_fail=False):
    """Has `number` processes do the jobs together; what they print, and the status of one that failed, or 0."""
    rest = (str(folder), jobs, may_fail, os.environ["POLYREPLY_CACHE"])
    team = [context.Process(target=_work, args=(place, *rest)) for place in places(number)]
    for process in team:
        process.start()
    for process in team:
        process.join(300)
    said = [
        "".join(Path(folder, f"{member}.{stream}").read_text() for member in range(number)) for stream in ("out", "err")
    ]
    return subprocess.CompletedProcess([], next((p.exitcode for p in team if p.exitcode), 0), *said)


def _work(environment, folder, jobs, may_fail, cache):
    os.environ.update(environment, POLYREPLY_CACHE=cache)
    os.chdir(folder)
    for stream, name in ((sys.stdout, "out"), (sys.stderr, "err")):
        os.dup2(os.open(f"{rank()}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream.fileno())
    import torch

    torch.set_num_threads(1)
    for job in jobs:
        (attempt if may_fail else run)(**job)
