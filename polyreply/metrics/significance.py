"""Whether a difference between two systems is more than chance, and how precise a score is.

Contexts are resampled, each with all its values (P, R, Dist, Pairwise-BLEU …), and scores are computed from the
resampled means, F from those of P and R. Both systems get the same resamples.

Legend: C contexts, M scores, B resamples.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from polyreply.arrays import Floats
from polyreply.errors import PolyReplyError
from polyreply.metrics.registry import harmonic_mean, parts

Columns = Mapping[str, Floats]
"""The per-context values of a system, under their names."""
TestName = Literal["bootstrap", "permutation"]
TESTS: tuple[str, ...] = get_args(TestName)

_CELLS = 1 << 22
"""Largest part of a resampling matrix that is held at once."""
_TIE = 1e-9
"""Differences (in percent) closer than this are equal, so that rounding does not decide a test."""


@dataclass(frozen=True)
class Difference:
    """A system's score less the baseline's, its 95 % interval, and the probability of one as large by chance.

    One context alone gives neither an interval nor a p-value.
    """

    value: float
    low: float | None = None
    high: float | None = None
    p_value: float | None = None


def intervals(
    columns: Columns, names: Sequence[str], *, samples: int = 1000, seed: int = 0, level: float = 0.95
) -> dict[str, tuple[float, float]]:
    """Percentile bootstrap interval of each of these scores that at least two contexts have."""
    means = _Means(columns, [name for name in names if count_contexts(name, columns) > 1])
    drawn_BM = np.concatenate([means.of(counts) for counts in resample_counts(means.num_contexts, samples, seed)])
    low_M, high_M = np.quantile(drawn_BM, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return {name: (float(low_M[m]), float(high_M[m])) for m, name in enumerate(means.names)}


def paired_test(
    system: Columns,
    baseline: Columns,
    names: Sequence[str],
    *,
    test: TestName = "bootstrap",
    samples: int = 1000,
    seed: int = 0,
) -> dict[str, Difference]:
    """Difference of each score that both systems have, tested over the contexts, which must be the same in both.

    A score that fewer than two contexts have in both is not tested.
    """
    names = [name for name in names if has_number(system, name) and has_number(baseline, name)]
    ours, theirs = _Means(system, names), _Means(baseline, names)
    if ours.num_contexts != theirs.num_contexts:
        raise PolyReplyError(
            f"a paired test needs the same contexts, found {ours.num_contexts} and {theirs.num_contexts}; evaluate "
            "both systems on the same references"
        )
    once_BC = np.ones((1, ours.num_contexts))
    observed_M = (ours.of(once_BC) - theirs.of(once_BC))[0]
    draws = resample_counts(ours.num_contexts, samples, seed)
    drawn_BM = np.concatenate([ours.of(counts) - theirs.of(counts) for counts in draws])
    low_M, high_M = np.quantile(drawn_BM, [0.025, 0.975], axis=0)
    # By chance alone, the bootstrap's differences would scatter around 0 as they scatter around the observed one.
    null_BM = drawn_BM - observed_M if test == "bootstrap" else _permuted(ours, theirs, samples, seed)
    p_M = (1 + (abs(null_BM) >= abs(observed_M) - _TIE).sum(0)) / (1 + samples)
    differences = {}
    for m, name in enumerate(names):
        is_tested = count_contexts(name, system, baseline) > 1
        tested = (float(low_M[m]), float(high_M[m]), float(p_M[m])) if is_tested else ()
        differences[name] = Difference(float(observed_M[m]), *tested)
    return differences


def has_number(columns: Columns, name: str) -> bool:
    """Whether the per-context values give that score."""
    return count_contexts(name, columns) > 0


def count_contexts(name: str, *systems: Columns) -> int:
    """How many contexts have that score in every one of the systems."""
    values = [columns.get(part) for columns in systems for part in parts(name)]
    known = [~np.isnan(value) for value in values if value is not None]
    return int(np.all(known, axis=0).sum()) if len(known) == len(values) else 0


class _Means:
    """Scores as functions of how often each context counts."""

    def __init__(self, columns: Columns, names: Sequence[str]) -> None:
        self.names = list(names)
        self._parts = list(dict.fromkeys(part for name in names for part in parts(name)))
        self.num_contexts = len(next(iter(columns.values())))
        values_CM = np.array([columns[part] for part in self._parts]).reshape(-1, self.num_contexts).T
        self.known_CM = (~np.isnan(values_CM)).astype(np.float64)
        self.values_CM = np.nan_to_num(values_CM)

    def of(self, counts_BC: Floats) -> Floats:
        """The scores under each row of counts, (B, M)."""
        return self.from_sums(counts_BC @ self.values_CM, counts_BC @ self.known_CM)

    def from_sums(self, sums_BM: Floats, known_BM: Floats) -> Floats:
        """The scores from sums over contexts and the number of contexts in each sum."""
        means = dict(zip(self._parts, (sums_BM / np.maximum(known_BM, 1)).T, strict=True))
        scores = []
        for name in self.names:
            first, *second = (means[part] for part in parts(name))
            scores.append(harmonic_mean(first, second[0]) if second else first)
        return np.array(scores).reshape(len(scores), len(sums_BM)).T


def resample_counts(num_contexts: int, samples: int, seed: int) -> Iterator[Floats]:
    """How often each of C contexts is among C draws with replacement, (B, C) in chunks of B."""
    generator = np.random.default_rng(seed)
    for size in _chunks(num_contexts, samples):
        drawn_BC = generator.integers(num_contexts, size=(size, num_contexts))
        flat = drawn_BC + num_contexts * np.arange(size)[:, None]
        counts = np.bincount(flat.ravel(), minlength=size * num_contexts)
        yield counts.reshape(size, num_contexts).astype(np.float64)


def _permuted(ours: _Means, theirs: _Means, samples: int, seed: int) -> Floats:
    """Differences when the values of each context are swapped between the systems by the toss of a coin, (B, M)."""
    generator = np.random.default_rng(seed)
    value_CM, known_CM = theirs.values_CM - ours.values_CM, theirs.known_CM - ours.known_CM
    differences = []
    for size in _chunks(ours.num_contexts, samples):
        coins_BC = generator.integers(2, size=(size, ours.num_contexts)).astype(np.float64)
        value_BM, known_BM = coins_BC @ value_CM, coins_BC @ known_CM
        first_BM = ours.from_sums(ours.values_CM.sum(0) + value_BM, ours.known_CM.sum(0) + known_BM)
        second_BM = theirs.from_sums(theirs.values_CM.sum(0) - value_BM, theirs.known_CM.sum(0) - known_BM)
        differences.append(first_BM - second_BM)
    return np.concatenate(differences)


def _chunks(num_contexts: int, samples: int) -> Iterator[int]:
    """Sizes of the chunks in which resamples are drawn."""
    if samples < 1:
        raise PolyReplyError(f"samples: expected at least 1 resample, found {samples}; the usual number is 1000")
    most = max(1, _CELLS // num_contexts)
    for begin in range(0, samples, most):
        yield min(most, samples - begin)
