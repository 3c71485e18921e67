"""Data flows down: a stage imports only from the stages before it, and importing the package does nothing."""

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "polyreply"
STAGES = (
    "errors arrays progress files config threads allocator precision distributed tables plots data metrics models em "
    "baselines decoding reply reply_file peft_folders analysis training demo web study experiments serve bench cli"
).split()
DATA = {"py", "shipped", "recipes"}
"""What is in the package's folder and no code: the marker py.typed, recipes, and the shipped models."""


def stage_of(module: str) -> int | None:
    parts = module.split(".")
    return STAGES.index(parts[1]) if parts[0] == "polyreply" and len(parts) > 1 and parts[1] in STAGES else None


def test_imports_point_upstream():
    checked = 0
    for path in PACKAGE.rglob("*.py"):
        own = stage_of(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and own is not None:
                used = stage_of(node.module)
                assert used is None or used <= own, f"{path} imports {node.module}"
                checked += used is not None
    assert checked > 50


def test_only_its_command_imports_the_reproduction_of_the_paper():
    """The library is complete without polyreply.experiments."""
    root = PACKAGE.parent
    files = [*PACKAGE.rglob("*.py"), *(root / "tools").rglob("*.py")]
    users = {str(path.relative_to(root)) for path in files if "polyreply.experiments" in path.read_text("utf-8")}
    inside = {str(path.relative_to(root)) for path in (PACKAGE / "experiments").rglob("*.py")}
    assert users - inside == {"polyreply/cli/reproduce.py"}


def test_every_folder_of_the_package_is_a_known_stage():
    assert {path.stem for path in PACKAGE.iterdir() if not path.stem.startswith("__")} - DATA <= set(STAGES)


def test_importing_the_package_imports_nothing_heavy():
    script = "import polyreply, sys; print(*sorted({'numpy', 'torch', 'pyarrow', 'typer'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "\n"


def test_public_names_are_all_there():
    import polyreply

    assert all(getattr(polyreply, name) for name in polyreply.__all__)
