"""Shared by all tests: no network, no user cache, and ways to write dialogue files and run the command line."""

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest

# No deadline: it would make a test's result depend on what else the machine is doing.
hypothesis.settings.register_profile("polyreply", deadline=None)
hypothesis.settings.load_profile("polyreply")

CACHE = Path(sys.prefix, "polyreply-cache")
"""Of fixtures that several tests share, and of all runs of the tests."""
os.environ["POLYREPLY_CACHE"] = str(CACHE)
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["POLYREPLY_PRECISION"] = "float32"  # results do not depend on the processor
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run side by side, and tiny models gain nothing from threads


LONGEST = (
    *("test_killed_runs.py", "test_distributed.py", "test_train.py", "test_reply_file.py", "test_demo.py"),
    *("test_jobs.py", "test_gguf_file.py", "test_lora_page.py", "test_readme.py", "test_single_decoder.py"),
    *("test_reproduce.py", "test_reply_cli.py", "test_notebook.py", "test_full_disks.py", "test_checkpoints.py"),
)
"""Files that take longest: they start first, so that no worker is left alone with one at the end."""


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


def pytest_terminal_summary(terminalreporter):
    """One line for all tests that a browser is missing for."""
    from servers import HOW

    skipped = [one for one in terminalreporter.stats.get("skipped", []) if HOW in str(one.longrepr)]
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} tests of pages were skipped: {HOW}")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """An empty cache for each test, but for backbones from GGUF files: they are converted once for all."""
    cache = tmp_path_factory.mktemp("cache")
    (CACHE / "backbones").mkdir(parents=True, exist_ok=True)
    (cache / "backbones").symlink_to(CACHE / "backbones")
    monkeypatch.setenv("POLYREPLY_CACHE", str(cache))


@pytest.fixture
def write_rows():
    """Writes rows as JSONL, compressed when the name says so; a row given as bytes goes in as it is."""

    def write(path: Path, rows) -> Path:
        data = b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path

    return write


@pytest.fixture
def polyreply():
    """Runs the command line in a process of its own, as a user does."""

    def run(*arguments, **options) -> subprocess.CompletedProcess:
        environment = {**os.environ, "COLUMNS": "160", **options.pop("env", {})}
        command = [sys.executable, "-m", "polyreply", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900, **options)

    return run


@pytest.fixture
def polyreply_here(monkeypatch, capsys):
    """Runs the command line like `polyreply`, in this process: much faster, for all but what a process does."""
    from polyreply.cli import main

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def run(*arguments, env=None, cwd=None) -> subprocess.CompletedProcess:
        with monkeypatch.context() as patched, pytest.raises(SystemExit) as end:
            patched.setattr(sys, "argv", ["polyreply", *map(str, arguments)])
            for name, value in {"COLUMNS": "160", **(env or {})}.items():
                patched.setenv(name, value)
            if cwd is not None:
                patched.chdir(cwd)
            capsys.readouterr()
            main.run()
        return subprocess.CompletedProcess(sys.argv, end.value.code or 0, *capsys.readouterr())

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A small data folder to train on."""
    import runs

    return runs.write_corpus(tmp_path_factory.mktemp("smalltalk"))


@pytest.fixture(scope="session")
def stage1(corpus, tmp_path_factory):
    """The model folder of a small stage 1 on it."""
    import runs

    out = tmp_path_factory.mktemp("runs") / "stage1"
    return runs.train(runs.recipe(corpus, out, "method=mle", "model.backbone=mini", "optimizer.learning_rate=0.01"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The model folder of a tiny model whose decoders say different things."""
    from pair import pair

    path = tmp_path_factory.mktemp("pair") / "model"
    pair().save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def model(folder):
    """That model, loaded."""
    from polyreply.reply import PolyReply

    return PolyReply.from_pretrained(folder)
