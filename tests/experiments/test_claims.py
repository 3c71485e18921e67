"""Claims: how our numbers and the paper's are judged, and whether the paper's were copied correctly."""

import numpy as np
import pytest

from polyreply.errors import DivergedError
from polyreply.experiments import (
    figure_assignment,
    figure_scaling,
    paper,
    table_ablation,
    table_architecture,
    table_efficiency,
    table_em,
    table_main,
)
from polyreply.experiments.claims import (
    Claim,
    Significance,
    best,
    check,
    corrected,
    directions,
    over,
    times,
    within,
    worst,
)
from polyreply.experiments.score_table import Scored
from polyreply.experiments.table_ours import choose
from polyreply.experiments.variants import HARD, HARD_AUTHORS, for_authors_start
from polyreply.metrics import PAPER_NUMBERS, Comparison, Scores, Signature, System
from polyreply.metrics.registry import harmonic_mean
from polyreply.tables import Table

OURS = {"a": {"bleu2_f": 3.0, "dist2": 10.0}, "b": {"bleu2_f": 2.0, "dist2": 40.0}, "c": {"bleu2_f": 1.0}}
OURS |= {"e": {"bleu2_f": 2.996}}
OURS |= {"p": {"dist2": 0.0138}, "q": {"dist2": 0.0363}, "z": {"dist2": 1e-155}}


@pytest.mark.parametrize(
    "judge, holds, text",
    [
        (best("a", "bleu2_f", "abc"), True, "3.00; of the others b, 2.00"),
        (best("b", "bleu2_f", "abc"), False, "2.00; of the others a, 3.00"),
        (best("a", "bleu2_f", "ax"), None, ""),
        (times("b", "a", "dist2", at_least=2), True, "40.00 against 10.00: 4.00×"),
        (times("b", "a", "dist2", at_most=0.5), False, "40.00 against 10.00: 4.00×"),
        (times("c", "a", "dist2", at_least=2), None, ""),
        (times("p", "q", "dist2", at_most=1 / 3), False, "0.01 against 0.04: 0.38×"),
        (times("z", "z", "dist2", at_least=1, at_most=1), None, "both are 0"),
        (times("a", "z", "dist2", at_most=2), False, "10.00 against 0.00: inf×"),
        (over("a", "b", "bleu2_f"), True, "3.00 against 2.00"),
        (over("a", "a", "bleu2_f"), None, ""),
        (within("a", "dist2", at_least=10, at_most=10), True, "10"),
        (within("x", "dist2"), None, ""),
        (best("a", "bleu2_f", "ae"), False, "3.00; of the others e, 3.00"),
        (worst("c", "bleu2_f", "abc"), True, "1.00; of the others b, 2.00"),
        (worst("b", "bleu2_f", "abc"), False, "2.00; of the others c, 1.00"),
    ],
)
def test_a_claim_holds_does_not_or_was_not_measured(judge, holds, text):
    [verdict] = check([Claim("claim", "Table 9", judge)], OURS)
    assert verdict.outcome == {True: "holds", False: "does not hold", None: "not measured"}[holds]
    assert (verdict.ours, verdict.paper) == (text, "")


def test_a_recipe_wins_by_bleu2_f_unless_it_is_less_diverse():
    def numbers(bleu2_f, dist2, pairwise_bleu):
        return {"bleu2_f": bleu2_f, "dist2": dist2, "pairwise_bleu": pairwise_bleu, "identical": 0.0}

    base, alike, fewer = numbers(3, 50, 10), numbers(9, 50, 11), numbers(8, 49, 10)
    found = {"EqHard-EM": base, "alike": alike, "fewer": fewer}
    assert choose({**found, "good": numbers(4, 50, 10)}) == ("good", True)
    assert choose({"EqHard-EM": base, "worse": numbers(2, 60, 5)}) == ("worse", True)
    assert choose(found) == ("alike", False)
    assert choose({**found, "same words": {**numbers(9.5, 60, 5), "identical": 6.0}}) == ("same words", False)
    for diverged in ({"alike": alike}, {"EqHard-EM": base}):
        with pytest.raises(DivergedError, match="use a lower learning rate"):
            choose(diverged)


def test_the_p_value_of_the_best_of_several_is_multiplied_by_their_number():
    claim = [Claim("claim", "ours", best("a", "bleu2_f", "ab"))]

    def outcome(p_value, tries):
        found = None if p_value is None else Significance(p_value)
        [verdict] = check(claim, OURS, test=corrected(lambda *_: found, tries))
        return verdict.outcome, verdict.ours.rpartition("; ")[2]

    assert outcome(0.01, 1) == ("holds", "p = 0.010") and outcome(0.01, 4) == ("holds", "p = 0.040")
    assert outcome(0.01, 5) == ("holds, not significantly", "p = 0.050") and outcome(0.5, 9)[1] == "p = 1.000"
    assert outcome(None, 4) == ("holds", "of the others b, 2.00")


