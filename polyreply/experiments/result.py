"""The result of an experiment: tables, pictures and verdicts, with all that is needed to make it again.

`result.json` holds everything; Markdown, LaTeX and HTML are made from it.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from polyreply.errors import PolyReplyError
from polyreply.experiments.claims import Verdict
from polyreply.files import write_file

SCHEMA_VERSION = 1
FILE = "result.json"


@dataclass(frozen=True)
class Number:
    """A number of a table."""

    value: float | None
    std: float | None = None
    """Over seeds."""
    is_best: bool = False
    is_significant: bool = False
    digits: int = 2

    def text(self) -> str:
        """Its value as people read it; a dash where there is none."""
        return "–" if self.value is None else f"{self.value:,.{self.digits}f}".replace(",", "\u2009")


@dataclass(frozen=True)
class Row:
    """A line of a table."""

    cells: list[str | Number]
    is_paper: bool = False
    """The paper's numbers, which stand below ours."""


@dataclass(frozen=True)
class Table:
    """A table for people."""

    title: str
    headings: list[str]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Picture:
    """A PNG file beside the result."""

    file: str
    caption: str


@dataclass(frozen=True)
class Findings:
    """What an experiment has found."""

    tables: list[Table] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """Plain sentences: where ours and the paper's agree in direction, and what a reader should know."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """All numbers, for programs."""
    signatures: list[str] = field(default_factory=list)
    """How the scores were made."""


@dataclass(frozen=True)
class Result:
    """Findings with their origin."""

    name: str
    title: str
    findings: Findings
    origin: dict[str, Any]
    """Data, split, preset, recipe, seeds, command, stages, machine and time."""
    schema_version: int = SCHEMA_VERSION

    def save(self, folder: Path) -> Path:
        """Writes `result.json`, over an earlier one."""
        path = folder / FILE
        text = msgspec.json.format(msgspec.json.encode(self, enc_hook=str), indent=1)
        write_file(path, text + b"\n", overwrite=True)
        return path


def load_result(path: Path) -> Result:
    """Reads what `save` has written."""
    try:
        tree = msgspec.json.decode(path.read_bytes())
        if isinstance(tree, dict) and tree.get("schema_version", 0) > SCHEMA_VERSION:
            raise PolyReplyError(
                f"{path} has schema version {tree['schema_version']}, and this polyreply reads up to {SCHEMA_VERSION}; "
                "upgrade polyreply"
            )
        return msgspec.convert(tree, Result)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise PolyReplyError(
            f"{path}: expected a result of `polyreply reproduce`, found something else ({error}); make it again"
        ) from None
