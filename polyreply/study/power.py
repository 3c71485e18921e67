"""How many judgements a difference needs, before anybody is asked.

Of n judgements a random number is decided (not a tie), and of these a random number is won. The power is the
probability that the one-sided binomial test of the decided ones is significant. It is computed exactly, for judgements
that are independent: several judgements of one comparison agree more than chance, and then more are needed.
"""

import math

import numpy as np
from scipy.stats import binom, norm

from polyreply.arrays import Floats, Ints
from polyreply.errors import PolyReplyError

ALPHA, POWER = 0.05, 0.8
_MOST = 1 << 19
"""Decided judgements up to which the power is computed."""


def check_difference(wins: float, losses: float) -> None:
    """Raise unless wins and losses are shares of one whole with more wins than losses."""
    if not (0 <= losses < wins <= 1 and wins + losses <= 1 + 1e-9):
        raise PolyReplyError(
            f"power: expected percentages of wins and losses with more wins, together at most 100, as in 48:33, found "
            f"{100 * wins:g}:{100 * losses:g}; the rest are ties"
        )


def power(judgements: int, wins: float, losses: float, alpha: float = ALPHA) -> float:
    """Probability that a difference of these shares is significant in so many judgements."""
    decided = np.arange(judgements + 1)
    chance = binom.pmf(decided, judgements, min(1.0, wins + losses))
    return float(chance @ _power_of_decided(decided, wins / (wins + losses), alpha))


def judgements_needed(wins: float, losses: float, target: float = POWER, alpha: float = ALPHA) -> int:
    """The fewest judgements from which on the power stays at or above the target.

    The power of an exact test does not grow steadily with n. Its lower envelope over the decided judgements does, so
    bisection finds a number that is surely enough; from there it is a short way down to the fewest.
    """
    check_difference(wins, losses)
    share = wins / (wins + losses)
    enough = _enough_decided(share, target, alpha)
    if enough > _MOST:
        raise PolyReplyError(
            f"power: {100 * wins:g}:{100 * losses:g} needs more judgements than a study can have; plan for a larger "
            "difference"
        )
    decided = np.arange(enough + 1)
    envelope = np.minimum.accumulate(_power_of_decided(decided, share, alpha)[::-1])[::-1]

    def is_enough(judgements: int) -> bool:
        chance = binom.pmf(decided, judgements, min(1.0, wins + losses))
        rest = max(0.0, 1 - chance.sum())  # beyond the envelope the power is higher still
        return bool(chance @ envelope + rest * envelope[-1] >= target)

    low, high = 0, 1
    while not is_enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    while power(high - 1, wins, losses, alpha) >= target:
        high -= 1
    return high


def _power_of_decided(decided: Ints, share: float, alpha: float) -> Floats:
    """Probability of a significant result for each number of decided judgements."""
    critical = binom.isf(alpha, decided, 0.5) + 1  # the fewest wins with a p-value of at most alpha
    return np.asarray(binom.sf(critical - 1, decided, share))


def _enough_decided(share: float, target: float, alpha: float) -> int:
    """A number of decided judgements well above what the normal approximation asks for."""
    deviation = norm.isf(alpha) / 2 + norm.isf(1 - max(target, 0.99)) * math.sqrt(share * (1 - share))
    return int(2 * (deviation / (share - 0.5)) ** 2) + 200
