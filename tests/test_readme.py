"""What the README tells a newcomer to type works, in the order of the page."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import polyreply as package

ROOT = Path(__file__).parent.parent


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def test_every_command_runs(tmp_path, polyreply):
    makefile = (ROOT / "Makefile").read_text()
    targets = {target for line in re.findall(r"^([\w -]+):", makefile, re.M) for target in line.split()}
    programs = []
    for command in (line for block in blocks("bash") for line in block.splitlines() if line):
        program, *arguments = shlex.split(command)
        programs.append(program)
        if program == "make":
            assert set(arguments) <= targets
        else:
            done = polyreply(*arguments, cwd=tmp_path)
            assert program == "polyreply" and done.returncode == 0, f"{command}\n{done.stderr}"
    assert programs.count("polyreply") >= 2 and programs.count("make") >= 2


@pytest.mark.parametrize("number", range(2))
def test_every_python_example_prints_its_replies(tmp_path, number):
    code = blocks("python")[number]
    if "train(" in code and not hasattr(package, "train"):
        pytest.skip("`polyreply.train` is not public yet")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [str(k) for k in range(len(lines))] and len(lines) >= 2


def test_there_are_no_other_python_examples():
    assert len(blocks("python")) == 2


def test_console_examples_name_commands_and_recipes_that_exist(tmp_path, polyreply):
    """Those that take too long to run: their commands exist, and their training recipes are valid."""
    from polyreply.cli.main import COMMANDS

    for command in (line for block in blocks("console") for line in block.splitlines() if line):
        program, verb, *arguments = shlex.split(command)
        assert program == "polyreply" and verb in COMMANDS
        if verb == "train":
            done = polyreply(verb, *arguments, "--dry-run", cwd=tmp_path)
            assert done.returncode == 0 and "method: eqhard-em" in done.stdout, done.stderr
