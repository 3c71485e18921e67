"""`polyreply bench em`: EM training beside other processes, and what makes its E-step cheaper.

- Beside a busy process: EM steps per second of a small T5 with ten decoders, against the idle machine.
- With real data: the shipped backbone is trained for the same processor time with each variant of the E-step, and what
  it has learnt is measured on held-out samples. The E-step scores every sample under every decoder, so it is most of
  the cost of EM; a variant pays if it learns more in the same time.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

from polyreply.bench import synthetic
from polyreply.bench.distributed import SIZES
from polyreply.bench.timing import busy_slowdown
from polyreply.config import load_recipe
from polyreply.em.em_step import em_step
from polyreply.progress import Notify
from polyreply.training.loop import Run
from polyreply.training.recipe import TrainRecipe

ROWS, BUSY_SAMPLES = 400, 20
VARIANTS: dict[str, dict[str, int]] = {
    "full": {},
    "beginnings_8": {"em.e_step_max_tokens": 8},
    "beginnings_4": {"em.e_step_max_tokens": 4},
    "pruned": {"em.e_step_max_tokens": 4, "em.e_step_candidates": 3},
    "passes_2": {"em.m_step_passes": 2},
    "passes_4": {"em.m_step_passes": 4},
    "draws_4": {"em.e_step_size": 640, "em.m_step_parts": 4},
    "beginnings_8_passes_2": {"em.e_step_max_tokens": 8, "em.m_step_passes": 2},
}
"""Settings of each way to spend the time of an E-step, beside those that all share."""
_SHARED = {
    "method": "eqhard-em",
    "model.backbone": "shipped",
    "em.e_step_size": 160,
    "optimizer.learning_rate": 0.002,
    "optimizer.clip_norm": 1.0,
    "steps": 1_000_000,
    "device": "cpu",
}


def bench_em(notify: Notify, *, data: Path | None = None, seconds: float = 90, seed: int = 0) -> dict[str, Any]:
    """Slowdown beside a busy process; with data also what each variant has learnt after half and all of the time."""
    notify("beside a busy process", 0.0)
    figures: dict[str, Any] = {f"em.{name}": value for name, value in _busy().items()}
    for place, (name, settings) in enumerate(VARIANTS.items() if data is not None else ()):
        notify(name.replace("_", " "), (place + 1) / (len(VARIANTS) + 1))
        figures |= {f"em.{name}.{figure}": value for figure, value in _learnt(data, settings, seconds, seed).items()}
    return figures


def _busy() -> dict[str, Any]:
    """EM steps of a small T5 on made-up conversations: time does not depend on what they say."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "data").mkdir()
        synthetic.write_smalltalk(folder / "data", ROWS)
        settings = {"data": folder / "data", "model.backbone": "mini", "em.e_step_size": BUSY_SAMPLES, **SIZES}
        with Run(_recipe(folder / "run", {**_SHARED, **settings})) as run:
            return dict(busy_slowdown(lambda: em_step(run.em), seconds=4))


def _learnt(data: Path | None, settings: dict[str, int], seconds: float, seed: int) -> dict[str, float]:
    """Held-out mixture NLL and BLEU2-F after half and all of the processor time, and the EM steps it was enough for."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        validation = {"validation.samples": 512, "validation.contexts": 100, "validation.max_new_tokens": 24}
        chosen = {**_SHARED, **validation, **settings, "data": data, "seed": seed}
        with Run(_recipe(Path(scratch, "run"), chosen)) as run:
            spent = 0.0
            for part in ("half", "all"):
                while spent < seconds * (0.5 if part == "half" else 1.0):
                    start = time.process_time()
                    em_step(run.em)
                    spent += time.process_time() - start
                figures |= {f"{name}_{part}": value for name, value in _measure(run).items()}
            figures["steps"] = run.step
    return figures


def _measure(run: Run) -> dict[str, float]:
    if run.validation is None:
        return {}
    metrics = run.validation.measure().metrics
    return {name: metrics[name] for name in ("mixture_nll", "bleu2_f", "dist2")}


def _recipe(out: Path, settings: dict[str, Any]) -> TrainRecipe:
    return load_recipe(TrainRecipe, None, [f"{name}={value}" for name, value in {**settings, "out": out}.items()])
