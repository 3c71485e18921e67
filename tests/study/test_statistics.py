"""Tests, agreement, rankings and power against SciPy, statsmodels and cases worked by hand."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest
from statsmodels.genmod.families import Binomial
from statsmodels.genmod.generalized_linear_model import GLM
from statsmodels.stats.inter_rater import fleiss_kappa as oracle_kappa

from polyreply.errors import PolyReplyError
from polyreply.study.power import judgements_needed, power
from polyreply.study.statistics import are_linked, binomial_tests, bradley_terry, fleiss_kappa, krippendorff_alpha

COUNTS = st.integers(0, 40)


@given(COUNTS, COUNTS)
def test_binomial_tests_equal_scipys(wins, losses):
    one_sided, two_sided = binomial_tests(wins, losses)
    if wins + losses == 0:
        assert (one_sided, two_sided) == (1, 1)
        return
    assert one_sided == pytest.approx(binomtest(wins, wins + losses, alternative="greater").pvalue, rel=1e-9)
    assert two_sided == pytest.approx(binomtest(wins, wins + losses).pvalue, rel=1e-9)


@pytest.mark.parametrize("wins, ties, losses", [(48.2, 19.0, 32.8), (87.2, 8.0, 4.8)])
def test_the_papers_rows_have_the_papers_p_value(wins, ties, losses):
    """500 judgements; the paper says p < 0.0001 for both questions."""
    counts = [round(5 * share) for share in (wins, ties, losses)]
    assert sum(counts) == 500
    assert binomial_tests(counts[0], counts[2])[0] < 0.0001
    assert binomial_tests(counts[2], counts[0])[0] > 0.9999


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=12))
def test_fleiss_kappa_equals_statsmodels(rows):
    raters = 8
    table = np.array([(one, two, raters - one - two) for one, two in rows], float)
    if (table.sum(0) == table.sum()).any():
        assert fleiss_kappa(table) is None
    else:
        assert fleiss_kappa(table) == pytest.approx(oracle_kappa(table))


def test_agreement_that_cannot_be_measured_is_none():
    assert fleiss_kappa(np.zeros((0, 3))) is None
    assert fleiss_kappa(np.array([[1.0, 0, 0]])) is None
    assert krippendorff_alpha(np.zeros((0, 3))) is None
    assert krippendorff_alpha(np.array([[2.0, 0, 0], [3.0, 0, 0]])) is None


KRIPPENDORFF = """
1 2 3 3 2 1 4 1 2 . . .
1 2 3 3 2 2 4 1 2 5 . 3
. 3 3 3 2 3 4 2 2 5 1 .
1 2 3 3 2 4 4 1 2 5 1 .
"""
"""Four observers, twelve units, with missing answers: the worked example of Krippendorff's own introduction."""


@pytest.mark.parametrize("scale, expected", [("nominal", 0.743), ("ordinal", 0.815)])
def test_alpha_of_krippendorffs_worked_example(scale, expected):
    units = zip(*(line.split() for line in KRIPPENDORFF.split("\n") if line), strict=True)
    counts = np.array([[unit.count(str(value)) for value in range(1, 6)] for unit in units], float)
    assert krippendorff_alpha(counts, scale) == pytest.approx(expected, abs=5e-4)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=8))
def test_alpha_is_one_less_observed_over_expected_disagreement(units):
    """Nominal alpha from its definition, pair by pair."""
    counts = np.array([[unit.count(value) for value in range(3)] for unit in units], float)
    paired = [unit for unit in units if len(unit) > 1]
    values = [value for unit in paired for value in unit]
    expected = sum(one != two for one, two in permutations(values, 2)) / max(1, len(values) * (len(values) - 1))
    if expected == 0:
        assert krippendorff_alpha(counts) is None
        return
    observed = sum(sum(a != b for a, b in permutations(unit, 2)) / (len(unit) - 1) for unit in paired) / len(values)
    assert krippendorff_alpha(counts) == pytest.approx(1 - observed / expected)


def test_two_systems_have_the_log_odds_of_their_wins():
    [strengths] = bradley_terry(np.array([[[0.0, 30.0], [10.0, 0.0]]]))
    assert strengths[0] - strengths[1] == pytest.approx(np.log(30.5 / 10.5)) and strengths.sum() == pytest.approx(0)


def test_bradley_terry_equals_a_binomial_regression():
    """statsmodels fits the same counts, with the added ties, as a regression of wins on differences of systems."""
    wins = np.array([[0, 12, 30.5, 3], [8, 0, 14, 0], [9.5, 11, 0, 25], [1, 0, 4, 0]])
    [ours] = bradley_terry(wins[None])
    rows, counts = [], []
    for i in range(4):
        for j in range(i + 1, 4):
            if wins[i, j] + wins[j, i]:
                row = np.zeros(4)
                row[i], row[j] = 1, -1
                rows.append(row[1:])
                counts.append((wins[i, j] + 0.5, wins[j, i] + 0.5))
    fitted = GLM(np.array(counts), np.array(rows), family=Binomial()).fit(tol=1e-12).params
    theirs = np.array([0, *fitted])
    assert ours == pytest.approx(theirs - theirs.mean(), abs=1e-6)


@given(st.lists(st.integers(0, 60), min_size=6, max_size=6), st.permutations(range(3)))
def test_renaming_systems_renames_their_strengths(counts, order):
    wins = np.zeros((3, 3))
    wins[~np.eye(3, dtype=bool)] = np.array(counts) + 0.0
    if not are_linked(wins):
        return
    [strengths], [renamed] = bradley_terry(wins[None]), bradley_terry(wins[np.ix_(order, order)][None])
    assert np.isfinite(strengths).all() and renamed == pytest.approx(strengths[list(order)], abs=1e-8)


def test_systems_are_linked_directly_or_through_others():
    chain = np.zeros((3, 3))
    chain[0, 1] = chain[1, 2] = 1
    assert are_linked(chain) and not are_linked(np.diag([0.0, 0], 1)[:2, :2])
    chain[1, 2] = 0
    assert not are_linked(chain)


def test_power_is_the_sum_over_all_outcomes():
    judgements, wins, losses = 25, 0.5, 0.2
    total = sum(
        binom.pmf(decided, judgements, wins + losses) * binom.pmf(won, decided, wins / (wins + losses))
        for decided in range(judgements + 1)
        for won in range(decided + 1)
        if binomial_tests(won, decided - won)[0] <= 0.05
    )
    assert power(judgements, wins, losses) == pytest.approx(total)


@pytest.mark.parametrize("wins, losses", [(0.482, 0.328), (0.6, 0.4), (0.3, 0.1), (1.0, 0.0)])
def test_the_judgements_needed_are_the_fewest_from_which_on_the_power_suffices(wins, losses):
    needed = judgements_needed(wins, losses)
    assert power(needed - 1, wins, losses) < 0.8
    assert all(power(more, wins, losses) >= 0.8 for more in range(needed, needed + 60))


@pytest.mark.parametrize("wins, losses", [(0.3, 0.4), (0.5, 0.5), (0.9, 0.2), (-0.1, 0.0)])
def test_a_difference_that_cannot_be_is_refused(wins, losses):
    with pytest.raises(PolyReplyError, match="48:33"):
        judgements_needed(wins, losses)


def test_a_difference_that_nobody_would_notice_is_refused():
    with pytest.raises(PolyReplyError, match="larger difference"):
        judgements_needed(0.5001, 0.4999)
