"""What the README tells a newcomer to type works, in the order of the page."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

from polyreply.models.gguf_file import INSTALL_SMOLLM

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
            assert arguments[0] != "reply" or len(done.stdout.splitlines()) >= 10  # a reply of each decoder
    assert programs.count("polyreply") >= 2 and programs.count("make") >= 2


def test_the_python_examples_run_as_in_one_notebook(tmp_path):
    code = "\n".join(blocks("python"))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == [*map(str, range(10)), "0", "1"]
    assert (tmp_path / "runs" / "mine" / "model" / "config.json").is_file()


def check_install(verb, *arguments):
    """It installs our own extras, which exist, or the backbone, in the version that the library asks for."""
    own = re.fullmatch(r"polyreply\[(.*)\]", arguments[-1])
    if own:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert verb == "install" and set(own[1].split(",")) <= extras.keys()
    else:
        assert shlex.join(["pip", verb, *arguments]) == INSTALL_SMOLLM


def test_console_examples_name_commands_and_recipes_that_exist(tmp_path, polyreply_here):
    """Those that take too long to run: their commands and extras exist, and their training recipes are valid."""
    from polyreply.cli.main import COMMANDS

    for command in (line for block in blocks("console") for line in block.splitlines() if line):
        program, verb, *arguments = shlex.split(command)
        if program == "pip":
            check_install(verb, *arguments)
            continue
        assert program == "polyreply" and verb in COMMANDS
        if verb == "train":
            done = polyreply_here(verb, *arguments, "--dry-run", cwd=tmp_path)
            assert done.returncode == 0 and "method: eqhard-em" in done.stdout, done.stderr
