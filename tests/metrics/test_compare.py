"""`polyreply compare`: seeds, marks, warnings, columns and files."""

import json
import random

import pytest

from polyreply.errors import PolyReplyError
from polyreply.metrics import evaluate
from polyreply.metrics.comparison import SHOWN, compare_systems
from polyreply.metrics.systems import System
from polyreply.metrics.table import RENDERERS, render

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


def test_every_format_shows_a_number_that_is_not_there():
    alone = evaluate([["only one"]])
    comparison = compare_systems([System("a", [alone]), System("b", [scores(0.5)])], samples=10)
    assert not comparison.differences
    for form in RENDERERS:
        assert "nan" not in render(comparison, form).lower()
    assert "| a | – |" in render(comparison, "markdown") and "a & -- &" in render(comparison, "latex")


def test_other_signatures_get_no_marks_but_a_warning():
    systems = [
        System("a", [scores(0.4)]),
        System("b", [scores(0.9, k=3)]),
        System("c", [scores(0.9, tokenizer="13a")]),
        System("d", [scores(0.8, 1)]),
    ]
    comparison = compare_systems(systems, samples=100)
    assert set(comparison.differences) == {"d"} and set(comparison.intervals) == set("abcd")
    assert comparison.best("bleu2_f") == {"d"} and comparison.significant("d", "bleu2_f")
    warnings = comparison.warnings
    assert len(warnings) == 2 and all(f"% warning: {one}" in render(comparison, "latex") for one in warnings)
    assert "the signatures of a and b differ (k: 4 and 3): their numbers are not comparable, no bold and" in warnings[0]
    assert "a and c differ (tok: wordpunct and 13a)" in warnings[1]
    other = compare_systems(systems, baseline="b", samples=10)
    assert not other.differences and not any(other.best(number) for number in SHOWN)


def test_other_contexts_are_not_paired():
    systems = [System("a", [scores(0.5)]), System("b", [scores(0.9, references=REFERENCES[::-1])])]
    comparison = compare_systems(systems, samples=10)
    assert not comparison.differences and set(comparison.intervals) == {"a", "b"}
    assert comparison.best("bleu2_f") == set()
    assert "a and b were not scored on the same contexts and references: no significance" in comparison.warnings[-1]


def test_seeds_that_differ_among_themselves_are_told():
    mixed = System("mixed", [scores(0.5), scores(0.5, k=3)])
    comparison = compare_systems([mixed, System("b", [scores(0.9)])], samples=10)
    assert "the signatures of the seeds of mixed differ (k: 4 and 3)" in comparison.warnings[0]
    assert not comparison.differences and mixed.signature.count(" and tok:") == 1


@pytest.mark.parametrize(
    "contexts, options, message",
    [
        (1, {}, "one context says nothing about others: nothing is tested"),
        (1, {"test": "permutation"}, "one context says nothing about others: nothing is tested"),
        (9, {}, "with 9 contexts the bootstrap finds differences that are none; say --test permutation"),
        (9, {"test": "permutation"}, None),
        (10, {}, None),
        (
            40,
            {"samples": 19},
            "with 19 resamples no p-value falls below 0.05: nothing can be marked; say --samples 1000",
        ),
        (40, {"samples": 20}, None),
        (
            40,
            {"samples": 1000, "alpha": 0.0005},
            "no p-value falls below 0.0005: nothing can be marked; say --samples 2001",
        ),
    ],
)
def test_a_test_that_can_say_little_is_announced(contexts, options, message):
    few = REFERENCES[:contexts]
    systems = [System(name, [scores(quality, references=few)]) for name, quality in (("a", 0.1), ("b", 1.0))]
    comparison = compare_systems(systems, **{"samples": 100, **options})
    assert [message in warning for warning in comparison.warnings] == [True] if message else not comparison.warnings
    if contexts == 1:
        assert not any(comparison.significant("b", number) for number in SHOWN)
        assert "* differs" not in render(comparison, "markdown")


