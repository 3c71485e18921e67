"""Does it work? Whether K decoders find the ten acts of smalltalk that no label tells them of.

Stage 1 learns to reply; on it each method trains ten adapters; all are measured on held-out pairs, whose contexts have
templates and words that were never seen in training.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from polyreply.analysis.recovery import measure_recovery
from polyreply.api import PolyReply
from polyreply.metrics.scores import write_atomically
from polyreply.reproduce.presets import SmalltalkSettings
from polyreply.reproduce.workshop import Stage, Work, Workshop
from polyreply.training.usage import read_usage

CORPUS = "smalltalk-implicit"
STAGE_1 = {
    "method": "mle",
    "model.vocab_size": 3000,
    "model.mini": {"d_model": 128, "d_ff": 512, "num_layers": 2, "num_decoder_layers": 2, "d_kv": 32, "dropout": 0.0},
    "optimizer": {"learning_rate": 3e-3, "schedule": "cosine", "warmup_steps": 100, "clip_norm": 1.0},
    "validation": {"every": 500, "contexts": 0, "keep": "last"},
    "checkpoint.every": 500,
}
"""Small, so that all of it takes minutes. The last weights, not the best: held-out NLL is ruled by words that were
never seen, which a model thinks the less likely the better it knows the others."""
STAGE_2 = {
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
_FILE = "recovery.json"
_BATCH_ROWS = 64


class Smalltalk:
    """The stages of the experiments on smalltalk."""

    def __init__(self, workshop: Workshop, sizes: SmalltalkSettings | None = None) -> None:
        self.workshop, self.sizes = workshop, sizes or SmalltalkSettings()
        self.data = workshop.preparing(CORPUS)

    def stage_1(self) -> Stage:
        """The training of the single-decoder model."""
        settings = {**STAGE_1, "steps": self.sizes.stage_1_steps}
        work = Work("stage 1, mini 128x2", self.sizes.stage_1_steps * _BATCH_ROWS)
        needs = [self.data]
        return self.workshop.training("stage1-smalltalk", self.data.path, "mini", settings, needs=needs, work=work)

    def training(self, name: str, seed: int = 0) -> Stage:
        """The training of a method."""
        return self._stage_2(f"{METHODS[name]['method']}-smalltalk", {**METHODS[name], "seed": seed})

    def one_adapter(self) -> Stage:
        """The training of a single adapter."""
        return self._stage_2("one-adapter", ONE_ADAPTER)

    def measuring(self, trained: Stage) -> Stage:
        """What a trained model has found."""
        made_from = {"model": trained.name, "pairs": self.sizes.pairs, "contexts": self.sizes.contexts}
        return self.workshop.planned(
            "recovery", made_from, lambda path: self._measure(trained.path / "model", path), [trained]
        )

    def measured(self, trained: Stage) -> dict[str, Any]:
        """The numbers of `measuring`, made if they are missing."""
        path = self.workshop.make(self.measuring(trained)) / _FILE
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found

    @property
    def valid(self) -> Path:
        """The held-out pairs."""
        return self.data.path / "valid.jsonl.gz"

    def _stage_2(self, kind: str, settings: Mapping[str, Any]) -> Stage:
        first, sizes = self.stage_1(), self.sizes
        given = {**STAGE_2, "steps": sizes.em_steps, "em.e_step_size": sizes.e_step_size, **settings}
        work = Work("EM, mini 128x2", sizes.em_steps * sizes.e_step_size * int(given.get("model.num_decoders", 10)))
        return self.workshop.training(kind, self.data.path, first.path / "model", given, needs=[first], work=work)

    def _measure(self, model: Path, path: Path) -> None:
        sizes = {"pairs": self.sizes.pairs, "contexts": self.sizes.contexts}
        found = measure_recovery(PolyReply.from_pretrained(model), self.valid, **sizes)
        write_atomically(path / _FILE, json.dumps(found.to_json()).encode(), overwrite=True)


def recovery_stages(smalltalk: Smalltalk, methods: Sequence[str], seeds: Sequence[int]) -> list[Stage]:
    """What `recover` stands on."""
    trained = [smalltalk.stage_1(), smalltalk.one_adapter()]
    trained += [smalltalk.training(name, seed) for name in methods for seed in seeds]
    return [smalltalk.measuring(stage) for stage in trained]


def recover(
    workshop: Workshop,
    methods: Sequence[str] = tuple(METHODS),
    seeds: Sequence[int] = (0,),
    sizes: SmalltalkSettings | None = None,
) -> dict[str, Any]:
    """Trains what is missing and measures: for each method what each seed gave, and the NLL of stage 1."""
    smalltalk = Smalltalk(workshop, sizes)
    plain = smalltalk.measured(smalltalk.stage_1())["best_nll"]
    one = smalltalk.measured(smalltalk.one_adapter())["best_nll"]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in methods}
    for name in methods:
        for seed in seeds:
            trained = smalltalk.training(name, seed)
            measured = smalltalk.measured(trained)
            share = read_usage(workshop.make(trained) / "usage.json")["share"]
            found[name].append(
                {"seed": seed, "training_usage": share, "gain": plain - measured["best_nll"], **measured}
            )
    return {"stage_1_nll": plain, "one_adapter_gain": plain - one, "methods": found}


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
