"""The converters of docs/everyday.md, on small files in the corpora's own formats, and the commands after them."""

import json
import re
import shlex
from pathlib import Path

import pytest

from polyreply.config import load_recipe
from polyreply.data.prepare import PrepareRecipe
from polyreply.data.read import read_dialogues

PAGE = (Path(__file__).parent.parent / "docs" / "everyday.md").read_text(encoding="utf-8")


@pytest.fixture
def converters(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], names)
    return names


def test_circa(converters, tmp_path):
    heading = "id\tcontext\tquestion-X\tcanquestion-X\tanswer-Y\tjudgements\tgoldstandard1\tgoldstandard2"
    said = [("Are you free?", "All day."), ("Is it far?", 'They say "yes".'), ("Are you free?", "I work.")]
    lines = [
        f"{n}\tTwo friends.\t{question}\tI am.\t{answer}\tYes#No\tYes\tYes" for n, (question, answer) in enumerate(said)
    ]
    (tmp_path / "circa-data.tsv").write_text("\n".join([heading, *lines]))
    assert converters["circa"]("circa-data.tsv") == [
        {"context": "Are you free?", "responses": ["All day.", "I work."]},
        {"context": "Is it far?", "responses": ['They say "yes".']},
    ]


def test_selfdialogue(converters, tmp_path):
    folder = tmp_path / "corpus" / "music"
    folder.mkdir(parents=True)
    names = [1, 10, *range(2, 10)]  # as they come from Mechanical Turk
    heading = ",".join(f'"Answer.sentence{n}"' for n in names)
    line = ",".join(f'"Line {n}, said ""so""."' if n != 9 else '""' for n in names)
    (folder / "batch.csv").write_text(f'"HITId",{heading},"Approve"\n"X",{line},"x"\n')
    [row] = converters["selfdialogue"]("corpus")
    assert row["turns"] == [f'Line {n}, said "so".' for n in (1, 2, 3, 4, 5, 6, 7, 8, 10)]


def test_personality_and_the_written_file(converters, tmp_path):
    for manner, answer in (("friendly", "Hey there!"), ("caring", "Hello, how are you?")):
        text = "> a comment\n\n# ? Hello\n- Hi\n- Hi there\n\n**Filters:**\n- editorial = chitchat\n\n"
        text += f"```markdown\n{answer}\n```\n\n"
        text += "# ? Bye\n\n```markdown\nSee you.\n```\n"
        (tmp_path / f"{manner}.qna").write_text(text)
    rows = converters["personality"](["friendly.qna", "caring.qna"])
    found = {row["context"]: row["responses"] for row in rows}
    assert found["Hello"] == found["Hi there"] == ["Hey there!", "Hello, how are you?"]
    assert found["Bye"] == ["See you."] * 2
    converters["write"](rows, "personality.jsonl")
    assert [json.loads(line) for line in (tmp_path / "raw/personality.jsonl").read_text().splitlines()] == rows
    assert len(list(read_dialogues(tmp_path / "raw/personality.jsonl"))) == len(rows)


def test_the_commands_are_valid():
    blocks = "".join(re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL))
    commands = [shlex.split(line) for line in blocks.splitlines() if line.startswith("polyreply ")]
    assert len(commands) == 6 and all(command[1] == "prepare" for command in commands)
    for command in commands:
        overrides = [command[place + 1] for place, word in enumerate(command) if word == "--set"]
        recipe = command[command.index("--recipe") + 1] if "--recipe" in command else None
        assert load_recipe(PrepareRecipe, recipe, overrides).context_turns == 3
