"""`polyreply compare`: seeds, marks, every format, warnings and the plot."""

import csv
import io
import json
import random
import re

import pytest

from polyreply.errors import PolyReplyError
from polyreply.metrics import evaluate
from polyreply.metrics.comparison import SHOWN, Comparison, System, compare_systems, read_systems
from polyreply.metrics.table import RENDERERS, as_tree, render

WORDS = "the cat sat on a mat and saw that old dog near its red house".split()


def texts(rng, k, length=8):
    return [" ".join(rng.choices(WORDS, k=length)) for _ in range(k)]


REFERENCES = [texts(random.Random(n), 3) for n in range(40)]


def scores(quality, seed=0, name="", k=4, references=REFERENCES, **options):
    """A system whose responses repeat a reference with some probability for each of its words."""
    rng = random.Random(seed)

    def reply(gold):
        return " ".join(w if rng.random() < quality else rng.choice(WORDS) for w in rng.choice(gold).split())

    return evaluate([[reply(gold) for _ in range(k)] for gold in references], references, system=name, **options)


@pytest.fixture(scope="module")
def found():
    good = [scores(0.9, seed, "good") for seed in (1, 2, 3)]
    return compare_systems(
        [System("beam_1 & co", [scores(0.4, 9)]), System("good", good), System("same", [scores(0.4, 8)])], samples=300
    )


@pytest.fixture
def folder(tmp_path):
    for name, quality, seed in (("beam", 0.4, 9), ("good1", 0.9, 1), ("good2", 0.9, 2)):
        scores(quality, seed, name.rstrip("12")).save(tmp_path / f"{name}.json")
    return tmp_path


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
    comparison = compare_systems([System("a", [one]), twin], samples=10)
    assert comparison.best("bleu1_f") == {"a", "b"}
    assert compare_systems([twin], samples=10).best("bleu1_f") == set()


def test_markdown(found):
    lines = render(found, "markdown").splitlines()
    assert lines[0] == (
        "| System | BLEU1-F ↑ | BLEU1-P ↑ | BLEU1-R ↑ | BLEU2-F ↑ | BLEU2-P ↑ | BLEU2-R ↑ | Dist-1 ↑ | Dist-2 ↑ "
        "| Pairwise-BLEU ↓ | Identical ↓ |"
    )
    [row] = [line for line in lines if line.startswith("| good ")]
    assert re.match(r"\| good \| \*\*\d+\.\d\d\*\*\\\* ± \d\.\d\d \|", row)
    assert any(line.startswith("* differs from beam_1 & co: paired bootstrap over contexts, 300 ") for line in lines)
    assert any("signature tok:wordpunct" in line for line in lines)


def test_latex_has_the_papers_layout(found):
    text = render(found, "latex")
    assert r"\begin{tabular}{|l|rrr|rrr|rr|r|r|}" in text and r"\multicolumn{3}{c|}{BLEU2$^\uparrow$}" in text
    assert r"beam\_1 \& co & " in text and re.search(
        r"good & \\textbf\{\d+\.\d\d\}\$\^\*\$\$_\{\\pm \d\.\d\d\}\$", text
    )
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert [line.replace(r"\&", "").count("&") for line in body] == [len(SHOWN)] * 3


def test_csv(found):
    rows = list(csv.DictReader(io.StringIO(render(found, "csv"))))
    assert [row["system"] for row in rows] == ["beam_1 & co", "good", "same"]
    assert float(rows[1]["bleu2_f"]) == found.systems[1].mean("bleu2_f")
    assert rows[0]["bleu2_f_p_value"] == "" and float(rows[1]["bleu2_f_p_value"]) < 0.05
    assert rows[1]["seeds"] == "3" and rows[1]["signature"] == found.signatures[0]


def test_json(found):
    tree = json.loads(render(found, "json"))
    assert tree == json.loads(json.dumps(as_tree(found)))
    good = tree["systems"][1]["numbers"]["bleu2_f"]
    assert good["significant"] and good["best"] and good["difference"] > 0 and good["low"] < good["mean"] < good["high"]
    assert "bleu4_p" in tree["systems"][1]["others"]


def test_every_format_shows_a_number_that_is_not_there():
    alone = evaluate([["only one"]])
    comparison = compare_systems([System("a", [alone]), System("b", [scores(0.5)])], samples=10)
    assert not comparison.differences
    for form in RENDERERS:
        assert "nan" not in render(comparison, form).lower()
    assert "| a | – |" in render(comparison, "markdown") and "a & -- &" in render(comparison, "latex")


def test_other_signatures_are_not_compared_without_a_warning():
    systems = [System("a", [scores(0.5)]), System("b", [scores(0.5, k=3)]), System("c", [scores(0.5, tokenizer="13a")])]
    comparison = compare_systems(systems, samples=10)
    warnings = comparison.warnings
    assert len(warnings) == 2 and all(f"% warning: {one}" in render(comparison, "latex") for one in warnings)
    assert "the signatures of a and b differ (k: 4 and 3): their numbers are not comparable" in warnings[0]
    assert "a and c differ (tok: wordpunct and 13a)" in warnings[1]


