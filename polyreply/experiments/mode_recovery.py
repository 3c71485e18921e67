"""mode-recovery: whether the decoders find the ten acts of smalltalk, which no label tells them about.

The corpus is generated, so the true mode of every response is known. Stage 1 learns to reply; from it each method
trains ten adapters; all are measured on held-out pairs of two kinds. *Valid*: contexts that are not in train, with
words and templates that are; it shows what the decoders have learnt. *Unseen words*: smalltalk's own valid split, whose
templates and words no training sees; there a response costs ten times as much, and which decoder it is cheapest under
is mostly noise about those words.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from polyreply.analysis.recovery import measure_recovery
from polyreply.config import to_tree
from polyreply.data import smalltalk
from polyreply.data.corpora import SMALLTALK_ROWS
from polyreply.data.folder import write_dialogues
from polyreply.data.smalltalk import ACTS
from polyreply.experiments.cache import Cache, Task, Work
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.claims import Claim, check, over, within
from polyreply.experiments.pictures import draw_shares
from polyreply.experiments.presets import SmalltalkSettings
from polyreply.experiments.result import Findings, Picture
from polyreply.experiments.score_table import seeds_note
from polyreply.experiments.systems import Systems, relative_size, training_task
from polyreply.files import write_file
from polyreply.models.backbones import MiniConfig
from polyreply.reply import PolyReply
from polyreply.tables import Table
from polyreply.training.usage import read_usage

_MINI = MiniConfig(d_model=128, d_ff=512, num_layers=2, num_decoder_layers=2, d_kv=32, dropout=0.0)
_VOCAB_SIZE = 3000
_STAGE_1: dict[str, Any] = {
    "method": "mle",
    "model.vocab_size": _VOCAB_SIZE,
    "model.mini": to_tree(_MINI),
    "optimizer": {"learning_rate": 3e-3, "schedule": "cosine", "warmup_steps": 100, "clip_norm": 1.0},
    "validation": {"every": 500, "contexts": 0, "samples": 512},
    "checkpoint.every": 500,
}
"""A small model, so that all of it takes minutes."""
_STAGE_2: dict[str, Any] = {
    "optimizer": {"learning_rate": 3e-3, "schedule": "cosine"},
    "validation": {"every": 30, "contexts": 0, "keep": "last"},
    "checkpoint.every": 30,
}
_OURS, _LINEAR = "EqHard-EM", "Hard-EM, the authors' initialisation"
METHODS: dict[str, dict[str, Any]] = {
    _OURS: {"method": "eqhard-em"},
    "EqRandom-Dynamic": {"method": "eqrandom-dynamic"},
    "Soft-EM": {"method": "soft-em"},
    "Hard-EM": {"method": "hard-em"},
    _LINEAR: {"method": "hard-em", "model.adapter_init": "linear"},
}
_ONE_ADAPTER = {"method": "hard-em", "model.num_decoders": 1}
"""What ten decoders are compared with: one, with the same number of steps."""
HELD_OUT = {
    "valid": "Ten decoders on smalltalk: new contexts, known words",
    "unseen_words": "The same on contexts of templates and words that no training has seen",
}
"""The kinds of held-out pairs, with the titles of their tables."""
_ROWS = {"train": SMALLTALK_ROWS["train"], "beyond": 6000, "unseen_words": SMALLTALK_ROWS["valid"]}
"""Of the rows beyond those for training, the ones whose context is new are valid."""
_BATCH_ROWS = 64
_DRAWN = (_OURS, "Hard-EM", "EqRandom-Dynamic")
_MEASURES = {
    "captured": "captured",
    "max_posterior": "max posterior",
    "gain": "gain, nats",
    "acts": "acts of 10",
}
CLAIMS = (
    Claim(
        "EqHard-EM captures most of which decoder a reply is from (0 to 1)",
        "ours",
        within(_OURS, "captured", at_least=0.8),
    ),
    Claim("Random assignment captures next to nothing", "ours", within("EqRandom-Dynamic", "captured", at_most=0.2)),
    Claim(
        "EqHard-EM's replies to a context have more different acts than those of Hard-EM with the authors' "
        "initialisation",
        "ours",
        over(_OURS, _LINEAR, "acts"),
    ),
    Claim(
        "Hard-EM with the authors' initialisation leaves decoders untrained (smallest share, %)",
        "Figure 2b",
        within(_LINEAR, "smallest_share", at_most=1),
    ),
)


class Smalltalk:
    """The tasks of experiments on smalltalk: its data, the single-decoder model, each method, and measures."""

    def __init__(self, cache: Cache, sizes: SmalltalkSettings | None = None) -> None:
        self.cache, self.sizes = cache, sizes or SmalltalkSettings()
        self.data = cache.task("data", "smalltalk", _ROWS, _write_data)

    def held_out(self, kind: str = "valid") -> Path:
        """The held-out pairs of a kind."""
        return self.data.path / f"{kind}.jsonl"

    def stage_1(self) -> Task:
        """The training of the single-decoder model."""
        settings = {**_STAGE_1, "steps": self.sizes.stage_1_steps}
        work = self.work("stage 1", self.sizes.stage_1_steps * _BATCH_ROWS)
        needs = [self.data]
        return training_task(self.cache, "stage1-smalltalk", self.data.path, "mini", settings, needs=needs, work=work)

    def training(self, name: str, seed: int = 0) -> Task:
        """The training of a method."""
        return self._stage_2(f"{METHODS[name]['method']}-smalltalk", {**METHODS[name], "seed": seed})

    def one_adapter(self) -> Task:
        """The training of a single adapter."""
        return self._stage_2("one-adapter-smalltalk", _ONE_ADAPTER)

    def measures(self, trained: Task) -> Task:
        """The measures of a trained model on each kind of held-out pairs."""
        inputs = {"model": trained.name, "pairs": self.sizes.pairs, "contexts": self.sizes.contexts}
        work = self.work("recovery", len(HELD_OUT) * (self.sizes.pairs + self.sizes.contexts))
        return self.cache.task("recovery", "", inputs, partial(self._measure, trained), [trained], work)

    def measured(self, trained: Task) -> dict[str, Any]:
        """The result of `measures`, computed if it is missing."""
        path = self.cache.get(self.measures(trained)) / "recovery.json"
        measures: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return measures

    def work(self, unit: str, amount: float) -> Work:
        """An amount of work with the model that smalltalk has in every preset."""
        return Work(f"{unit}, smalltalk", amount, relative_size(_MINI, _VOCAB_SIZE))

    def _stage_2(self, detail: str, settings: Mapping[str, Any]) -> Task:
        stage_1, sizes = self.stage_1(), self.sizes
        settings = {**_STAGE_2, "steps": sizes.em_steps, "em.e_step_size": sizes.e_step_size, **settings}
        samples = sizes.em_steps * sizes.e_step_size
        work = self.work("EM", samples * int(settings.get("model.num_decoders", len(ACTS))))
        backbone = stage_1.path / "model"
        return training_task(self.cache, detail, self.data.path, backbone, settings, needs=[stage_1], work=work)

    def _measure(self, trained: Task, out: Path) -> None:
        model, sizes = PolyReply.from_pretrained(trained.path / "model"), self.sizes
        measures = {
            kind: measure_recovery(model, self.held_out(kind), pairs=sizes.pairs, contexts=sizes.contexts).to_json()
            for kind in HELD_OUT
        }
        write_file(out / "recovery.json", json.dumps(measures), overwrite=True)


def _write_data(out: Path) -> None:
    rows = smalltalk.generate(split="train", rows=_ROWS["train"] + _ROWS["beyond"])
    train = list(islice(rows, _ROWS["train"]))
    contexts = {dialogue.context for dialogue in train}
    write_dialogues(out / "train.jsonl", train)
    write_dialogues(out / "valid.jsonl", (dialogue for dialogue in rows if dialogue.context not in contexts))
    write_dialogues(out / "unseen_words.jsonl", smalltalk.generate(split="valid", rows=_ROWS["unseen_words"]))


def recover(
    cache: Cache,
    methods: Sequence[str] = tuple(METHODS),
    seeds: Sequence[int] = (0,),
    sizes: SmalltalkSettings | None = None,
) -> dict[str, Any]:
    """Train what is missing and measure it.

    For each kind of held-out pairs: the NLL of stage 1, the gain of one adapter over it, and the measures of each
    method with each seed.
    """
    tasks = Smalltalk(cache, sizes)
    plain, one = (tasks.measured(trained) for trained in (tasks.stage_1(), tasks.one_adapter()))
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in methods}
    for name in methods:
        for seed in seeds:
            trained = tasks.training(name, seed)
            share = read_usage(cache.get(trained) / "usage.json")["share"]
            runs[name].append({"seed": seed, "training_usage": share, **tasks.measured(trained)})
    measures = {}
    for kind in HELD_OUT:
        nll = plain[kind]["best_nll"]
        by_method = {
            name: [
                {
                    "seed": run["seed"],
                    "training_usage": run["training_usage"],
                    "gain": nll - run[kind]["best_nll"],
                    **run[kind],
                }
                for run in own
            ]
            for name, own in runs.items()
        }
        measures[kind] = {"stage_1_nll": nll, "one_adapter_gain": nll - one[kind]["best_nll"], "methods": by_method}
    return measures


def recovery_table(title: str, measures: Mapping[str, Any], seeds: Sequence[int]) -> Table:
    """The measures on one kind of held-out pairs, a row for each method: mean ± standard deviation over seeds."""
    rows = []
    for name, runs in measures["methods"].items():
        shares = (_range([run[key] for run in runs]) for key in ("training_usage", "usage"))
        rows.append([name, *shares, *(_spread([run[key] for run in runs]) for key in _MEASURES)])
    note = (
        f"A response costs {measures['stage_1_nll']:.1f} nats after stage 1; one adapter trained for the same number "
        f"of steps gains {measures['one_adapter_gain']:.2f}."
    )
    columns = ["method", "trained on, %", "best of, %", *_MEASURES.values()]
    return Table(title, columns, rows, [note, seeds_note(seeds)])


def _range(shares: Sequence[Sequence[float]]) -> str:
    """From the smallest share of a decoder to the largest, over all seeds."""
    return f"{100 * min(map(min, shares)):.0f} to {100 * max(map(max, shares)):.0f}"


def _spread(values: Sequence[float]) -> str:
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def _tasks(systems: Systems) -> Sequence[Task]:
    tasks, seeds = Smalltalk(systems.cache, systems.preset.smalltalk), systems.preset.smalltalk.seeds
    trained = [tasks.stage_1(), tasks.one_adapter()]
    trained += [tasks.training(name, seed) for name in METHODS for seed in seeds]
    return [tasks.measures(task) for task in trained]


def _report(systems: Systems, folder: Path) -> Findings:
    sizes = systems.preset.smalltalk
    measures = recover(systems.cache, tuple(METHODS), sizes.seeds, sizes)
    methods = measures["valid"]["methods"]
    numbers = {
        name: {key: mean(run[key] for run in runs) for key in _MEASURES}
        | {"smallest_share": 100 * mean(min(run["training_usage"]) for run in runs)}
        for name, runs in methods.items()
    }
    draw_shares({name: methods[name][0]["act_shares"] for name in _DRAWN}, ACTS, folder / "acts.png")
    return Findings(
        [recovery_table(title, measures[kind], sizes.seeds) for kind, title in HELD_OUT.items()],
        [Picture("acts.png", "Share of each decoder's replies that carry each act, first seed.")],
        check(CLAIMS, numbers),
        ["This experiment is always on smalltalk, whatever `--data` names."],
        {**measures, "means": numbers},
    )


def _origin(systems: Systems) -> dict[str, Any]:
    """Its own data and seeds."""
    sizes = systems.preset.smalltalk
    held_out = f"{sizes.pairs} pairs and {sizes.contexts} contexts that no training has seen, of each kind"
    return {"data": "smalltalk", "final_numbers_from": held_out, "seeds": list(sizes.seeds)}


EXPERIMENT = Experiment(_tasks, _report, origin=_origin)
