"""`polyreply bench distributed`: EM training with one and with two processes of one thread each.

Measures samples per second and the bytes that processes exchange; with `--shard`, what a backbone that two processes
share saves in memory and costs in time. torch's launcher starts each process as
`python -m polyreply.bench.distributed RECIPE.yaml STEPS`.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from polyreply.bench import synthetic
from polyreply.bench.reply import precisions
from polyreply.bench.timing import Measured, memory_mb, restart_peak, timed
from polyreply.config import load_recipe, save_recipe
from polyreply.errors import PolyReplyError
from polyreply.progress import Notify
from polyreply.training.recipe import TrainRecipe

ROWS = 4000
SIZES = {
    "model.mini": "{d_model: 256, d_ff: 1024, num_layers: 4, num_decoder_layers: 4, dropout: 0.1}",
    "model.vocab_size": "4000",
}
THIN = {"model.adapter_size": "16", "validation.contexts": "0"}
"""Adapters that are small beside the backbone, whose memory is measured."""


def bench_distributed(notify: Notify, *, samples: int = 320, steps: int = 2, rounds: int = 3) -> dict[str, float]:
    """Speed-up, samples per second and exchange per step in each type; medians over rounds of one process, then two."""
    figures: dict[str, float] = {}
    types = precisions()
    for place, (dtype, suffix) in enumerate(types):
        measured: dict[int, list[dict[str, float]]] = {1: [], 2: []}
        chosen = {"model.backbone": "mini", "em.e_step_size": samples, "precision": str(dtype).removeprefix("torch.")}
        with tempfile.TemporaryDirectory() as scratch:
            recipe = _recipe(Path(scratch), {**chosen, **SIZES})
            for round_index in range(rounds):
                for index, number in enumerate(measured):
                    share = (place + (2 * round_index + index) / (2 * rounds)) / len(types)
                    notify(f"{number} process{'es' if number > 1 else ''}{suffix}", share)
                    measured[number].append(_launch(recipe, number, steps))
        one, two = ({name: Measured.of([run[name] for run in runs]) for name in runs[0]} for runs in measured.values())
        figures |= {
            f"distributed.speedup_2{suffix}": one["step_seconds"].per(two["step_seconds"]),
            f"distributed.samples_per_second_1{suffix}": samples / one["step_seconds"],
            f"distributed.samples_per_second_2{suffix}": samples / two["step_seconds"],
            f"distributed.bytes_per_step{suffix}": two["bytes"],
            f"distributed.collective_share{suffix}": two["collective_seconds"] / two["step_seconds"],
        }
    return figures


def bench_sharded(notify: Notify, backbone: str, *, samples: int = 20, steps: int = 2) -> dict[str, float]:
    """Memory, time and exchange of two processes with a whole backbone each, and with half of one each.

    Both have the allocator return large blocks, as sharding does, so that memory differs by what is held alone.
    """
    from polyreply.allocator import LARGE_BLOCK

    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for place, name in enumerate(("whole", "sharded")):
            notify(f"{name} backbones", place / 2)
            folder = Path(scratch, name)
            folder.mkdir()
            chosen = {"model.backbone": backbone, "model.shard": name == "sharded", "em.e_step_size": samples, **THIN}
            measured = _launch(_recipe(folder, chosen), 2, steps, MALLOC_MMAP_THRESHOLD_=str(LARGE_BLOCK))
            wanted = ("load_peak_mb", "step_peak_mb", "step_seconds", "bytes")
            figures |= {f"distributed.{name}.{figure}": measured[figure] for figure in wanted}
    return figures


def _recipe(folder: Path, chosen: Mapping[str, object]) -> Path:
    """Write a recipe: EqHard-EM with ten decoders that are not trained yet, since time does not depend on weights."""
    (folder / "data").mkdir()
    synthetic.write_smalltalk(folder / "data", ROWS)
    settings = {"data": folder / "data", "out": folder / "run", "device": "cpu", "method": "eqhard-em", **chosen}
    recipe = load_recipe(TrainRecipe, None, [f"{name}={value}" for name, value in settings.items()])
    save_recipe(recipe, folder / "recipe.yaml")
    return folder / "recipe.yaml"


def _launch(recipe: Path, number: int, steps: int, **more: str) -> dict[str, float]:
    """The figures of `number` processes, with `more` in their environment."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(number)]
    command += ["-m", "polyreply.bench.distributed", str(recipe), str(steps)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "POLYREPLY_CACHE": str(recipe.parent / "cache"), **more}
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
        processes = run.processes
        load_peak = memory_mb("VmHWM")
        restart_peak()
        em_step(run.em)  # warm-up: allocates memory
        processes.bytes_sent, processes.seconds = 0, 0.0
        steps = int(arguments[1])
        figures = {
            "step_seconds": median(timed(lambda: em_step(run.em))[1] for _ in range(steps)),
            "bytes": processes.bytes_sent / steps,
            "collective_seconds": processes.seconds / steps,
        }
        memory = {"load_peak_mb": load_peak, "step_peak_mb": memory_mb("VmHWM")}
        of_all = processes.gather_json(memory)
        figures |= {name: max(one[name] for one in of_all) for name in memory}
        if processes.is_main:
            (run.folder / "recipe.yaml").unlink()  # the next round starts from scratch
            print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1:])
