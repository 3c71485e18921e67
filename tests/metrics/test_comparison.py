"""`compare`: seeds, marks, warnings, names and tables in every format."""

import csv
import io
import json
import re

import pytest
from scored import REFERENCES, scores

from polyreply.errors import PolyReplyError
from polyreply.metrics import evaluate
from polyreply.metrics.comparison import SHOWN, System, compare, gather_systems
from polyreply.tables import FORMATS


@pytest.fixture(scope="module")
def found():
    good = [scores(0.9, seed, "good") for seed in (1, 2, 3)]
    return compare(
        System("beam_1 & co", [scores(0.4, 9)]), System("good", good), System("same", [scores(0.4, 8)]), samples=300
    )


def test_better_is_bold_and_significant(found):
    assert found.best("bleu2_f") == {"good"} and found.significant("good", "bleu2_f")
    assert not found.significant("same", "bleu2_f") and not found.significant("beam_1 & co", "bleu2_f")
    assert found.best("pairwise_bleu") == {min(found.systems, key=lambda one: one.mean("pairwise_bleu")).name}
    low, high = found.intervals["good"]["bleu2_f"]
    assert low < found.systems[1].mean("bleu2_f") < high


def test_seeds_give_mean_and_deviation(found):
    values = [one["bleu1_p"] for one in found.systems[1].seeds]
    mean = sum(values) / 3
    assert found.systems[1].mean("bleu1_p") == pytest.approx(mean)
    assert found.systems[1].std("bleu1_p") == pytest.approx((sum((v - mean) ** 2 for v in values) / 2) ** 0.5)
    assert found.systems[0].std("bleu1_p") is None


def test_equal_as_shown_is_equally_good():
    one = scores(0.4)
    twin = System("b", [one])
    comparison = compare(System("a", [one]), twin, samples=10)
    assert comparison.best("bleu1_f") == {"a", "b"}
    assert compare(twin, samples=10).best("bleu1_f") == set()


def test_every_format_shows_a_missing_score():
    alone = evaluate([["only one"]])
    comparison = compare(System("a", [alone]), System("b", [scores(0.5)]), samples=10)
    assert not comparison.differences
    for form in FORMATS:
        assert "nan" not in comparison.render(form).lower()
    assert "| a | – |" in comparison.render("markdown") and "a & -- &" in comparison.render("latex")


def test_other_signatures_get_no_marks_but_a_warning():
    systems = [
        System("a", [scores(0.4)]),
        System("b", [scores(0.9, k=3)]),
        System("c", [scores(0.9, tokenizer="13a")]),
        System("d", [scores(0.8, 1)]),
    ]
    comparison = compare(*systems, samples=100)
    assert set(comparison.differences) == {"d"} and set(comparison.intervals) == set("abcd")
    assert comparison.best("bleu2_f") == {"d"} and comparison.significant("d", "bleu2_f")
    warnings = comparison.warnings
    assert len(warnings) == 2 and all(f"% warning: {one}" in comparison.render("latex") for one in warnings)
    assert "a and b differ (k: 4 and 3)" in warnings[0]
    assert "a and c differ (tok: wordpunct and 13a)" in warnings[1]
    other = compare(*systems, baseline="b", samples=10)
    assert not other.differences and not any(other.best(number) for number in SHOWN)


def test_other_contexts_are_not_paired():
    systems = [System("a", [scores(0.5)]), System("b", [scores(0.9, references=REFERENCES[::-1])])]
    comparison = compare(*systems, samples=10)
    assert not comparison.differences and set(comparison.intervals) == {"a", "b"}
    assert comparison.best("bleu2_f") == set()
    assert "a and b were not scored on the same contexts" in comparison.warnings[-1]


def test_seeds_that_differ_among_themselves_are_reported():
    mixed = System("mixed", [scores(0.5), scores(0.5, k=3)])
    comparison = compare(mixed, System("b", [scores(0.9)]), samples=10)
    assert "the seeds of mixed differ (k: 4 and 3)" in comparison.warnings[0]
    assert not comparison.differences and mixed.signature.count(" and tok:") == 1


