"""Systems with their seeds, and which score files belong to one system."""

import statistics
import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polyreply.arrays import Floats
from polyreply.errors import PolyReplyError
from polyreply.metrics.score_file import load_scores
from polyreply.metrics.scores import Scores


@dataclass(frozen=True)
class System:
    """One system with the scores of its seeds."""

    name: str
    seeds: list[Scores]

    def mean(self, number: str) -> float | None:
        """The number, averaged over seeds; None where a seed has none."""
        values = self._values(number)
        return statistics.fmean(values) if values else None

    def std(self, number: str) -> float | None:
        """The sample standard deviation over seeds; None for a single one."""
        values = self._values(number)
        return statistics.stdev(values) if len(values) > 1 else None

    def columns(self) -> dict[str, Floats]:
        """Per-context values, averaged over seeds."""
        names = [name for name in self.seeds[0].per_context if all(name in one.per_context for one in self.seeds)]
        return {name: np.mean([one.per_context[name] for one in self.seeds], axis=0) for name in names}

    @property
    def signature(self) -> str:
        """The signature of its seeds; all of them, should they differ."""
        return " and ".join(dict.fromkeys(str(one.signature) for one in self.seeds))

    def _values(self, number: str) -> list[float]:
        values = [one.numbers.get(number) for one in self.seeds]
        known = [value for value in values if value is not None]
        return known if len(known) == len(values) else []


def read_systems(arguments: Sequence[str]) -> list[System]:
    """Systems from `FILE` or `NAME=FILE,FILE,…` arguments, in their order.

    Files that were given one name, there or by `evaluate --name`, are the seeds of one system. A file without a name is
    a system of its own.
    """
    named = [(name, path) for argument in arguments for name, path in _files(argument)]
    twice = next((path for path, count in Counter(path.resolve() for _, path in named).items() if count > 1), None)
    if twice is not None:
        raise PolyReplyError(f"{twice}: expected each score file once, found it twice; leave one out")
    loaded = [(path, load_scores(path), name) for name, path in named]
    names = {path: one_line(name or scores.system) for path, scores, name in loaded}
    names |= _names_of_files([path for path, name in names.items() if not name], set(names.values()))
    found: dict[str, list[Scores]] = {}
    for path, scores, _ in loaded:
        found.setdefault(names[path], []).append(scores)
    return [System(name, seeds) for name, seeds in found.items()]


def one_line(name: str) -> str:
    """A name without line breaks and other control characters, which no table can show."""
    return " ".join("".join("�" if _unprintable(char) else char for char in name).split())


def _unprintable(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cs") and not char.isspace()


def _files(argument: str) -> list[tuple[str, Path]]:
    """What an argument names; a file that exists is taken as it is, whatever signs its name has."""
    name, equals, files = argument.partition("=")
    if not equals or Path(argument).exists():
        name, files = "", argument
    parts = [files] if Path(files).exists() else files.split(",")
    return [(name, Path(part)) for part in parts]


def _names_of_files(paths: Sequence[Path], taken: Collection[str]) -> dict[Path, str]:
    """A name for each file that was given none: its own without endings, with folders where these are needed.

    Where all files are called the same, their folders alone are the names.
    """
    parts = {path: _parts(path) for path in paths}
    same = len(paths) > 1 and len({one[-1] for one in parts.values()}) == 1
    if same and len({one[:-1] for one in parts.values()}) == len(paths):
        parts = {path: one[:-1] for path, one in parts.items()}
    elif len(set(parts.values())) < len(paths):  # a.json beside a.json.gz
        parts = {path: (*one[:-1], path.name) for path, one in parts.items()}
    return {
        path: _shortest(one, [other for other in parts.values() if other != one], taken) for path, one in parts.items()
    }


def _parts(path: Path) -> tuple[str, ...]:
    """A file's folders and its name without endings."""
    whole = path.absolute()
    return (*whole.parts[1:-1], whole.name.removesuffix(".gz").removesuffix(".json"))


def _shortest(parts: tuple[str, ...], others: Sequence[tuple[str, ...]], taken: Collection[str]) -> str:
    """The fewest last parts of a path that no other path ends in and that are not the name of another system."""
    ends = (one_line("/".join(parts[-depth:])) for depth in range(1, len(parts) + 1))
    theirs = {one_line("/".join(other[-depth:])) for other in others for depth in range(1, len(other) + 1)}
    return next((end for end in ends if end not in theirs and end not in taken), one_line("/" + "/".join(parts)))
