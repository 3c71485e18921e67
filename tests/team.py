"""Training runs, one after the other, in this process or by all processes of a launcher: `torchrun team.py JOBS.json`.

A job is {"settings": [...], "resume": bool, "die": [rank, step]}: one process may be killed on the way. The weights of
every E-step are kept beside the run folder.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from polyreply.config import load_recipe
from polyreply.train import train
from polyreply.training import em_steps
from polyreply.training.recipe import TrainRecipe

RANK = int(os.environ.get("RANK", "0"))


def run(settings, resume=False, die=()):
    """Trains; returns the run folder, beside which lie the weights of all E-steps as this process saw them."""
    recipe = load_recipe(TrainRecipe, None, settings)
    original, seen = em_steps.assign, []
    dies_at = die[1] if die and die[0] == RANK else -1

    def remember(*arguments, **options):
        if len(seen) == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        assignment = original(*arguments, **options)
        seen.append(assignment.weights_NK)
        return assignment

    em_steps.assign = remember
    try:
        train(recipe, resume=resume)
    finally:
        em_steps.assign = original
    np.savez(assignments_file(recipe.out, RANK), *seen)
    return Path(recipe.out)


def assignments_file(out, rank):
    """Where the weights that process `rank` saw are kept."""
    return Path(f"{out}.{rank}.npz")


def launch(jobs, folder, number=2):
    """Has `number` processes do the jobs together, as `torchrun` does."""
    path = Path(folder) / "jobs.json"
    path.write_text(json.dumps(jobs))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(number)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command += [__file__, str(path)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)


if __name__ == "__main__":
    for job in json.loads(Path(sys.argv[1]).read_text()):
        run(**job)
