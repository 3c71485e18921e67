"""The result of an experiment: tables, pictures and verdicts, with all that is needed to judge and repeat it.

`result.json` holds all of it. Markdown, LaTeX and HTML are rendered from it (`report.py`).
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from polyreply.errors import PolyReplyError
from polyreply.experiments.claims import Verdict
from polyreply.files import check_schema_version, write_file
from polyreply.tables import Table

SCHEMA_VERSION = 2
FILE = "result.json"


@dataclass(frozen=True)
class Picture:
    """A PNG file in the folder of the result."""

    file: str
    caption: str


@dataclass(frozen=True)
class Findings:
    """What an experiment has found."""

    tables: list[Table] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """Plain sentences: where our numbers and the paper's point the same way, and what a reader should know."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """All numbers, for programs."""
    signatures: list[str] = field(default_factory=list)
    """How the scores were computed."""


@dataclass(frozen=True)
class Result:
    """Findings and where they come from."""

    name: str
    title: str
    findings: Findings
    origin: dict[str, Any]
    """Data, split, preset, recipe, seeds, command, tasks, machines and time."""
    schema_version: int = SCHEMA_VERSION

    def save(self, folder: Path) -> Path:
        """Write `result.json`, replacing an earlier one."""
        path = folder / FILE
        text = msgspec.json.format(msgspec.json.encode(self, enc_hook=str), indent=1)
        write_file(path, text + b"\n", overwrite=True)
        return path


def load_result(path: Path) -> Result:
    """Read a `result.json`."""
    try:
        tree = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        check_schema_version(path, tree.get("schema_version"), SCHEMA_VERSION)
        return msgspec.convert(tree, Result)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PolyReplyError(
            f"{path}: expected a result of `polyreply reproduce`, found something else ({error}); run it again"
        ) from None
