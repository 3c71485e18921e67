"""The command line as a user meets it: help, errors, JSON."""

import json
import re
import signal
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polyreply import __version__
from polyreply.cli import main
from polyreply.cli.bench import _SHORTER, BENCHES

EXTENDING = Path(__file__).parents[2] / "docs" / "extending.md"
COMMANDS = [
    *((name,) for name in main.COMMANDS),
    *(("bench", name) for name in ("all", *BENCHES)),
    *(("study", name) for name in ("new", "serve", "results", "simulate")),
]
GROUPS = {(), ("bench",), ("study",)}

ALL_HELP = """
import json, sys
from typer.testing import CliRunner
from polyreply.cli.main import app
pages = [CliRunner().invoke(app, [*command, "--help"]) for command in json.loads(sys.argv[1])]
heavy = {"torch", "transformers", "pyarrow", "duckdb", "datasets", "scipy", "numpy"} & set(sys.modules)
print(json.dumps({"pages": [(page.exit_code, page.output) for page in pages], "heavy": sorted(heavy)}))
"""


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """Runs the command line in this process, in an empty folder: exit status, standard output, standard error."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["polyreply", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main.run()
        return end.value.code or 0, *capsys.readouterr()

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_every_command_has_help_with_examples_and_no_heavy_imports():
    commands = [(), *COMMANDS]
    done = subprocess.run([sys.executable, "-c", ALL_HELP, json.dumps(commands)], capture_output=True, text=True)
    answer = json.loads(done.stdout)
    assert answer["heavy"] == []
    for command, (status, text) in zip(commands, answer["pages"], strict=True):
        assert status == 0 and "Usage:" in text, command
        if command not in GROUPS:
            assert f"polyreply {' '.join(command)}" in text.split("Examples:")[1]


def test_help_of_the_whole_program_and_the_version(polyreply):
    done = polyreply("--help")
    assert done.returncode == 0 and all(f"  {name}" in done.stdout for name in main.COMMANDS)
    assert polyreply("--version").stdout == f"polyreply {__version__}\n"


def test_an_installed_package_can_add_a_command(tmp_path, write_rows, polyreply):
    """The example of docs/extending.md as a package of its own; an entry point that cannot be loaded only warns."""
    [code] = re.findall(r"```python\n(\"{3}`polyreply count`.*?)```", EXTENDING.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "counting.py").write_text(code)
    metadata = tmp_path / "counting-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[polyreply.commands]\ncount = counting:count\nbroken = nowhere:go\n")
    path = write_rows(
        tmp_path / "d.jsonl", [{"context": "a", "responses": ["b", "c"]}, {"context": "d", "response": "e"}]
    )
    done = polyreply("count", path, "--json", env={"PYTHONPATH": str(tmp_path)})
    assert json.loads(done.stdout) == {"contexts": 2, "responses": 3}
    assert "broken" in done.stderr and "nowhere" in done.stderr


def test_bench_all_runs_every_benchmark_without_a_model(monkeypatch):
    assert all(set(own) <= set(signature(BENCHES[name][1]).parameters) for name, own in _SHORTER.items())
    for name in BENCHES:
        monkeypatch.setitem(BENCHES, name, (name, lambda notify, name=name, **options: {f"{name}.options": options}))
    result = CliRunner().invoke(main.app, ["bench", "all", "--json"])
    figures = json.loads(result.stdout)
    assert figures.pop("all.minutes") >= 0
    own = {name for name in BENCHES if name not in ("precision", "prefix")}
    assert set(figures) == {f"{name}.options" for name in own}
    assert figures["assign.options"] == {"rounds": 3} and figures["score.options"] == {}


@pytest.mark.parametrize(
    "arguments, facts",
    [
        (["prepare", "missing.jsonl", "--out", "out"], ["missing.jsonl"]),
        (["prepare", "x.jsonl", "--out", "out", "--set", "clean.maxwords=3"], ["clean.maxwords", "clean.max_words"]),
        (["prepare", "x.jsonl", "--out", "out", "--language", "xx"], ["language", "'en', 'zh' or 'any'"]),
        (["prepare", "x.jsonl", "--out", "out", "--recipe", "none.yaml"], ["none.yaml"]),
        (["tokenize", "none"], ["--out"]),
        (["tokenize", "none", "--out", "tok"], ["train.jsonl.gz"]),
    ],
)
def test_a_mistake_is_one_clear_line(tmp_path, here, arguments, facts):
    status, out, errors = here(*arguments)
    [line] = errors.strip().splitlines()
    assert status == 2 and out == ""
    assert line.startswith("error: ") and all(fact in line for fact in facts)
    assert not list(tmp_path.iterdir())


def test_prepare_prints_json_for_programs_and_tables_for_people(tmp_path, write_rows, here, polyreply):
    rows = [{"context": f"hello number {n}", "response": f"good day {n * n}"} for n in range(60)]
    path = write_rows(tmp_path / "d.jsonl", [*rows, b"{", rows[0]])
    done = polyreply("prepare", path, "--out", tmp_path / "a", "--set", "overlap.near=false", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((tmp_path / "a/report.json").read_text())
    status, out, _ = here("prepare", path, "--out", "b", "--set", "overlap.near=false")
    assert status == 0 and "line 61" in out and (tmp_path / "b" / "train.jsonl.gz").is_file()
    status, _, errors = here("prepare", path, "--out", "c", "--strict")
    assert status == 2 and f"{path}, line 61" in errors


def test_an_unwritable_place_is_one_clear_line(tmp_path, write_rows, here):
    path = write_rows(tmp_path / "d.jsonl", [{"context": "a", "response": "b"}])
    (tmp_path / "file").write_text("in the way")
    status, _, errors = here("prepare", path, "--out", "file/out")
    [line] = errors.strip().splitlines()
    assert status == 2 and line.startswith("error: ")


def test_tokenize_trains_loads_and_reports(tmp_path, write_rows, here):
    rows = [{"context": f"how is item {n} going today", "response": f"item {n} is fine, thank you"} for n in range(300)]
    path = write_rows(tmp_path / "d.jsonl", rows)
    sizes = ("--vocab-size", 400, "--max-context-tokens", 8)
    status, out, errors = here("tokenize", path, "--out", "tok", *sizes, "--json")
    assert status == 0, errors
    first = json.loads(out)
    assert first["train"]["samples"] == 300 and first["train"]["contexts_cut_inside_turn"] > 0
    assert json.loads(here("tokenize", path, "--tokenizer", "tok", *sizes[2:], "--json")[1]) == first