@pytest.mark.parametrize(
    "contexts, options, message",
    [
        (1, {}, "single context"),
        (1, {"test": "permutation"}, "single context"),
        (9, {}, "9 contexts.*--test permutation"),
        (9, {"test": "permutation"}, None),
        (10, {}, None),
        (40, {"samples": 19}, "19 resamples.*below 0.05.*--samples 1000"),
        (40, {"samples": 20}, None),
        (40, {"samples": 1000, "alpha": 0.0005}, "below 0.0005.*--samples 2001"),
    ],
)
def test_a_weak_test_is_announced(contexts, options, message):
    few = REFERENCES[:contexts]
    systems = [System(name, [scores(quality, references=few)]) for name, quality in (("a", 0.1), ("b", 1.0))]
    comparison = compare(*systems, **{"samples": 100, **options})
    assert len(comparison.warnings) == (message is not None)
    assert all(re.search(message, warning) for warning in comparison.warnings)
    if contexts == 1:
        assert not any(comparison.significant("b", number) for number in SHOWN)
        assert "* differs" not in comparison.render("markdown")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"baseline": "none"}, "baseline: expected one of a, found 'none'"),
        ({"test": "t-test"}, "test: expected bootstrap or permutation, found 't-test'"),
        ({"alpha": 5.0}, "alpha: expected a level between 0 and 1, found 5.0"),
    ],
)
def test_wrong_options_are_answered_with_the_right_ones(options, message):
    with pytest.raises(PolyReplyError, match=message):
        compare(System("a", [scores(0.5)]), **options)


def test_scores_files_and_mappings_are_compared_alike(tmp_path):
    one, two, beam = scores(0.9, 1, "ours"), scores(0.9, 2, "ours"), scores(0.4, 9)
    beam.save(tmp_path / "beam.json")
    ways = [
        compare(tmp_path / "beam.json", one, two, samples=50),
        compare({"beam": beam, "ours": [one, two]}, samples=50),
        compare({"beam": tmp_path / "beam.json"}, {"ours": (one, two)}, samples=50),
    ]
    for comparison in ways:
        assert [(system.name, len(system.seeds)) for system in comparison.systems] == [("beam", 1), ("ours", 2)]
        assert comparison.significant("ours", "bleu2_f") and "BLEU2" in str(comparison)
    assert [system.name for system in compare(beam, one, samples=5).systems] == ["system 1", "ours"]
    with pytest.raises(PolyReplyError, match="at least one system"):
        compare()


def test_scores_are_shown_with_their_signature():
    one = scores(0.5)
    lines = str(one).splitlines()
    assert len(lines) == 12 and lines[-1] == str(one.signature) and f"{one['bleu2_f']:.2f}" in lines[4]


# --- names of systems


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes score files given as `path` or `path:name`, in a folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    content = scores(0.5, references=[["a b c"]])

    def write(*files):
        for file in files:
            path, _, name = file.partition(":")
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            type(content)(**{**vars(content), "system": name}).save(tmp_path / path)

    return write


@pytest.mark.parametrize(
    "files, arguments, names",
    [
        (["beam.json", "good.json.gz"], None, {"beam": 1, "good": 1}),
        (["r1/scores.json", "r2/scores.json"], None, {"r1": 1, "r2": 1}),
        (["r1/scores.json", "r2/scores.json", "b.json"], None, {"r1/scores": 1, "r2/scores": 1, "b": 1}),
        (["x/r/scores.json", "y/r/scores.json"], None, {"x/r": 1, "y/r": 1}),
        (["x/r/s.json", "y/r/s.json", "s.json", "t.json"], None, {"x/r/s": 1, "y/r/s": 1, "{here}/s": 1, "t": 1}),
        (["a.json", "a.json.gz"], None, {"a.json": 1, "a.json.gz": 1}),
        (["1.json:ours", "r/ours.json"], None, {"ours": 1, "r/ours": 1}),
        (["1.json:ours", "2.json:ours", "r1/3.json:ours"], None, {"ours": 3}),
        (["1.json:a", "2.json:b", "3.json"], ["x=1.json,2.json", "x=3.json"], {"x": 3}),
        (["r1/s.json", "r2/s.json"], ["x=r1/s.json,r2/s.json"], {"x": 2}),
        (["lr=3,k=4.json"], None, {"lr=3,k=4": 1}),
        (["lr=3,k=4.json"], ["x=lr=3,k=4.json"], {"x": 1}),
        (["1.json"], ["two\n words\t=1.json"], {"two words": 1}),
        (["1.json:a\r\nb\x1b", "2.json: "], None, {"a b�": 1, "2": 1}),
    ],
)
def test_names_of_systems(tmp_path, write, files, arguments, names):
    write(*files)
    found = gather_systems(arguments or [file.partition(":")[0] for file in files])
    assert {one.name: len(one.seeds) for one in found} == {
        name.replace("{here}", tmp_path.name): count for name, count in names.items()
    }


