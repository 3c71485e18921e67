"""Training runs, one after the other, in this process or by all processes of a launcher: `torchrun team.py JOBS.json`.

A job is {"settings": [...], "resume": bool, "die": [rank, step], "apart": bool, "full": step}: one process may be
killed on the way; each may work in a folder of its own; the disk of the main one may become full. The weights of every
E-step are kept beside the run folder, or the error that ended the run.
"""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from polyreply.config import load_recipe
from polyreply.em import em_step
from polyreply.errors import PolyReplyError
from polyreply.training.callbacks import Callback
from polyreply.training.loop import train
from polyreply.training.recipe import TrainRecipe

RANK = int(os.environ.get("RANK", "0"))


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
        os.chdir(f"apart.{RANK}")
    try:
        run(callbacks=[Told(full)], **job)
    except PolyReplyError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        [out] = [setting.removeprefix("out=") for setting in job["settings"] if setting.startswith("out=")]
        Path(f"{out}.{RANK}.error").write_text(str(error))
    os.chdir(home)


def run(settings, resume=False, die=(), callbacks=()):
    """Trains; returns the run folder, beside which lie the weights of all E-steps as this process saw them."""
    recipe = load_recipe(TrainRecipe, None, settings)
    original, seen = em_step.assign, []
    dies_at = die[1] if die and die[0] == RANK else -1

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
    np.savez(assignments_file(recipe.out, RANK), *seen)
    return Path(recipe.out)


def assignments_file(out, rank):
    """Where the weights that process `rank` saw are kept."""
    return Path(f"{out}.{rank}.npz")


def launch(jobs, folder, number=2, may_fail=False):
    """Has `number` processes do the jobs together, as `torchrun` does."""
    path = Path(folder) / "jobs.json"
    path.write_text(json.dumps(jobs))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(number)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command += [__file__, str(path), *(["may fail"] if may_fail else [])]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, cwd=folder)


if __name__ == "__main__":
    for job in json.loads(Path(sys.argv[1]).read_text()):
        (attempt if sys.argv[2:] else run)(**job)
