"""Tests, agreement and rankings from counts of judgements.

Legend: U units (comparisons), C categories (win, tie, loss), S systems, B resamples.
"""

from typing import Literal

import numpy as np
from scipy.special import bdtrc, expit

from polyreply.arrays import Floats

_NEWTON_STEPS, _LARGEST_STEP, _CONVERGED = 100, 2.0, 1e-12


def binomial_tests(wins: int, losses: int) -> tuple[float, float]:
    """One-sided (more wins than losses) and two-sided p-value of the exact binomial test; ties are left out."""
    decided = wins + losses
    return _at_least(wins, decided), min(1.0, 2 * _at_least(max(wins, losses), decided))


def _at_least(successes: int, trials: int) -> float:
    """Probability of so many successes or more when both outcomes are equally likely."""
    return float(bdtrc(successes - 1, trials, 0.5)) if successes > 0 else 1.0


def fleiss_kappa(counts_UC: Floats) -> float | None:
    """Agreement beyond chance of a fixed number of raters; None if all answers are the same, or one rater alone.

    `counts_UC` holds how often each category was given to each unit; all rows have the same sum.
    """
    if not len(counts_UC) or counts_UC[0].sum() < 2:
        return None
    raters = counts_UC[0].sum()
    observed = float(((counts_UC**2).sum(1) - raters).mean() / (raters * (raters - 1)))
    expected = float(((counts_UC.sum(0) / counts_UC.sum()) ** 2).sum())
    return None if expected == 1 else (observed - expected) / (1 - expected)


def krippendorff_alpha(counts_UC: Floats, scale: Literal["nominal", "ordinal"] = "nominal") -> float | None:
    """Krippendorff's alpha, for any number of raters per unit; None if all answers are the same or none can be paired.

    Units with fewer than two answers are left out. `ordinal` takes the categories in the order of the columns.
    """
    counts_UC = counts_UC[counts_UC.sum(1) > 1]
    pairable_U1 = counts_UC.sum(1, keepdims=True) - 1
    weighted_UC = counts_UC / pairable_U1
    coincidences_CC = weighted_UC.T @ counts_UC - np.diag(weighted_UC.sum(0))
    totals_C = coincidences_CC.sum(0)
    distances_CC = _distances(totals_C, scale)
    expected = float((np.outer(totals_C, totals_C) * distances_CC).sum())
    if expected == 0:
        return None
    return 1 - float(totals_C.sum() - 1) * float((coincidences_CC * distances_CC).sum()) / expected


def _distances(totals_C: Floats, scale: Literal["nominal", "ordinal"]) -> Floats:
    """Squared distance of each pair of categories; ordinal: how many answers lie between them."""
    if scale == "nominal":
        return 1.0 - np.eye(len(totals_C))
    middles_C = np.cumsum(totals_C) - totals_C / 2
    return np.asarray((middles_C[:, None] - middles_C[None, :]) ** 2)


def bradley_terry(wins_BSS: Floats) -> Floats:
    """Log-strengths (B, S) with mean 0 by maximum likelihood; a tie counts as half a win of each.

    `wins_BSS[b, i, j]` holds how often i beat j. To every pair that was compared one tie is added, so that a system
    that won or lost everything has a finite strength. All systems must be linked by comparisons.
    """
    played_BSS = wins_BSS + wins_BSS.transpose(0, 2, 1)
    compared = played_BSS.sum(0) > 0
    wins_BSS, played_BSS = wins_BSS + compared / 2, played_BSS + compared
    strengths_BS = np.zeros(wins_BSS.shape[:2])
    systems = np.arange(wins_BSS.shape[1])
    for _ in range(_NEWTON_STEPS):
        chance_BSS = expit(strengths_BS[:, :, None] - strengths_BS[:, None, :])
        gradient_BS = (wins_BSS - played_BSS * chance_BSS).sum(2)
        hessian_BSS = -played_BSS * chance_BSS * (1 - chance_BSS)
        hessian_BSS[:, systems, systems] -= hessian_BSS.sum(2)
        hessian_BSS += 1  # strengths are known up to a constant: this fixes their sum
        step_BS = np.linalg.solve(hessian_BSS, gradient_BS[:, :, None])[:, :, 0]
        largest_B1 = abs(step_BS).max(1, keepdims=True)
        strengths_BS += step_BS * np.minimum(1, _LARGEST_STEP / np.maximum(largest_B1, _CONVERGED))
        if largest_B1.max() < _CONVERGED:
            break
    return np.asarray(strengths_BS - strengths_BS.mean(1, keepdims=True))


def are_linked(compared_SS: Floats) -> bool:
    """Whether comparisons lead from every system to every other, perhaps through further ones."""
    reached = np.linalg.matrix_power(np.eye(len(compared_SS)) + (compared_SS + compared_SS.T > 0), len(compared_SS))
    return bool((reached > 0).all())