def test_a_file_given_twice_or_missing(write):
    write("a.json")
    with pytest.raises(PolyReplyError, match="expected each score file once"):
        gather_systems(["a.json", "x=a.json"])
    with pytest.raises(PolyReplyError, match=r"none\.json: there is no such file"):
        gather_systems(["x=none.json"])


# --- tables


ODD = r"a*b_c <i> [x](y) \ `z` | 100% $#&~^{ " + '"q"'


def test_markdown(found):
    lines = found.render("markdown").splitlines()
    assert lines[0] == (
        "| System | BLEU1-F ↑ | BLEU1-P ↑ | BLEU1-R ↑ | BLEU2-F ↑ | BLEU2-P ↑ | BLEU2-R ↑ | Dist-1 ↑ | Dist-2 ↑ "
        "| Pairwise-BLEU ↓ | Identical pairs ↓ |"
    )
    [row] = [line for line in lines if line.startswith("| good ")]
    assert re.match(r"\| good \| \*\*\d+\.\d\d\*\*\\\* ± \d\.\d\d \|", row)
    assert any(
        line.startswith(r"\* differs from beam\_1 \& co: paired bootstrap over contexts, 300 ") for line in lines
    )
    assert any("signature tok:wordpunct" in line for line in lines)


def test_latex_has_the_papers_layout(found):
    text = found.render("latex")
    assert r"\begin{tabular}{|l|rrr|rrr|rr|r|r|}" in text and r"\multicolumn{3}{c|}{BLEU2$^\uparrow$}" in text
    assert r"beam\_1 \& co & " in text and re.search(
        r"good & \\textbf\{\d+\.\d\d\}\$\^\*\$\$_\{\\pm \d\.\d\d\}\$", text
    )
    assert r" \\ \cline{2-4} \cline{5-7} \cline{8-9}" in text


def test_csv(found):
    rows = list(csv.DictReader(io.StringIO(found.render("csv"))))
    assert [row["system"] for row in rows] == ["beam_1 & co", "good", "same"]
    assert float(rows[1]["bleu2_f"]) == found.systems[1].mean("bleu2_f")
    assert rows[0]["bleu2_f_p_value"] == "" and float(rows[1]["bleu2_f_p_value"]) < 0.05
    assert rows[1]["seeds"] == "3" and rows[1]["signature"] == next(iter(found.signatures))


def test_json(found):
    tree = json.loads(found.render("json"))
    assert tree == json.loads(json.dumps(found.tree()))
    good = tree["systems"][1]["numbers"]["bleu2_f"]
    assert good["significant"] and good["best"] and good["difference"] > 0 and good["low"] < good["mean"] < good["high"]


@pytest.fixture(scope="module")
def odd():
    """Names with every sign that means something somewhere, several seeds, several signatures."""
    one, two = scores(0.4, 9), scores(0.9, 1)
    systems = [System(ODD, [one]), System("plain", [two, scores(0.9, 2)]), System("other", [scores(0.5, k=3)])]
    return compare(*systems, samples=100)


def columns_of_row(row):
    """How many columns of a tabular a row fills."""
    cells = re.split(r"(?<!\\)&", row)
    spans = [re.match(r"\s*\\multicolumn\{(\d+)\}", cell) for cell in cells]
    return sum(int(span[1]) if span else 1 for span in spans)


