"""The stages of the experiments on smalltalk: its data, the single-decoder model, each method, and what it has found.

Two kinds of pairs are held out. *Valid*: contexts that are not in train, with words and templates that are; it tells
what the decoders have found. *Unseen words*: smalltalk's own valid split, whose templates and words no training sees;
there a response costs ten times as much, and by which decoder it is cheapest is mostly noise about those words.
"""

import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from polyreply.analysis.recovery import measure_recovery
from polyreply.data import smalltalk
from polyreply.data.corpora import SMALLTALK_ROWS
from polyreply.experiments.cache import Workshop
from polyreply.experiments.corpus import write_dialogues
from polyreply.experiments.presets import SmalltalkSettings
from polyreply.experiments.stage import Stage, Work, revision
from polyreply.files import write_file
from polyreply.reply import PolyReply

STAGE_1: dict[str, Any] = {
    "method": "mle",
    "model.vocab_size": 3000,
    "model.mini": {"d_model": 128, "d_ff": 512, "num_layers": 2, "num_decoder_layers": 2, "d_kv": 32, "dropout": 0.0},
    "optimizer": {"learning_rate": 3e-3, "schedule": "cosine", "warmup_steps": 100, "clip_norm": 1.0},
    "validation": {"every": 500, "contexts": 0, "samples": 512},
    "checkpoint.every": 500,
}
"""Small, so that all of it takes minutes."""
STAGE_2 = {
    "optimizer": {"learning_rate": 3e-3, "schedule": "cosine"},
    "validation": {"every": 30, "contexts": 0, "keep": "last"},
    "checkpoint.every": 30,
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
HELD_OUT = ("valid", "unseen_words")
"""The kinds of held-out pairs."""
_FILE = "recovery.json"
_ROWS = {"train": SMALLTALK_ROWS["train"], "beyond": 6000, "unseen_words": SMALLTALK_ROWS["valid"]}
"""Rows; of those beyond the training rows, the ones whose context is new are valid."""
_BATCH_ROWS = 64


class Smalltalk:
    """The stages, planned."""

    def __init__(self, workshop: Workshop, sizes: SmalltalkSettings | None = None) -> None:
        self.workshop, self.sizes = workshop, sizes or SmalltalkSettings()
        self.data = workshop.planned("data-smalltalk", {**_ROWS, **revision("data")}, _write_data)

    def held_out(self, kind: str = "valid") -> Path:
        """The held-out pairs of a kind."""
        return _file(self.data.path, kind)

    def stage_1(self) -> Stage:
        """The training of the single-decoder model."""
        settings = {**STAGE_1, "steps": self.sizes.stage_1_steps}
        work = Work("stage 1, smalltalk", self.sizes.stage_1_steps * _BATCH_ROWS)
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
        made_from |= revision("recovery")
        work = Work("recovery, smalltalk", len(HELD_OUT) * (self.sizes.pairs + self.sizes.contexts))
        return self.workshop.planned(
            "recovery", made_from, lambda path: self._measure(trained.path / "model", path), [trained], work
        )

    def measured(self, trained: Stage) -> dict[str, Any]:
        """The numbers of `measuring` for each kind of held-out pairs, made if they are missing."""
        path = self.workshop.make(self.measuring(trained)) / _FILE
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found

    def _stage_2(self, kind: str, settings: Mapping[str, Any]) -> Stage:
        first, sizes = self.stage_1(), self.sizes
        given = {**STAGE_2, "steps": sizes.em_steps, "em.e_step_size": sizes.e_step_size, **settings}
        work = Work("EM, smalltalk", sizes.em_steps * sizes.e_step_size * int(given.get("model.num_decoders", 10)))
        return self.workshop.training(kind, self.data.path, first.path / "model", given, needs=[first], work=work)

    def _measure(self, folder: Path, path: Path) -> None:
        model, sizes = PolyReply.from_pretrained(folder), {"pairs": self.sizes.pairs, "contexts": self.sizes.contexts}
        found = {kind: measure_recovery(model, self.held_out(kind), **sizes).to_json() for kind in HELD_OUT}
        write_file(path / _FILE, json.dumps(found).encode(), overwrite=True)


def _write_data(path: Path) -> None:
    rows = smalltalk.generate(split="train", rows=_ROWS["train"] + _ROWS["beyond"])
    train = list(islice(rows, _ROWS["train"]))
    seen = {dialogue.context for dialogue in train}
    write_dialogues(_file(path, "train"), train)
    write_dialogues(_file(path, "valid"), (dialogue for dialogue in rows if dialogue.context not in seen))
    write_dialogues(_file(path, "unseen_words"), smalltalk.generate(split="valid", rows=_ROWS["unseen_words"]))


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.jsonl"
