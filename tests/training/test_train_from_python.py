"""`train(recipe, dialogues)`: rows, chats and datasets in, a PolyReply out; callbacks follow a run and stop it."""

import json
from pathlib import Path

import datasets
import pytest
from runs import SMALL, K, recipe

from polyreply import Callback, PolyReply, TrainRecipe, train
from polyreply.config import load_recipe
from polyreply.data.smalltalk import generate
from polyreply.em.assign import METHODS
from polyreply.errors import PolyReplyError, RecipeError
from polyreply.training.loop import Run
from polyreply.training.recipe import load_train_recipe


@pytest.fixture(scope="module")
def dialogues():
    return list(generate(split="train", rows=90))


def with_responses(dialogue):
    return {"context": list(dialogue.context), "responses": list(dialogue.responses)}


def as_turns(dialogue):
    return {"turns": [*dialogue.context, dialogue.responses[0]]}


def as_messages(dialogue):
    roles = ("user", "assistant")
    turns = [*dialogue.context, dialogue.responses[0]]
    return {
        "messages": [{"role": "system", "content": "Be brief."}]
        + [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
    }


def small(out, *settings):
    """A recipe of two steps without data, as one made in Python."""
    return load_recipe(TrainRecipe, None, [*SMALL, "steps=2", "data=given", f"out={out}", *settings])


@pytest.mark.parametrize("row", [with_responses, as_turns, as_messages])
def test_rows_in_memory_train_a_model(row, dialogues, stage1, tmp_path):
    rows = [row(dialogue) for dialogue in dialogues]
    model = train(small(tmp_path / "run", f"model.backbone={stage1}"), rows, callbacks=[])
    assert isinstance(model, PolyReply) and len(model.reply("Hello!", max_new_tokens=4)) == K
    saved = PolyReply.from_pretrained(tmp_path / "run" / "model")
    messages = ["Hello!", "How are you?"]
    assert saved.reply(messages, max_new_tokens=6) == model.reply(messages, max_new_tokens=6)
    assert {path.name for path in (tmp_path / "run" / "data").iterdir()} == {"train.jsonl.gz", "valid.jsonl.gz"}


def test_a_dataset_gives_what_its_rows_give_and_resumes(dialogues, stage1, tmp_path):
    rows = [with_responses(dialogue) for dialogue in dialogues]
    by_rows, by_dataset = (small(tmp_path / name, f"model.backbone={stage1}") for name in ("rows", "dataset"))
    train(by_rows, rows, callbacks=[])
    train(by_dataset, datasets.Dataset.from_list(rows), callbacks=[])
    logs = [(tmp_path / name / "log.jsonl").read_bytes() for name in ("rows", "dataset")]
    assert logs[0] == logs[1]
    longer = small(tmp_path / "rows", f"model.backbone={stage1}", "steps=3")
    train(longer, rows, resume=True, callbacks=[])
    with pytest.raises(PolyReplyError):
        train(longer, rows[:-30], resume=True, callbacks=[])


def test_a_dialogue_file_is_data_too(dialogues, stage1, tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(json.dumps(as_messages(dialogue)) for dialogue in dialogues))
    made = small(tmp_path / "run", f"model.backbone={stage1}", f"data={path}")
    assert train(made, callbacks=[]).num_decoders == K
    with Run(made, resume=True) as run:
        assert run.step == 2


def test_a_run_that_cannot_start_leaves_nothing(dialogues, tmp_path):
    rows = [with_responses(dialogue) for dialogue in dialogues]
    with pytest.raises(PolyReplyError, match="nowhere"):
        train(small(tmp_path / "run", f"model.backbone={tmp_path / 'nowhere'}"), rows, callbacks=[])
    assert not (tmp_path / "run").exists()


class Follower(Callback):
    """Counts what it is called with, and stops the run after a step."""

    def __init__(self, stop_after):
        self.stop_after, self.calls = stop_after, []

    def on_start(self, recipe):
        self.calls.append("start")

    def on_step(self, record):
        self.calls.append(record.step)
        return record.step == self.stop_after

    def on_validation(self, record):
        self.calls.append(f"validation {record.step}")
        assert len(record.replies[0]["responses"]) == K and record.metrics["dist2"] >= 0

    def on_end(self):
        self.calls.append("end")


def test_a_callback_follows_the_run_and_stops_it_with_a_result(corpus, stage1, tmp_path):
    follower, idle = Follower(3), Callback()
    made = recipe(corpus, tmp_path / "run", f"model.backbone={stage1}", "steps=50")
    model = train(made, callbacks=[idle, follower])
    assert follower.calls == ["start", 1, 2, "validation 2", 3, "validation 3", "end"]
    assert len(model.reply("Hello!", max_new_tokens=3)) == K and (tmp_path / "run" / "model").is_dir()
    train(recipe(corpus, tmp_path / "run", f"model.backbone={stage1}", "steps=4"), resume=True, callbacks=[])
    steps = [json.loads(line).get("step") for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()[1:]]
    assert steps == [1, 2, 2, 3, 3, 4, 4]


def test_a_method_from_outside_the_package_trains(corpus, stage1, tmp_path, monkeypatch, request):
    """The example of docs/training.md, as it stands there."""
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    [example] = [block for block in text.split("```python\n")[1:] if "METHODS[" in block.split("```")[0]]
    before = set(METHODS)
    monkeypatch.setattr("polyreply.training.loop.train", lambda recipe: None)
    exec(example.split("```")[0], {})
    monkeypatch.undo()
    [name] = set(METHODS) - before
    request.addfinalizer(lambda: METHODS.pop(name))
    made = recipe(corpus, tmp_path / "run", f"model.backbone={stage1}", f"method={name}")
    assert len(train(made, callbacks=[]).reply("Hello!", max_new_tokens=3)) == K
    assert json.loads((tmp_path / "run" / "usage.json").read_text())["method"] == name


@pytest.mark.parametrize(
    "name",
    [
        *METHODS,
        "mle",
        "stage1",
        "stage1-mini",
        "em",
        "t5-mini-stage1",
        "t5-mini-stage1-everyday",
        "t5-mini-stage2",
        "smollm2-stage1",
        "smollm2-stage2",
    ],
)
def test_every_method_and_shipped_recipe_is_found_by_its_name(name):
    found = load_train_recipe(name, ["data=x", "out=y"])
    assert found.method == name or name not in METHODS


def test_an_unknown_method_or_recipe_is_one_clear_line():
    with pytest.raises(RecipeError, match=r"eqhardem.*eqhard-em"):
        load_recipe(TrainRecipe, None, ["data=x", "out=y", "method=eqhardem"])
    with pytest.raises(RecipeError, match=r"eqhardem.*stage1-mini"):
        load_train_recipe("eqhardem", ["data=x", "out=y"])


def test_recipes_are_listed(polyreply):
    listed = polyreply("train", "--list")
    assert listed.returncode == 0 and all(name in listed.stdout for name in (*METHODS, "stage1-mini"))
