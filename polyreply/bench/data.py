"""`polyreply bench data`: what `prepare` costs at 100 000 and 1 000 000 rows, and whether it finds what was planted.

Each measurement runs the real command in its own process, whose peak memory the operating system reports.
"""

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyreply.bench.synthetic import Pair, Planted, write_natural, write_smalltalk
from polyreply.bench.timing import command_cost
from polyreply.data.read import read_dialogues
from polyreply.progress import Notify


@dataclass(frozen=True)
class BenchCorpus:
    """A kind of benchmark text and the settings `prepare` needs for it."""

    name: str
    write: Callable[[Path, int], Planted]
    settings: tuple[str, ...] = ()


BENCH_CORPORA = (
    BenchCorpus("natural", write_natural),
    # Templates resemble each other by nature, so only exact duplicates are looked for.
    BenchCorpus("smalltalk", write_smalltalk, ("--set", "overlap.near=false")),
)


def bench_data(rows: int, notify: Notify) -> dict[str, Any]:
    """Figures for each corpus at a tenth of `rows` and at `rows`, under stable names."""
    figures: dict[str, Any] = {"data.rows": rows}
    steps = [(corpus, size) for corpus in BENCH_CORPORA for size in (rows // 10, rows)]
    seconds: dict[tuple[str, int], float] = {}
    for step, (corpus, size) in enumerate(steps):
        notify(f"{corpus.name}, {size} rows", step / len(steps))
        measured = _measure(corpus, size)
        seconds[corpus.name, size] = measured["seconds"]
        label = "small" if size < rows else "large"
        figures |= {f"data.{corpus.name}.{label}.{name}": value for name, value in measured.items()}
    for corpus in BENCH_CORPORA:
        figures[f"data.{corpus.name}.growth"] = seconds[corpus.name, rows] / seconds[corpus.name, rows // 10]
    return figures


def _measure(corpus: BenchCorpus, rows: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="polyreply-bench-") as scratch:
        raw, out = Path(scratch) / "raw", Path(scratch) / "out"
        raw.mkdir()
        planted = corpus.write(raw, rows)
        command = (sys.executable, "-m", "polyreply", "prepare", str(raw), "--out", str(out), *corpus.settings)
        seconds, peak = command_cost(command)
        report = json.loads((out / "report.json").read_bytes())
        figures = {
            "seconds": seconds,
            "rows_per_second": report["read"]["rows"] / seconds,
            "peak_mb": peak,
            "exact_found": _exact_found(out, report, planted),
            "kept": report["splits"]["train"]["pairs"] / (rows - planted.exact - len(planted.near)),
        }
        if planted.near:
            figures["near_found"] = _near_found(out, planted)
    return figures


def _exact_found(out: Path, report: dict[str, Any], planted: Planted) -> float:
    """Share of the planted exact duplicates that are gone: no pair of the written train is there twice."""
    left = int(report["splits"]["train"]["pairs"])
    distinct = len({hash((row.context, row.responses)) for row in read_dialogues(out / "train.jsonl.gz")})
    return 1 - min(left - distinct, planted.exact) / planted.exact


def _near_found(out: Path, planted: Planted) -> float:
    """Share of the planted near-duplicates, as far as their overlap is above 0.75, that are no longer in train."""
    wanted = {copy for copy, original in planted.near if _unigram_overlap(copy, original) > 0.75}
    left = sum((row.context[0], row.responses[0]) in wanted for row in read_dialogues(out / "train.jsonl.gz"))
    return 1 - left / len(wanted)


def _unigram_overlap(pair: Pair, other: Pair) -> float:
    """The definition itself, independent of the search that is measured."""
    one, two = (Counter(" ".join(texts).split()) for texts in (pair, other))
    return 2 * (one & two).total() / (one.total() + two.total())