@pytest.mark.parametrize("columns", [(), ("bleu2_f",), ("self_bleu", "dist1", "inter_dist2", "length", "bleu1_p")])
def test_latex_is_well_formed(odd, columns):
    shown = compare(*odd.systems, samples=100, columns=columns)
    lines = [line for line in shown.render("latex").splitlines() if not line.startswith("%")]
    text = "\n".join(lines).replace(r"\\", "")
    bare = re.sub(r"\\[{}&%$#_]", "", text)
    depth = 0
    for char in bare:
        depth += (char == "{") - (char == "}")
        assert depth >= 0
    assert depth == 0 and bare.count("$") % 2 == 0 and not re.search(r"[~^](?!\\|\*)", bare)
    [spec] = re.findall(r"\\begin\{tabular\}\{(.*)\}$", text, re.MULTILINE)
    wanted = 1 + len(columns or SHOWN)
    rows = [line.partition(r"\\")[0] for line in lines if r"\\" in line]
    assert spec.replace("|", "") == "l" + "r" * (wanted - 1)
    assert [columns_of_row(row) for row in rows] == [wanted] * (2 + len(odd.systems))


def test_latex_names_the_packages_it_needs(odd):
    kernel = (
        "begin end hline cline multicolumn textbf textbackslash textasciitilde textasciicircum textless textgreater"
    )
    known = {*kernel.split(), *"textbar par smallskip footnotesize pm uparrow downarrow".split()}
    text = odd.render("latex")
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%")).replace(r"\\", "")
    assert set(re.findall(r"\\([a-zA-Z]+)", body)) - known == {"multirow"}
    assert text.startswith("% needs \\usepackage{multirow}\n") and text.isascii()
    chinese = compare(System("中文", odd.systems[0].seeds), samples=10).render("latex")
    assert "use XeLaTeX or LuaLaTeX" in chinese


def test_the_legend_of_the_star_is_visible_in_latex(odd):
    [line] = [line for line in odd.render("latex").splitlines() if "differs from" in line]
    assert line.startswith(r"\par\smallskip{\footnotesize $^*$ differs from a*b\_c") and r"p \textless{} 0.05" in line


def test_markdown_shows_any_name_as_it_is(odd):
    lines = odd.render("markdown").splitlines()
    escaped = r"a\*b\_c \<i\> \[x\](y) \\ \`z\` \| 100% \$\#\&\~^\{ " + '"q"'
    assert lines[2].startswith(f"| {escaped} | ")
    assert all(len(re.findall(r"(?<!\\)\|", line)) == len(SHOWN) + 2 for line in lines[:5])
    assert any(line.startswith(rf"\* differs from {escaped}: paired") for line in lines)


def test_each_signature_is_shown_with_its_systems(odd):
    four, three = (str(system.seeds[0].signature) for system in (odd.systems[1], odd.systems[2]))
    text = odd.render("latex")
    assert f"% signature ({ODD}, plain): {four}\n" in text and f"% signature (other): {three}\n" in text
    tree = odd.tree()
    assert [one["signature"] for one in tree["systems"]] == [four, four, three]
    assert [one["comparable"] for one in tree["systems"]] == [True, True, False]
    rows = list(csv.DictReader(io.StringIO(odd.render("csv"))))
    assert [row["signature"] for row in rows] == [four, four, three]
    assert [row["warning"] for row in rows] == ["", "", odd.warnings[0]]


def test_programs_get_all_scores(found):
    [row] = [row for row in csv.DictReader(io.StringIO(found.render("csv"))) if row["system"] == "good"]
    tree = found.tree()["systems"][1]["numbers"]
    assert list(tree) == list(found.systems[1].seeds[0].numbers)
    for number in ("bleu2_f", "self_bleu", "length", "bleu4_p"):
        assert tree[number]["low"] <= tree[number]["mean"] <= tree[number]["high"]
        assert tree[number]["difference_low"] <= tree[number]["difference"] <= tree[number]["difference_high"]
        for part in ("std", "low", "high", "difference", "difference_low", "difference_high", "p_value"):
            assert float(row[f"{number}_{part}"]) == tree[number][part]
    assert tree["inter_dist1"]["mean"] is not None and tree["inter_dist1"]["p_value"] is None
    chosen = compare(*found.systems, samples=10, columns=["length"])
    assert list(chosen.tree()["systems"][0]["numbers"]) == ["length"]
    assert "bleu2_f" not in chosen.render("csv")


def test_a_score_that_only_describes_is_never_the_best(found):
    assert found.best("length") == found.best("questions") == set() and found.best("self_bleu")