def test_other_contexts_are_not_paired():
    systems = [System("a", [scores(0.5)]), System("b", [scores(0.9, references=REFERENCES[::-1])])]
    comparison = compare_systems(systems, samples=10)
    assert not comparison.differences and set(comparison.intervals) == {"a", "b"}
    assert "not scored on the same contexts and references: no significance is computed" in comparison.warnings[-1]


def test_which_files_are_seeds_of_one_system(folder):
    paths = [str(folder / f"{name}.json") for name in ("beam", "good1", "good2")]
    assert [(one.name, len(one.seeds)) for one in read_systems(paths)] == [("beam", 1), ("good", 2)]
    named = read_systems([f"x={paths[0]}", f"y={paths[1]},{paths[2]}"])
    assert [(one.name, len(one.seeds)) for one in named] == [("x", 1), ("y", 2)]
    assert [len(one.seeds) for one in read_systems([f"x={paths[0]}", f"x={paths[1]}"])] == [2]
    odd = folder / "lr=3,k=4.json"
    odd.write_bytes((folder / "beam.json").read_bytes())
    assert [read_systems([argument])[0].name for argument in (str(odd), f"x={odd}")] == ["beam", "x"]
    with pytest.raises(PolyReplyError, match="expected each score file once"):
        read_systems([paths[0], f"x={paths[0]}"])
    with pytest.raises(PolyReplyError, match=r"none\.json: there is no such file"):
        read_systems(["x=none.json"])


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
        compare_systems([System("a", [scores(0.5)])], **options)


def test_the_table_fits_a_terminal(folder, polyreply):
    files = [folder / f"{name}.json" for name in ("beam", "good1", "good2")]
    done = polyreply("compare", *files, "--test", "permutation", "--samples", 200, env={"COLUMNS": "80"})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(len(line) for line in lines if not line.startswith(("*", "signature"))) <= 80
    assert lines[1].split() == "system F P R F P R Dist-1 Dist-2 wise tical".split()
    [good] = [line.split() for line in lines if line.startswith("good")]
    assert len(good) == 11 and good[4].endswith("*")
    assert "mean ± standard deviation over seeds: good 2" in done.stdout
    assert "paired permutation over contexts, 200 resamples" in done.stdout


def test_table_and_picture_as_files(folder, polyreply):
    arguments = ("compare", folder / "beam.json", f"ours={folder}/good1.json,{folder}/good2.json", "--baseline", "beam")
    files = ("--output", folder / "table.tex", "--plot", folder / "q.png")
    done = polyreply(*arguments, *files)
    assert done.returncode == 0 and done.stdout == "", done.stderr
    assert "ours & " in (folder / "table.tex").read_text() and (folder / "q.png").read_bytes()[:4] == b"\x89PNG"
    again = polyreply(*arguments, *files)
    assert again.returncode == 2 and "say --overwrite" in again.stderr
    assert json.loads(polyreply(*arguments, "--json").stdout)["baseline"] == "beam"


@pytest.mark.parametrize(
    "options, message",
    [
        (["--format", "html"], "format: expected one of terminal, markdown, latex, csv, json, found html"),
        (["--output", "table.txt"], "format: expected one of markdown, latex, csv, json, found table.txt"),
        (["--plot", "q.gif"], "q.gif: expected a name ending in .png, .svg, .pdf"),
    ],
)
def test_a_mistake_is_one_clear_line(folder, polyreply, options, message):
    done = polyreply("compare", folder / "beam.json", *options, cwd=folder)
    [line] = done.stderr.strip().splitlines()
    assert done.returncode == 2 and line.startswith("error: ") and message in line


def test_names_in_the_picture_do_not_overlap(monkeypatch, tmp_path):
    """Systems close together: every name is written, and no two of them, and no name and point, cover each other."""
    from matplotlib.figure import Figure

    from polyreply.metrics import plot

    one = scores(0.5)
    rng = random.Random(3)

    def near(n):
        numbers = {
            "bleu2_f": 8 + rng.gauss(0, 1.2),
            "pairwise_bleu": 20 + rng.gauss(0, 4),
            "dist2": 50 + rng.gauss(0, 4),
        }
        return System(f"system number {n}", [type(one)({**one.numbers, **numbers}, {}, one.signature, 40)])

    drawn = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *args, **options: (drawn.append(self), save(self, *args, **options))
    )
    plot.plot(Comparison([near(n) for n in range(12)], "", "bootstrap", 1, 0, 0.05), tmp_path / "q.png")
    [figure] = drawn
    figure.set_dpi(100)
    renderer = figure.canvas.get_renderer()
    for axes in figure.axes:
        boxes = [plot._text_box(text, renderer).padded(-2) for text in axes.texts if "system" in text.get_text()]
        assert len(boxes) == 12
        assert not any(a.overlaps(b) for n, a in enumerate(boxes) for b in boxes[:n])


def test_a_plot_needs_quality_and_diversity(tmp_path):
    from polyreply.metrics.plot import plot

    with pytest.raises(PolyReplyError, match="a plot needs BLEU2-F"):
        plot(compare_systems([System("a", [evaluate([["a b", "c"]])])], samples=10), tmp_path / "q.png")
    assert not list(tmp_path.iterdir())