def test_columns_can_be_chosen(folder, polyreply):
    chosen = ("compare", folder / "beam.json", folder / "good1.json", "--columns", "self_bleu, bleu2_f,length")
    done = polyreply(*chosen, "--format", "markdown")
    assert done.stdout.splitlines()[0] == "| System | Self-BLEU ↓ | BLEU2-F ↑ | Tokens per response |"
    terminal = polyreply(*chosen).stdout.splitlines()
    assert [line.split() for line in terminal[:2]] == [["Self-", "BLEU2"], ["system", "BLEU", "F", "Tokens"]]
    many = ",".join(name for name, value in scores(0.4, 9).numbers.items() if value is not None)
    wide = polyreply("compare", folder / "beam.json", "--columns", many, env={"COLUMNS": "80"})
    assert "…" not in wide.stdout and len(wide.stdout.splitlines()[2].split()) == 1 + len(many.split(","))
    wrong = polyreply("compare", folder / "beam.json", "--columns", "bleu2_f,blue")
    assert wrong.returncode == 2 and "columns: expected some of bleu1_f, bleu1_p," in wrong.stderr
    assert "repeating, found 'blue'; name some of these" in wrong.stderr


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


def test_warnings_stand_below_the_table_or_on_standard_error(folder, polyreply):
    scores(0.9, 1, "k3", k=3).save(folder / "k3.json")
    files = (folder / "beam.json", folder / "k3.json", "--samples", 50)
    warning = "warning: the signatures of beam and k3 differ (k: 4 and 3)"
    done = polyreply("compare", *files)
    assert warning in done.stdout and "warning" not in done.stderr and "signature (k3): tok:" in done.stdout
    done = polyreply("compare", *files, "--format", "csv")
    assert warning in done.stderr and done.stdout.splitlines()[0].endswith(",signature,warning")


def test_no_picture_is_left_behind_when_the_table_cannot_be_written(folder, polyreply):
    table = folder / f"{'x' * 300}.md"
    done = polyreply("compare", folder / "beam.json", "--output", table, "--plot", folder / "q.png")
    assert done.returncode == 2 and "File name too long" in done.stderr
    assert {path.name for path in folder.iterdir()} == {"beam.json", "good1.json", "good2.json"}


def test_table_and_picture_as_files(folder, polyreply):
    arguments = ("compare", folder / "beam.json", f"ours={folder}/good1.json,{folder}/good2.json", "--baseline", "beam")
    files = ("--output", folder / "table.tex", "--plot", folder / "q.png")
    done = polyreply(*arguments, *files)
    assert done.returncode == 0 and done.stdout == "", done.stderr
    assert "ours & " in (folder / "table.tex").read_text() and (folder / "q.png").read_bytes()[:4] == b"\x89PNG"
    again = polyreply(*arguments, *files)
    assert again.returncode == 2 and "--overwrite" in again.stderr
    assert json.loads(polyreply(*arguments, "--json").stdout)["baseline"] == "beam"


@pytest.mark.parametrize(
    "options, message",
    [
        (["--format", "html"], "format: expected one of terminal, markdown, latex, csv, json, found html"),
        (["--output", "table.txt"], "format: expected one of markdown, latex, csv, json, found table.txt"),
        (["--plot", "q.gif"], "q.gif: expected a name ending in .png, .svg, .pdf"),
        (["--output", "beam.json/x.md"], "beam.json, found a file"),
        (
            ["--output", "x.svg", "--plot", "./x.svg", "-f", "csv"],
            "--plot: expected another file than --output, found x.svg",
        ),
    ],
)
def test_a_mistake_is_one_clear_line(folder, polyreply, options, message):
    done = polyreply("compare", folder / "beam.json", *options, cwd=folder)
    [line] = done.stderr.strip().splitlines()
    assert done.returncode == 2 and line.startswith("error: ") and message in line
