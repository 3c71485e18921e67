"""`polyreply bench distributed`: EM training with one and with two processes of one thread each.

Measures samples per second and the bytes that processes exchange. torch's launcher starts each process as
`python -m polyreply.bench.distributed RECIPE.yaml STEPS`.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from polyreply.bench import synthetic
from polyreply.bench.timing import Measured, timed
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
    """Speed-up, samples per second and exchange per step; medians over rounds that run one process, then two."""
    measured: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as scratch:
        recipe = _recipe(Path(scratch), samples)
        for round_index in range(rounds):
            for index, number in enumerate(measured):
                notify(f"{number} process{'es' if number > 1 else ''}", (2 * round_index + index) / (2 * rounds))
                measured[number].append(_launch(recipe, number, steps))
    one, two = ({name: Measured.of([run[name] for run in runs]) for name in runs[0]} for runs in measured.values())
    return {
        "distributed.speedup_2": one["step_seconds"].per(two["step_seconds"]),
        "distributed.samples_per_second_1": samples / one["step_seconds"],
        "distributed.samples_per_second_2": samples / two["step_seconds"],
        "distributed.bytes_per_step": two["bytes"],
        "distributed.collective_share": two["collective_seconds"] / two["step_seconds"],
    }


def _recipe(folder: Path, samples: int) -> Path:
    """Write a recipe: EqHard-EM with ten decoders on an untrained small T5, since time does not depend on weights."""
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
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def main(arguments: Sequence[str]) -> None:
    """Train a few steps as one process; the main process prints their figures as JSON."""
    from polyreply.em.em_step import em_step
    from polyreply.training.loop import Run

    with Run(load_recipe(TrainRecipe, Path(arguments[0]))) as run:
        em_step(run.em)  # warm-up: allocates memory
        processes = run.processes
        processes.bytes_sent, processes.seconds = 0, 0.0
        steps = int(arguments[1])
        figures = {
            "step_seconds": median(timed(lambda: em_step(run.em))[1] for _ in range(steps)),
            "bytes": processes.bytes_sent / steps,
            "collective_seconds": processes.seconds / steps,
        }
        if processes.is_main:
            (run.folder / "recipe.yaml").unlink()  # the next round starts from scratch
            print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1:])
