"""The main job, end to end, on a CPU: `polyreply demo`.

First the shipped model replies to five messages (`first_look`). Then `run_demo` prepares real conversations, trains ten
new decoders on the small shipped backbone by EqHard-EM, replies to the same messages, and compares ten decoders with
beam search and nucleus sampling from the same backbone on 200 held-out contexts. It is built on the public interface,
so it is also the longest example of it.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from polyreply import (
    Callback,
    Comparison,
    Dialogue,
    EMSettings,
    ModelSettings,
    OptimizerSettings,
    PolyReply,
    PrepareRecipe,
    Reply,
    Scores,
    TrainRecipe,
    ValidationSettings,
    compare,
    evaluate,
    prepare,
    read_dialogues,
    train,
)
from polyreply.data.chitchat import SCREENED
from polyreply.decoding.generate import GenerationOptions
from polyreply.files import write_files
from polyreply.models.shipped import SMOLLM2_10, shipped_folder, shipped_model
from polyreply.plots import can_plot
from polyreply.progress import Notify, silent
from polyreply.reply import Context
from polyreply.reply_file import response_row
from polyreply.training.recipe import CheckpointSettings

MESSAGES = (
    "I finally passed my driving test!",
    "I can't sleep, my exam is tomorrow.",
    "What do you like to do on the weekend?",
    "My sister is getting married next month.",
    "I think I'm going to quit my job.",
)
"""Chosen before anything was trained; none of them is in the training data."""
CHITCHAT = PrepareRecipe(clean=SCREENED)
"""The data of the demo, with which t5-mini-10 began."""
RECIPE = TrainRecipe(
    method="eqhard-em",
    model=ModelSettings(backbone="shipped"),
    steps=150,
    em=EMSettings(e_step_size=100, cost="nll"),
    optimizer=OptimizerSettings(learning_rate=1.5e-3, schedule="cosine", clip_norm=1.0),
    validation=ValidationSettings(every=75, samples=200, contexts=5, keep="last"),
    checkpoint=CheckpointSettings(every=25),
)
"""A short version of stage 2 of t5-mini-10."""
GENERATION: GenerationOptions = {"max_new_tokens": 32, "min_new_tokens": 8, "no_repeat_ngram_size": 3}
"""For all systems alike: a small model repeats itself easily, and stops earlier than people do (9 words, not 13)."""
SYSTEMS = {"EqHard-EM": "decoders", "beam search": "beam", "nucleus sampling": "nucleus"}
"""How each of the compared systems decodes, by name."""
RAW = "SmolLM2 itself, ten samples"
"""What the shipped model's backbone says without decoders of ours."""
NUM_CONTEXTS = 200
NUM_REPLIES = 10
"""Decoders, beams and samples alike."""


def first_look(notify: Notify = silent) -> dict[str, dict[str, list[str]]]:
    """Replies of the shipped model to each message, beside ten samples of its backbone if that is a chat model."""
    notify("loading the shipped model", 0.0)
    name = shipped_model()
    model = PolyReply.from_pretrained(shipped_folder(name), dtype="float32")
    notify("replying", 0.3)
    systems = {name: model.reply(list(MESSAGES))}
    if name == SMOLLM2_10:
        notify("sampling from the raw chat model", 0.5)
        raw = PolyReply.from_backbone(
            model.model.plain_backbone(),
            model.tokenizer,
            architecture="multi-decoder",
            num_decoders=1,
            context_format=asdict(model.model.config.format()),
        )
        systems[RAW] = raw.reply(
            list(MESSAGES), decode="nucleus", k=NUM_REPLIES, max_new_tokens=32, no_repeat_ngram_size=0
        )
    return {
        message: {system: [reply.text for reply in replies[place]] for system, replies in systems.items()}
        for place, message in enumerate(MESSAGES)
    }


@dataclass(frozen=True)
class Demo:
    """The demo's results and the folder that holds them."""

    out: Path
    replies: dict[str, dict[str, list[str]]]
    """Each system's replies to each message."""
    comparison: Comparison


def run_demo(out: Path, notify: Notify = silent, callbacks: Sequence[Callback] = ()) -> Demo:
    """Run the demo in a folder; what an earlier run has finished there is reused. `callbacks` follow the training."""
    data = out / "data"
    if not (data / "report.json").is_file():
        prepare(["chitchat"], data, CHITCHAT, notify=notify)
    model = _trained_model(out, data, callbacks)

    notify("replying", 0.0)
    replies = {
        message: {name: [reply.text for reply in _replies(model, name, [message])[0]] for name in SYSTEMS}
        for message in MESSAGES
    }
    test = list(read_dialogues(data / "test.jsonl.gz"))
    held_out = test[:: max(1, len(test) // NUM_CONTEXTS)][:NUM_CONTEXTS]  # spread over the whole split
    scores = []
    for index, name in enumerate(SYSTEMS):
        notify(f"evaluating {name}", index / len(SYSTEMS))
        scores.append(_evaluated(model, name, held_out, out))
    comparison = compare(*scores, notify=notify)

    files = {out / "replies.json": json.dumps(replies, indent=2, ensure_ascii=False).encode()}
    if can_plot():
        files[out / "quality-diversity.png"] = comparison.plot()
    write_files(files, overwrite=True)
    return Demo(out, replies, comparison)


def _trained_model(out: Path, data: Path, callbacks: Sequence[Callback]) -> PolyReply:
    """The demo's model: loaded if it exists, otherwise trained (or resumed) in `out/run` and moved to `out/model`."""
    folder, run = out / "model", out / "run"
    if not folder.is_dir():
        resume = (run / "recipe.yaml").is_file()
        train(replace(RECIPE, out=str(run)), data, resume=resume, callbacks=callbacks)
        (run / "model").rename(folder)
    return PolyReply.from_pretrained(folder)


def _replies(model: PolyReply, system: str, contexts: Sequence[Context]) -> list[list[Reply]]:
    return model.reply(list(contexts), decode=SYSTEMS[system], k=NUM_REPLIES, **GENERATION)


def _evaluated(model: PolyReply, system: str, dialogues: Sequence[Dialogue], out: Path) -> Scores:
    """Scores of a system's replies; both are also written below `out`."""
    contexts = [dialogue.context for dialogue in dialogues]
    rows = [response_row(*pair) for pair in zip(contexts, _replies(model, system, contexts), strict=True)]
    references = [list(dialogue.responses) for dialogue in dialogues]
    scores = evaluate([row["responses"] for row in rows], references, system=system)
    name = system.replace(" ", "-").lower()
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_files({out / "responses" / f"{name}.jsonl": lines.encode()}, overwrite=True)
    scores.save(out / "scores" / f"{name}.json", overwrite=True)
    return scores
