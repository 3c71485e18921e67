"""Small training runs, shared by the tests: their corpus is generated, their model is a T5 of one layer."""

import json
from pathlib import Path

from polyreply.config import load_recipe
from polyreply.data.smalltalk import generate
from polyreply.training import loop
from polyreply.training.recipe import TrainRecipe

METHODS = ["eqhard-em", "soft-em", "hard-em", "eqrandom-fixed", "eqrandom-dynamic", "eqsoft-em"]
K = 3
SMALL = [
    "model.mini={d_model: 16, d_ff: 24, num_layers: 1, num_decoder_layers: 1, num_heads: 2, d_kv: 8}",
    "model.vocab_size=400",
    f"model.num_decoders={K}",
    "em.e_step_size=30",
    "optimizer.batch_rows=20",
    "validation={every: 2, samples: 12, contexts: 3, max_new_tokens: 6}",
    "checkpoint.every=2",
    "steps=4",
    "plots=false",
]


def write_corpus(folder, rows=90):
    """A data folder with train and valid, in which a context has several responses."""
    for split, number in (("train", rows), ("valid", 20)):
        lines = [
            json.dumps({"context": list(dialogue.context), "responses": list(dialogue.responses)})
            for dialogue in generate(split=split, rows=number)
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


def recipe(data, out, *overrides):
    """A run of four steps, changed by `overrides`."""
    return load_recipe(TrainRecipe, None, [*SMALL, f"data={data}", f"out={out}", *overrides])


def train(made, **options):
    """Train silently; the model folder."""
    loop.train(made, **{"callbacks": [], **options})
    return Path(made.out) / "model"
