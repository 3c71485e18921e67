"""The main job, end to end: ten fresh decoders on the shipped backbone, trained by EqHard-EM on chitchat, on a CPU.

Then replies to five messages beside beam search from the same backbone, and metrics on held-out contexts.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyreply.config import as_overrides, load_recipe
from polyreply.data.chitchat import SCREENED
from polyreply.data.dialogue import Dialogue
from polyreply.data.prepare import PrepareConfig, prepare
from polyreply.data.read import read_dialogues
from polyreply.files import write_files
from polyreply.metrics import evaluate
from polyreply.metrics.comparison import Comparison, compare_systems
from polyreply.metrics.comparison_plot import draw
from polyreply.metrics.scores import Scores
from polyreply.metrics.systems import System
from polyreply.models.shipped import SHIPPED
from polyreply.plots import can_plot
from polyreply.progress import Notify, silent
from polyreply.reply import PolyReply
from polyreply.reply_file import response_row
from polyreply.training.loop import train
from polyreply.training.recipe import TrainRecipe
from polyreply.training.view import View

MESSAGES = (
    "I finally passed my driving test!",
    "I can't sleep, my exam is tomorrow.",
    "What do you like to do on the weekend?",
    "My sister is getting married next month.",
    "I think I'm going to quit my job.",
)
"""Chosen before anything was trained; none of them is in the training data."""
CHITCHAT = PrepareConfig(clean=SCREENED)
"""What the shipped model was trained on."""
TRAINING = {
    "method": "eqhard-em",
    "model.backbone": SHIPPED,
    "steps": 150,
    "em": {"e_step_size": 100, "cost": "nll"},
    "optimizer": {"learning_rate": 1.5e-3, "schedule": "cosine", "clip_norm": 1.0},
    "validation": {"every": 75, "samples": 200, "contexts": 5, "keep": "last"},
    "checkpoint.every": 25,
}
"""The shipped model's stage 2, made short."""
GENERATION = {"max_new_tokens": 32, "min_new_tokens": 8, "no_repeat_ngram_size": 3}
"""How all systems reply: a small model is easily caught in a loop, and ends sooner than people do (9 words for 13)."""
SYSTEMS = {"EqHard-EM": "decoders", "beam search": "beam", "nucleus sampling": "nucleus"}
CONTEXTS = 200
NUM_REPLIES = 10
"""The main job's K, and the beams and samples of the others."""


@dataclass(frozen=True)
class Demo:
    """What the demo made, and where."""

    out: Path
    replies: list[dict[str, Any]]
    """For each message the replies of each system by its name."""
    comparison: Comparison


def run_demo(
    out: Path, notify: Notify = silent, show: Callable[[TrainRecipe], AbstractContextManager[View]] | None = None
) -> Demo:
    """Does all of it, in a folder; what an earlier run has finished there is not done again."""
    data = out / "data"
    if not (data / "report.json").is_file():
        prepare(["chitchat"], data, CHITCHAT, notify=notify)
    model = PolyReply.from_pretrained(_trained(out / "run", data, show))
    notify("replying", 0.0)
    replies = [{"message": message, **_answers(model, message)} for message in MESSAGES]
    held_out = _spread(list(read_dialogues(data / "test.jsonl.gz")))
    scores = [_scored(out, model, name, held_out, notify) for name in SYSTEMS]
    comparison = compare_systems([System(one.system, [one]) for one in scores], notify=notify)
    files = {out / "replies.json": json.dumps(replies, indent=2, ensure_ascii=False).encode()}
    if can_plot():
        files[out / "quality-diversity.png"] = draw(comparison, ".png")
    write_files(files, overwrite=True)
    return Demo(out, replies, comparison)


def recipe(out: Path, data: Path) -> TrainRecipe:
    """The demo's training."""
    return load_recipe(TrainRecipe, None, as_overrides({"data": data, "out": out, **TRAINING}))


def _trained(run: Path, data: Path, show: Callable[[TrainRecipe], AbstractContextManager[View]] | None) -> Path:
    """The finished model, in the demo's own folder; the run's other files stay where they are."""
    model = run.parent / "model"
    if not model.is_dir():
        made = recipe(run, data)
        with show(made) if show else nullcontext() as view:
            train(made, resume=(run / "recipe.yaml").is_file(), view=view).rename(model)
    return model


def _answers(model: PolyReply, message: str) -> dict[str, list[str]]:
    return {name: [reply.text for reply in _reply(model, [message], how)[0]] for name, how in SYSTEMS.items()}


def _reply(model: PolyReply, contexts: Sequence[Any], decode: str) -> Any:
    return model.reply(list(contexts), decode=decode, k=NUM_REPLIES, **GENERATION)


def _scored(out: Path, model: PolyReply, name: str, held_out: Sequence[Dialogue], notify: Notify) -> Scores:
    """Replies to the held-out contexts, in a responses file, and their scores."""
    notify(f"evaluating {name}", list(SYSTEMS).index(name) / len(SYSTEMS))
    contexts = [dialogue.context for dialogue in held_out]
    rows = [response_row(*pair) for pair in zip(contexts, _reply(model, contexts, SYSTEMS[name]), strict=True)]
    responses = [row["responses"] for row in rows]
    scores = evaluate(responses, [list(dialogue.responses) for dialogue in held_out], system=name)
    place = name.replace(" ", "-").lower()
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_files({out / "responses" / f"{place}.jsonl": text.encode()}, overwrite=True)
    scores.save(out / "scores" / f"{place}.json", overwrite=True)
    return scores


def _spread(dialogues: Sequence[Dialogue]) -> Sequence[Dialogue]:
    """As many as are measured, from all over the split, in its order."""
    return dialogues[:: max(1, len(dialogues) // CONTEXTS)][:CONTEXTS]
