"""Does it work? Whether K decoders find the ten acts of smalltalk that no label tells them of.

Stage 1 learns to reply; on it each method trains ten adapters; all are measured on held-out pairs, whose contexts have
templates and words that were never seen in training.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from polyreply.analysis.recovery import Recovery, measure_recovery
from polyreply.api import PolyReply
from polyreply.reproduce.workshop import Workshop
from polyreply.training.usage import read_usage

CORPUS = "smalltalk-implicit"
STAGE_1 = {
    "method": "mle",
    "steps": 2000,
    "model.vocab_size": 3000,
    "model.mini": {"d_model": 128, "d_ff": 512, "num_layers": 2, "num_decoder_layers": 2, "d_kv": 32, "dropout": 0.0},
    "optimizer": {"learning_rate": 3e-3, "schedule": "cosine", "warmup_steps": 100, "clip_norm": 1.0},
    "validation": {"every": 500, "contexts": 0, "keep": "last"},
    "checkpoint.every": 500,
}
"""Small, so that all of it takes minutes. The last weights, not the best: held-out NLL is ruled by words that were
never seen, which a model thinks the less likely the better it knows the others."""
STAGE_2 = {
    "steps": 60,
    "em.e_step_size": 320,
    "optimizer.learning_rate": 3e-3,
    "validation": {"every": 20, "contexts": 0, "keep": "last"},
    "checkpoint.every": 20,
}
METHODS: dict[str, dict[str, Any]] = {
    "EqHard-EM": {"method": "eqhard-em"},
    "EqRandom-Dynamic": {"method": "eqrandom-dynamic"},
    "Soft-EM": {"method": "soft-em"},
    "Hard-EM": {"method": "hard-em"},
    "Hard-EM, the authors' initialisation": {"method": "hard-em", "model.adapter_init": "linear"},
}
ONE_ADAPTER = {"method": "hard-em", "model.num_decoders": 1}
"""What ten decoders are measured against: one, with as many steps."""


def recover(workshop: Workshop, methods: Sequence[str] = tuple(METHODS), seeds: Sequence[int] = (0,)) -> dict[str, Any]:
    """Trains what is missing and measures: for each method what each seed gave, and the NLL of stage 1."""
    data = workshop.prepared(CORPUS)
    stage_1 = workshop.trained("stage1-smalltalk", data, "mini", STAGE_1) / "model"
    plain = _measured(stage_1, data)
    one = _measured(workshop.trained("one-adapter", data, stage_1, {**STAGE_2, **ONE_ADAPTER}) / "model", data)
    found: dict[str, list[dict[str, Any]]] = {}
    for name in methods:
        found[name] = []
        for seed in seeds:
            settings = {**STAGE_2, **METHODS[name], "seed": seed}
            run = workshop.trained(f"{settings['method']}-smalltalk", data, stage_1, settings)
            measured = _measured(run / "model", data)
            training = read_usage(run / "usage.json")["share"]
            gain = plain.best_nll - measured.best_nll
            found[name].append({"seed": seed, "training_usage": training, "gain": gain, **measured.to_json()})
    return {
        "stage_1_nll": plain.best_nll,
        "one_adapter_gain": plain.best_nll - one.best_nll,
        "methods": found,
    }


def _measured(model: Path, data: Path) -> Recovery:
    return measure_recovery(PolyReply.from_pretrained(model), data / "valid.jsonl.gz")


def recovery_table(found: Mapping[str, Any]) -> list[list[str]]:
    """A row for each method: mean ± deviation over seeds."""
    rows = []
    for name, runs in found["methods"].items():
        usage = [[min(run["usage"]), max(run["usage"])] for run in runs]
        trained = [[min(run["training_usage"]), max(run["training_usage"])] for run in runs]
        rows.append(
            [
                name,
                _range(trained),
                _range(usage),
                *(_spread([run[key] for run in runs]) for key in ("captured", "max_posterior", "gain", "acts")),
            ]
        )
    return rows


HEADINGS = ("method", "trained on, %", "best of, %", "captured", "max posterior", "gain, nats", "acts of 10")


def _range(pairs: Sequence[Sequence[float]]) -> str:
    """From the smallest share of a decoder to the largest, over all seeds."""
    return f"{100 * min(low for low, _ in pairs):.0f} to {100 * max(high for _, high in pairs):.0f}"


def _spread(values: Sequence[float]) -> str:
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")
