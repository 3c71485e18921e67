"""The command line as a user meets it: help, errors, JSON."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from polyreply import __version__
from tools import docs as reference

DOCS = Path(__file__).parents[2] / "docs"
VERBS = [
    [],
    ["compare"],
    ["demo"],
    ["evaluate"],
    ["prepare"],
    ["reply"],
    ["reproduce"],
    ["tokenize"],
    ["train"],
    ["bench"],
    ["bench", "data"],
    ["bench", "score"],
    ["bench", "reply"],
    ["bench", "metrics"],
    ["bench", "prefix"],
    ["bench", "assign"],
]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_help_answers_without_heavy_imports(verb):
    script = (
        "import sys; sys.argv[1:] = {!r}\n"
        "from polyreply.cli.main import run\n"
        "try: run()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {{'torch', 'transformers', 'pyarrow', 'duckdb', 'datasets', 'scipy', 'numpy'}} & set(sys.modules)\n"
        "assert not heavy, heavy"
    ).format([*verb, "--help"])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout


def test_every_working_verb_has_examples(polyreply):
    for verb in VERBS:
        if verb and verb != ["bench"]:
            assert f"polyreply {' '.join(verb)}" in polyreply(*verb, "--help").stdout.split("Examples:")[1]


def test_version(polyreply):
    assert polyreply("--version").stdout == f"polyreply {__version__}\n"


@pytest.mark.parametrize(
    "name, render", [("cli.md", reference.render_commands), ("recipes.md", reference.render_recipes)]
)
def test_generated_docs_are_fresh(name, render):
    assert (DOCS / name).read_text(encoding="utf-8") == render(), f"docs/{name} is stale; run `make docs`"


def test_every_setting_is_documented():
    assert "| `overlap.threshold` | `0.75` | Dialogues are near-duplicates" in reference.render_recipes()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["prepare", "missing.jsonl", "--out", "out"], "missing.jsonl: there is no such file or folder"),
        (
            ["prepare", "x.jsonl", "--out", "out", "--set", "clean.maxwords=3"],
            "did you mean clean.max_words?",
        ),
        (
            ["prepare", "x.jsonl", "--out", "out", "--language", "xx"],
            "language: input should be 'en', 'zh' or 'any'",
        ),
        (
            ["prepare", "x.jsonl", "--out", "out", "--recipe", "none.yaml"],
            "none.yaml: there is no such recipe",
        ),
        (["tokenize", "none"], "a new tokenizer needs a folder"),
        (["tokenize", "none", "--out", "tok"], "expected train.jsonl.gz"),
    ],
)
def test_a_mistake_is_one_clear_line(tmp_path, polyreply, arguments, message):
    done = polyreply(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("error: ") and message in line
    assert not list(tmp_path.iterdir())


def test_prepare_prints_json_for_programs_and_tables_for_people(tmp_path, write_rows, polyreply):
    rows = [{"context": f"hello number {n}", "response": f"good day {n * n}"} for n in range(60)]
    path = write_rows(tmp_path / "d.jsonl", [*rows, b"{", rows[0]])
    done = polyreply("prepare", path, "--out", tmp_path / "a", "--set", "overlap.near=false", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((tmp_path / "a/report.json").read_text())
    done = polyreply("prepare", path, "--out", tmp_path / "b", "--set", "overlap.near=false")
    assert "Written to" in done.stdout and "1 bad rows were left out" in done.stdout
    assert f"{path}, line 61: not JSON" in done.stdout


def test_strict_stops_at_the_first_bad_row(tmp_path, write_rows, polyreply):
    path = write_rows(tmp_path / "d.jsonl", [{"context": "a", "response": "b"}, b"{"])
    done = polyreply("prepare", path, "--out", tmp_path / "out", "--strict")
    assert done.returncode == 2 and f"{path}, line 2: not JSON" in done.stderr


def test_an_unwritable_place_is_one_clear_line(tmp_path, write_rows, polyreply):
    path = write_rows(tmp_path / "d.jsonl", [{"context": "a", "response": "b"}])
    (tmp_path / "file").write_text("in the way")
    done = polyreply("prepare", path, "--out", tmp_path / "file" / "out")
    assert done.returncode == 2
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("error: ")


def test_tokenize_trains_loads_and_reports(tmp_path, write_rows, polyreply):
    rows = [{"context": f"how is item {n} going today", "response": f"item {n} is fine, thank you"} for n in range(300)]
    path = write_rows(tmp_path / "d.jsonl", rows)
    sizes = ("--vocab-size", 400, "--max-context-tokens", 8)
    done = polyreply("tokenize", path, "--out", tmp_path / "tok", *sizes, "--json")
    assert done.returncode == 0, done.stderr
    first = json.loads(done.stdout)
    assert first["train"]["samples"] == 300 and first["train"]["contexts_cut_inside_turn"] > 0
    done = polyreply("tokenize", path, "--tokenizer", tmp_path / "tok", *sizes[2:], "--json")
    assert json.loads(done.stdout) == first
