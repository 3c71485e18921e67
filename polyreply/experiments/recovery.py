"""Does it work? Whether K decoders find the ten acts of smalltalk that no label tells them of.

Stage 1 learns to reply; on it each method trains ten adapters; all are measured on held-out pairs.
"""

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from polyreply.experiments.cache import Workshop
from polyreply.experiments.presets import SmalltalkSettings
from polyreply.experiments.smalltalk import HELD_OUT, METHODS, Smalltalk
from polyreply.experiments.stage import Stage
from polyreply.training.usage import read_usage


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
    """Trains what is missing and measures.

    For each kind of held-out pairs, `valid` and `unseen_words`: for each method what each seed gave, the NLL of stage
    1, and what one adapter gains over it.
    """
    smalltalk = Smalltalk(workshop, sizes)
    plain, one = (smalltalk.measured(trained) for trained in (smalltalk.stage_1(), smalltalk.one_adapter()))
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in methods}
    for name in methods:
        for seed in seeds:
            trained = smalltalk.training(name, seed)
            share = read_usage(workshop.make(trained) / "usage.json")["share"]
            runs[name].append({"seed": seed, "training_usage": share, **smalltalk.measured(trained)})
    return {kind: _on(kind, plain[kind]["best_nll"], one[kind]["best_nll"], runs) for kind in HELD_OUT}


def _on(kind: str, plain: float, one_adapter: float, runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """What was found on one kind of held-out pairs."""
    methods = {
        name: [
            {
                "seed": run["seed"],
                "training_usage": run["training_usage"],
                "gain": plain - run[kind]["best_nll"],
                **run[kind],
            }
            for run in found
        ]
        for name, found in runs.items()
    }
    return {"stage_1_nll": plain, "one_adapter_gain": plain - one_adapter, "methods": methods}


def recovery_table(found: Mapping[str, Any]) -> list[list[str]]:
    """What was found on one kind of held-out pairs, a row for each method: mean ± deviation over seeds."""
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
