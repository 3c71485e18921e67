"""EM training with one and with two processes of one thread each: samples per second, and what the processes send.

`python -m polyreply.bench.distributed RECIPE.yaml STEPS` is one process of it, started by torch's launcher.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from polyreply.bench import synthetic
from polyreply.config import load_recipe, save_recipe
from polyreply.errors import PolyReplyError
from polyreply.progress import Notify
from polyreply.training.recipe import TrainRecipe

ROWS = 4000
SIZES = {
    "model.mini": "{d_model: 256, d_ff: 1024, num_layers: 4, num_decoder_layers: 4, dropout: 0.1}",
    "model.vocab_size": "4000",
}


def bench_distributed(notify: Notify, *, samples: int = 320, steps: int = 2, rounds: int = 3) -> dict[str, float]:
    """Ratios and figures by their names in the JSON; medians over rounds in which both numbers of processes run."""
    measured: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as scratch:
        recipe = _recipe(Path(scratch), samples)
        for turn in range(rounds):
            for place, number in enumerate(measured):
                notify(f"{number} process{'es' if number > 1 else ''}", (2 * turn + place) / (2 * rounds))
                measured[number].append(_launch(recipe, number, steps))
    one, two = ({name: median(run[name] for run in runs) for name in runs[0]} for runs in measured.values())
    return {
        "distributed.speedup_2": one["step_seconds"] / two["step_seconds"],
        "distributed.samples_per_second_1": samples / one["step_seconds"],
        "distributed.samples_per_second_2": samples / two["step_seconds"],
        "distributed.bytes_per_step": two["bytes"],
        "distributed.collective_share": two["collective_seconds"] / two["step_seconds"],
    }


def _recipe(folder: Path, samples: int) -> Path:
    """EqHard-EM with ten decoders on an untrained small T5: what is learnt does not matter for the time."""
    (folder / "data").mkdir()
    synthetic.write_smalltalk(folder / "data", ROWS)
    settings = {"data": folder / "data", "out": folder / "run", "model.backbone": "mini", "device": "cpu", **SIZES}
    settings |= {"em.e_step_size": samples, "method": "eqhard-em"}
    recipe = load_recipe(TrainRecipe, None, [f"{name}={value}" for name, value in settings.items()])
    save_recipe(recipe, folder / "recipe.yaml")
    return folder / "recipe.yaml"


def _launch(recipe: Path, number: int, steps: int) -> dict[str, float]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(number)]
    command += ["-m", "polyreply.bench.distributed", str(recipe), str(steps)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "POLYREPLY_CACHE": str(recipe.parent / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise PolyReplyError(f"{number} processes could not train: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main(arguments: Sequence[str]) -> None:
    """One process: trains a few steps and, if it is the main one, prints what they took."""
    from polyreply.training.loop import Run

    with Run(load_recipe(TrainRecipe, Path(arguments[0]))) as run:
        run.steps.step()  # memory is laid out
        processes = run.processes
        processes.bytes_sent, processes.seconds = 0, 0.0
        seconds: list[float] = []
        steps = int(arguments[1])
        for _ in range(steps):
            begin = time.perf_counter()
            run.steps.step()
            seconds.append(time.perf_counter() - begin)
        found: dict[str, Any] = {
            "step_seconds": median(seconds),
            "bytes": processes.bytes_sent / steps,
            "collective_seconds": processes.seconds / steps,
        }
        if processes.is_main:
            (run.folder / "recipe.yaml").unlink()  # the next round begins anew
            print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