SHORT = {"a": {"pairwise_bleu": 5.0, "identical": 40.0}, "b": {"pairwise_bleu": 20.0, "identical": 10.0}}


@pytest.mark.parametrize(
    "judge",
    [
        best("a", "pairwise_bleu", "ab"),
        times("a", "b", "pairwise_bleu", at_most=0.5),
        over("b", "a", "pairwise_bleu"),
    ],
)
def test_pairwise_bleu_is_believed_only_where_identical_replies_do_not_contradict_it(judge):
    claim = [Claim("claim", "Table 9", judge)]
    [verdict] = check(claim, SHORT)
    assert verdict.outcome == "not measured" and "40.00 %" in verdict.ours and "10.00 %" in verdict.ours
    [verdict] = check(claim, {**SHORT, "a": {"pairwise_bleu": 5.0, "identical": 0.0}}, SHORT)
    assert verdict.outcome == "holds" and "identical pairs" in verdict.ours and "reverse it" in verdict.paper
    third = {**SHORT, "c": {"pairwise_bleu": 4.0, "identical": 0.0}}
    assert check([Claim("claim", "Table 9", best("b", "pairwise_bleu", "abc"))], third)[0].outcome == "does not hold"
    few = {"a": {"pairwise_bleu": 5.0, "identical": 1.0}, "b": {"pairwise_bleu": 20.0, "identical": 0.0}}
    assert check(claim, few)[0].outcome == "holds"
    [verdict] = check(claim, {name: {"pairwise_bleu": found["pairwise_bleu"]} for name, found in SHORT.items()})
    assert verdict.outcome == "holds" and "identical" not in verdict.ours


def test_pairwise_bleu_near_0_says_nothing_where_replies_are_identical():
    near = [Claim("near 0", "Table 9", within("a", "pairwise_bleu", at_most=2))]
    found = [{"a": {"pairwise_bleu": 0.0, "identical": same}} for same in (90.0, 1.0)]
    assert [check(near, numbers)[0].outcome for numbers in found] == ["not measured", "holds"]
    equal = {"a": {"pairwise_bleu": 0.0, "identical": 90.0}, "b": {"pairwise_bleu": 0.0, "identical": 0.0}}
    [verdict] = check([Claim("alike", "Table 9", over("a", "b", "pairwise_bleu"))], equal)
    assert verdict.outcome == "not measured" and verdict.ours.endswith("could reverse it")


@pytest.mark.parametrize(
    "found, outcome, text",
    [
        (Significance(0.2), "holds, not significantly", "p = 0.200"),
        (Significance(0.01), "holds", "p = 0.010"),
        (Significance(0.0), "holds", "p < 0.001"),
        (Significance(0.01, seeds_agree=False), "holds, not significantly", "p = 0.010; not with every seed"),
        (None, "holds", "2.00"),
    ],
)
def test_the_best_is_tested(found, outcome, text):
    asked = []

    def test(*names):
        asked.append(names)
        return found

    claims = [Claim("best", "Table 9", best(name, "bleu2_f", "abc")) for name in "ab"]
    first, second = check(claims, OURS, test=test)
    assert (
        first.outcome == outcome
        and first.ours.endswith(text)
        and asked == [("a", "b", "bleu2_f"), ("a", "c", "bleu2_f")]
    )
    assert second.outcome == "does not hold", "and nothing is tested"


@pytest.mark.parametrize(
    "far, outcome, text",
    [
        (Significance(0.001), "holds", "of the others b, 2.00; p = 0.010"),
        (Significance(0.2), "holds, not significantly", "of the others b, 2.00; p = 0.200"),
        (Significance(0.001, seeds_agree=False), "holds, not significantly", "p = 0.010; not with every seed"),
    ],
)
def test_the_best_has_to_beat_each_of_the_others(far, outcome, text):
    """Seeds of a system may vary so much that one further behind is less surely so."""
    claim = [Claim("best", "Table 9", best("a", "bleu2_f", "acb"))]
    numbers = {name: {"bleu2_f": value} for name, value in {"a": 3.0, "b": 2.0, "c": 1.0}.items()}
    [verdict] = check(claim, numbers, test=lambda system, other, number: {"b": Significance(0.01), "c": far}[other])
    assert verdict.outcome == outcome and verdict.ours.endswith(text)


