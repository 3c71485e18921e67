"""The parts behind `polyreply reproduce`: claims, the paper's numbers, renderers, profiles, the theorem's terms."""

from collections import Counter

import numpy as np
import pytest

from polyreply.analysis.bound import bound_curve, match_modes, posterior_error
from polyreply.analysis.decoder_profiles import log_odds, profile_decoders, typical_words
from polyreply.em.bound import hoeffding
from polyreply.errors import PolyReplyError
from polyreply.metrics.comparison import Comparison
from polyreply.metrics.scores import PAPER_NUMBERS, Scores, harmonic_mean
from polyreply.metrics.signature import Signature
from polyreply.metrics.systems import System
from polyreply.reproduce import paper, pictures
from polyreply.reproduce.claims import (
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
from polyreply.reproduce.experiments import (
    figure_assignment,
    figure_scaling,
    table_ablation,
    table_architecture,
    table_efficiency,
    table_em,
    table_main,
)
from polyreply.reproduce.experiments.figure_decoders import common_word
from polyreply.reproduce.experiments.table_cases import shorten
from polyreply.reproduce.experiments.table_efficiency import time_shares
from polyreply.reproduce.experiments.table_ours import choose
from polyreply.reproduce.pictures import Bars, Line, Panel, draw_bars, draw_lines, draw_shares
from polyreply.reproduce.render import latex, markdown
from polyreply.reproduce.report import html_report
from polyreply.reproduce.result import Findings, Number, Picture, Result, Row, Table, load_result
from polyreply.reproduce.score_table import Scored, starved
from polyreply.reproduce.variants import HARD, HARD_AUTHORS, of_authors
from polyreply.reproduce.workshop import Diverged

OURS = {"a": {"bleu2_f": 3.0, "dist2": 10.0}, "b": {"bleu2_f": 2.0, "dist2": 40.0}, "c": {"bleu2_f": 1.0}}
OURS |= {"e": {"bleu2_f": 2.996}}
OURS |= {"p": {"dist2": 0.0138}, "q": {"dist2": 0.0363}, "z": {"dist2": 1e-155}}


@pytest.mark.parametrize(
    "judge, holds, told",
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
def test_a_claim_holds_does_not_or_was_not_measured(judge, holds, told):
    [verdict] = check([Claim("claim", "Table 9", judge)], OURS)
    assert verdict.outcome == {True: "holds", False: "does not hold", None: "not measured"}[holds]
    assert (verdict.ours, verdict.paper) == (told, "")


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
        with pytest.raises(Diverged, match="use a lower learning rate"):
            choose(diverged)


def test_who_is_the_best_of_several_that_were_tried_pays_for_all_of_them():
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
    assert verdict.outcome == "holds" and "identical pairs" in verdict.ours and "turn it round" in verdict.paper
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
    assert verdict.outcome == "not measured" and verdict.ours.endswith("could turn it round")


@pytest.mark.parametrize(
    "found, outcome, told",
    [
        (Significance(0.2), "holds, not significantly", "p = 0.200"),
        (Significance(0.01), "holds", "p = 0.010"),
        (Significance(0.0), "holds", "p < 0.001"),
        (Significance(0.01, seeds_agree=False), "holds, not significantly", "p = 0.010; not with every seed"),
        (None, "holds", "2.00"),
    ],
)
def test_the_best_is_tested_against_the_best_of_the_others(found, outcome, told):
    asked = []

    def test(*names):
        asked.append(names)
        return found

    claims = [Claim("best", "Table 9", best(name, "bleu2_f", "abc")) for name in "ab"]
    first, second = check(claims, OURS, test=test)
    assert first.outcome == outcome and first.ours.endswith(told) and asked == [("a", "b", "bleu2_f")]
    assert second.outcome == "does not hold"


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
def test_the_papers_own_numbers_confirm_what_it_says_of_em_variants(dataset):
    published = paper.table_em(dataset)
    numbers = table_em.papers_numbers(published)
    assert {one.outcome for one in check(table_em.CLAIMS, numbers)} == {"holds"}
    assert HARD.name not in numbers and numbers[HARD_AUTHORS.name]["dist1"] == published.numbers["Hard-EM"]["dist1"]
    assert of_authors(published, [HARD]) == published and HARD.name in published.numbers


def test_every_system_of_the_paper_is_judged_by_what_the_paper_says_of_it():
    told = " ".join(claim.text for claim in (*table_em.CLAIMS, *table_main.CLAIMS, figure_scaling.SIMILAR))
    for text in ("Dist-1, Hard-EM excluded", "Pairwise-BLEU, Hard-EM excluded", "lowest BLEU2-F", "lowest Dist-2"):
        assert text in told
    for text in ("EqRandom variants perform similarly", "1.5× EqRandom-Fixed", "Dist-2 of those that do not sample"):
        assert text in told
    hard = {"EqHard-EM": {"relative_std": 300.0}}
    assert [one.outcome for one in check(figure_assignment.CLAIMS, hard)][-1] == "holds"
    similar = {"K = 5, EqHard-EM": {"bleu2_f": 8.0}, "K = 5, Beam search": {"bleu2_f": 7.5}}
    assert [check([figure_scaling.SIMILAR], numbers)[0].outcome for numbers in (similar, {})] == [
        "holds",
        "not measured",
    ]


@pytest.mark.parametrize("dataset", ["weibo", "opensubtitles"])
@pytest.mark.parametrize("table", [paper.table_main, paper.table_em, paper.table_ablation])
def test_the_papers_numbers_were_copied_well(table, dataset):
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


@pytest.fixture
def result(tmp_path):
    draw_bars([[Bars("tokens", [1.0, 2.0], "decoder")]], tmp_path / "a.png")
    table = Table(
        "A & B <i>",
        ["system", "BLEU2-F ↑"],
        [
            Row(["ours_1 | x", Number(7.25, 0.5, is_best=True, is_significant=True)]),
            Row(["paper, Weibo", Number(10.13)], is_paper=True),
            Row(["none", Number(None)]),
        ],
        ["a note"],
    )
    verdicts = check([Claim("a > b", "Table 2", over("a", "b", "bleu2_f"))], OURS)
    found = Findings([table], [Picture("a.png", "A <picture>")], verdicts, ["a remark"], {"x": 1.5})
    return Result(
        "table-em", "Title", found, {"data": "d", "seconds": 90.0, "machines": [{"cpu": "fast"}, {"cpu": "slow"}]}
    )


def test_a_result_is_kept_as_it_is(result, tmp_path):
    assert load_result(result.save(tmp_path)) == result
    (tmp_path / "result.json").write_text('{"schema_version": 9}')
    with pytest.raises(PolyReplyError, match="schema version 9"):
        load_result(tmp_path / "result.json")


def test_a_result_as_markdown_latex_and_html(result, tmp_path):
    text = markdown(result)
    assert r"| ours\_1 \| x | **7.25**\* ± 0.50 |" in text and "| *paper, Weibo* | *10.13* |" in text
    assert "| none | – |" in text and "**holds**" in text and "![A \\<picture\\>](a.png)" in text
    assert "time: 1.5 minutes for all its stages" in text and "machines: fast; slow" in text
    assert "What is claimed" in text and "the paper claims" not in text
    text = latex(result)
    assert (
        r"ours\_1 \textbar{} x & \textbf{7.25}$^*$$_{\pm 0.50}$ \\" in text and r"\textbf{A \& B \textless{}i" in text
    )
    page = html_report([(result, tmp_path), (result, tmp_path)])
    assert "A &amp; B &lt;i&gt;" in page and "<i>" not in page and '<span class="yes">holds</span>' in page
    assert '<b>7.25</b>*<span class="std"> ± 0.50</span>' in page and page.count("data:image/png;base64,") == 2
    assert "<nav>" in page and "<script" not in page


def test_texts_of_data_cannot_break_a_page():
    rows = [Row(["[eos]", "a\n\nb"]), Row(["* &amp;", "x"])]
    found = Findings([Table("Context: one\n\ntwo", ["[a]", "b"], rows, ["a\n\nnote"])])
    result = Result("table-cases", "A *title*\nof two", found, {"data": "a_b | c\n\n\\end"})
    text = latex(result)
    assert r"{}[eos] & a b \\" in text and r"{}[a] & b \\ \hline\hline" in text and r"{}* \&amp; & x \\" in text
    assert "one two" in text and "% A *title* of two\n% data: a_b | c \\end\n" in text and "a note" in text
    assert "\n\n" not in text.partition("\n\n")[2]
    text = markdown(result)
    assert r"| \* \&amp; | x |" in text and text.startswith("# A \\*title\\* of two\n")
    assert r"data: a\_b \| c \\end" in text


def test_pictures_are_the_same_for_the_same_data(tmp_path):
    lines = [Line("deviation", [8, 100], [0.2, 0.1], low=[0.1, 0.1], high=[0.3, 0.2]), Line("term", [8, 100], [1, 0.3])]
    for name in ("a.png", "b.png"):
        draw_lines([Panel("t", "x", "y", lines, log=True), Panel("t", "x", "y", lines, ticks=[8])], tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    draw_shares({"x": [[0.0, 1.0], [0.5, 0.5]]}, ["ask", "joke"], tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_log_odds_find_what_one_decoder_says_and_the_others_do_not():
    count_KV = np.array([[50.0, 20.0, 1.0], [50.0, 1.0, 20.0]])
    z_KV = log_odds(count_KV)
    assert abs(z_KV[0, 0]) < 0.5 and z_KV[0, 1] > 1.96 and z_KV[0, 2] < -1.96
    assert z_KV[0] == pytest.approx(-z_KV[1])
    # by hand: prior (50, 10.5, 10.5); own 30.5 of 142, the others' 11.5 of 142
    odds = np.log(30.5 / (142 - 30.5)) - np.log(11.5 / (142 - 11.5))
    assert z_KV[0, 1] == pytest.approx(odds / np.sqrt(1 / 30.5 + 1 / 11.5))
    found = typical_words([Counter(the=50, what=20, yes=1), Counter(the=50, what=1, yes=20)], 3)
    assert [[word for word, _ in words] for words in found] == [["what"], ["yes"]]
    assert typical_words([Counter()], 3) == [[]]


def test_the_word_that_is_counted_is_a_frequent_one_of_the_references():
    assert common_word(["You know what?", "I know.", "What, what, what!", "the the the", "know-how"]) == "know"
    assert common_word(["a b", "?"]) == "like"


def test_panels_of_a_column_are_as_high_as_the_highest_bar_of_all_rows(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(pictures, "save", lambda figure, path: shown.extend(axes.get_ylim() for axes in figure.axes))
    draw_bars([[Bars("beam", [20.0], "place")], [Bars("decoders", [50.0], "decoder")]], tmp_path / "a.png")
    assert [limits[1] >= 50 for limits in shown] == [True, True]


def test_a_profile_says_what_is_remarkable():
    said = [["what is that ?", "i like it very much , thank you", "ok ."]] * 30
    asking, liking, short = profile_decoders(said, word="like")
    assert asking.questions == 100 and liking.with_word == 100 and asking.with_word == 0 and short.length == 2
    assert asking.line.startswith("asks questions (100 %); says “") and "“what”" in asking.line
    assert liking.line.startswith("long replies") and short.line.startswith("short replies")
    assert asking.distinct == pytest.approx(100 / 30)
    [one, two] = profile_decoders([["我很喜欢", "是吗？"]] * 30, "characters", "喜欢")
    assert one.with_word == 100 and two.with_word == 0 and two.questions == 100 and "喜欢" in dict(one.words)


def test_decoders_are_matched_to_modes_and_the_bound_holds():
    random, modes = np.random.default_rng(0), ["x", "y", "z"]
    of_N = random.integers(0, 3, 400)
    posterior_NK = np.full((400, 3), 0.1)
    posterior_NK[np.arange(400), (of_N + 1) % 3] = 0.8
    names_N = [modes[mode] for mode in of_N]
    assert match_modes(posterior_NK, names_N, modes) == [2, 0, 1]
    error_K = posterior_error(posterior_NK, names_N, modes)
    share_K = np.bincount((of_N + 1) % 3) / 400
    assert error_K == pytest.approx(0.2 * share_K + 0.1 * (1 - share_K))
    curve = bound_curve(posterior_NK, draws=50, error_K=error_K)
    assert curve.sizes == [8, 16, 32, 64, 128, 256, 400] and max(curve.violations) == 0
    assert curve.hoeffding[0] == pytest.approx(hoeffding(8, 3)) and curve.deviation[0] > curve.deviation[-1]


def test_one_sided_posteriors_are_above_what_chance_explains():
    posterior_NK = np.tile([0.9, 0.05, 0.05], (500, 1))
    curve = bound_curve(posterior_NK, draws=5)
    assert curve.violations[-1] == 1 and curve.posterior_error is None


@pytest.mark.parametrize(
    "text, shown",
    [
        ("what what what what what", "what what what [repeat]"),
        ("no pe pe pe pe now", "no pe pe pe [repeat] now"),
        ("江江江江江", "江江江 [repeat]"),
        ("no, no, no!", "no, no, no!"),
        ("I seeeee", "I seeeee"),
        ("  ", "[eos]"),
    ],
)
def test_repetitions_are_shown_as_in_the_paper(text, shown):
    assert shorten(text) == shown


def test_the_course_of_usage_is_told_by_its_beginning_and_its_end():
    steps = [{"kind": "step", "usage_K": [0.5, 0.5]}] * 4 + [{"kind": "step", "usage_K": [0.6, 0.4]}] * 26
    steps += [{"kind": "validation"}] + [{"kind": "step", "usage_K": [0.1, 0.9]}] * 10
    assert figure_assignment.course(steps) == pytest.approx({"largest_at_first": 50, "largest_at_last": 90})
    assert figure_assignment.course(steps[:1]) == pytest.approx({"largest_at_first": 50, "largest_at_last": 50})


def test_time_shares_count_the_assignment_as_a_part_of_the_e_step():
    step = {"kind": "step", "e_seconds": 5.0, "assign_seconds": 1.0, "m_seconds": 4.0}
    found = time_shares([step, step, {"kind": "validation", "seconds": 9.0}])
    assert found == pytest.approx({"e_step": 60, "m_step": 40, "assignment": 10})


def test_starved_decoders_get_less_than_a_tenth_of_an_equal_share():
    assert starved([0.25] * 4) == 0 and starved([0.97, 0.01, 0.01, 0.01]) == 75
