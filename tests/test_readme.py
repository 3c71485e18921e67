"""What the README tells a newcomer to type works."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def test_every_command_and_the_python_example_run_in_order(tmp_path, polyreply):
    commands = [line for block in blocks("bash") for line in block.splitlines() if line]
    targets = {
        target for line in re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), re.M) for target in line.split()
    }
    ran = 0
    for command in commands:
        program, *arguments = shlex.split(command)
        if program == "make":
            assert set(arguments) <= targets
            continue
        assert program == "polyreply", command
        done = polyreply(*arguments, cwd=tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        ran += 1
    assert ran >= 3
    [code] = blocks("python")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 10, done.stderr


def test_links_to_files_exist():
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (ROOT / "README.md").read_text(encoding="utf-8")):
        assert link.startswith("http") or (ROOT / link).exists(), link