def _scored(**shifts):
    """Systems with one seed for each shift of a wave over 60 contexts."""

    def seed(shift):
        wave = np.tile([30.0, 50.0, 40.0], 20) + shift
        columns = {"bleu1_p": wave, "bleu1_r": wave}
        return Scores({"bleu1_f": 40.0 + shift}, columns, Signature("wordpunct", "lower", "3", "1"), 60, "d")

    systems = [System(name, [seed(shift) for shift in found]) for name, found in shifts.items()]
    return Scored(Table("t", [], []), {}, Comparison(systems, "a", "bootstrap", 1000, 0, 0.05), {})


def test_p_values_are_of_a_paired_test_over_contexts():
    scored = _scored(a=[5.0], b=[0.0], c=[0.0])
    assert scored.test("a", "b", "bleu1_f").p_value < 0.05 and scored.test("c", "b", "bleu1_f").p_value > 0.5
    assert scored.test("a", "x", "bleu1_f") is None and scored.test("a", "b", "dist2") is None


@pytest.mark.parametrize(
    "a, b, agree",
    [
        ([5.0, 4.0], [0.0], True),
        ([9.0, -1.0], [0.0], False),
        ([2.0, 4.0], [1.0, 3.0], True),
        ([2.0, 4.0], [3.0, 1.0], False),
    ],
)
def test_seeds_agree_when_the_same_system_is_ahead_with_each(a, b, agree):
    scored = _scored(a=a, b=b)
    assert scored.test("a", "b", "bleu1_f").seeds_agree is scored.test("b", "a", "bleu1_f").seeds_agree is agree


@pytest.mark.parametrize("dataset", ["weibo", "opensubtitles"])
@pytest.mark.parametrize(
    "claims, table",
    [
        (table_main.CLAIMS, paper.table_main),
        (table_ablation.CLAIMS, paper.table_ablation),
        (table_architecture.CLAIMS, lambda dataset: paper.ARCHITECTURE),
        (table_efficiency.CLAIMS, lambda dataset: paper.EFFICIENCY),
    ],
)
def test_the_papers_own_numbers_confirm_its_claims(claims, table, dataset):
    assert {one.outcome for one in check(claims, table(dataset).numbers)} == {"holds"}


@pytest.mark.parametrize("dataset", ["weibo", "opensubtitles"])
def test_the_papers_own_numbers_confirm_its_claims_about_em_variants(dataset):
    published = paper.table_em(dataset)
    numbers = table_em.papers_numbers(published)
    assert {one.outcome for one in check(table_em.CLAIMS, numbers)} == {"holds"}
    assert HARD.name not in numbers and numbers[HARD_AUTHORS.name]["dist1"] == published.numbers["Hard-EM"]["dist1"]
    assert for_authors_start(published, [HARD]) == published and HARD.name in published.numbers


def test_every_statement_of_the_paper_about_a_system_is_a_claim():
    text = " ".join(claim.text for claim in (*table_em.CLAIMS, *table_main.CLAIMS, figure_scaling.SIMILAR))
    for part in ("Dist-1, Hard-EM excluded", "Pairwise-BLEU, Hard-EM excluded", "lowest BLEU2-F", "lowest Dist-2"):
        assert part in text
    for part in ("EqRandom variants perform similarly", "1.5× EqRandom-Fixed", "Dist-2 of those that do not sample"):
        assert part in text
    hard = {"EqHard-EM": {"relative_std": 300.0}}
    assert [one.outcome for one in check(figure_assignment.CLAIMS, hard)][-1] == "holds"
    similar = {"K = 5, EqHard-EM": {"bleu2_f": 8.0}, "K = 5, Beam search": {"bleu2_f": 7.5}}
    assert [check([figure_scaling.SIMILAR], numbers)[0].outcome for numbers in (similar, {})] == [
        "holds",
        "not measured",
    ]


@pytest.mark.parametrize("dataset", ["weibo", "opensubtitles"])
@pytest.mark.parametrize("table", [paper.table_main, paper.table_em, paper.table_ablation])
def test_the_papers_numbers_were_copied_correctly(table, dataset):
    for numbers in table(dataset).numbers.values():
        assert list(numbers) == PAPER_NUMBERS
        for order in "12":
            f, p, r = (numbers[f"bleu{order}_{which}"] for which in "fpr")
            assert f == pytest.approx(harmonic_mean(p, r), abs=0.02)


def test_directions_name_what_differs_from_the_paper():
    theirs = {"a": {"bleu2_f": 5.0, "dist2": 10.0}, "b": {"bleu2_f": 4.0, "dist2": 5.0}, "d": {"bleu2_f": 1.0}}
    summary, line = directions(OURS, theirs, "a", ("bleu2_f", "dist2"))
    assert "1 of 2 differences" in summary and line.endswith("b: Dist-2 (+30.00 here, -5.00 in the paper).")
    assert directions({}, theirs, "a", ("bleu2_f",)) == ["Nothing to compare with the paper was measured."]
