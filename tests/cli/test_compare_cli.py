"""`polyreply compare`: columns, formats, files and mistakes."""

import json

import pytest
from scored import scores


@pytest.fixture
def folder(tmp_path):
    for name, quality, seed in (("beam", 0.4, 9), ("good1", 0.9, 1), ("good2", 0.9, 2)):
        scores(quality, seed, name.rstrip("12")).save(tmp_path / f"{name}.json")
    return tmp_path


def test_columns_can_be_chosen(folder, polyreply_here):
    chosen = ("compare", folder / "beam.json", folder / "good1.json", "--columns", "self_bleu, bleu2_f,length")
    done = polyreply_here(*chosen, "--format", "markdown")
    assert done.stdout.splitlines()[0] == "| System | Self-BLEU ↓ | BLEU2-F ↑ | Tokens per response |"
    terminal = polyreply_here(*chosen).stdout.splitlines()
    assert [line.split() for line in terminal[:2]] == [["Self-", "BLEU2"], ["System", "BLEU", "F", "Tokens"]]
    many = ",".join(name for name, value in scores(0.4, 9).numbers.items() if value is not None)
    wide = polyreply_here("compare", folder / "beam.json", "--columns", many, env={"COLUMNS": "80"})
    assert "…" not in wide.stdout and len(wide.stdout.splitlines()[2].split()) == 1 + len(many.split(","))
    wrong = polyreply_here("compare", folder / "beam.json", "--columns", "bleu2_f,blue")
    assert wrong.returncode == 2 and "columns: expected some of bleu1_f, bleu1_p," in wrong.stderr
    assert "repeating, found 'blue'" in wrong.stderr


def test_the_table_fits_a_terminal(folder, polyreply_here):
    files = [folder / f"{name}.json" for name in ("beam", "good1", "good2")]
    done = polyreply_here("compare", *files, "--test", "permutation", "--samples", 200, env={"COLUMNS": "80"})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(len(line) for line in lines if not line.startswith(("*", "signature"))) <= 80
    assert lines[1].split() == "System F P R F P R Dist-1 Dist-2 wise tical".split()
    [good] = [line.split() for line in lines if line.startswith("good")]
    assert len(good) == 11 and good[4].endswith("*")
    assert "mean ± standard deviation over seeds: good 2" in done.stdout
    assert "paired permutation over contexts, 200 resamples" in done.stdout


def test_warnings_are_below_the_table_or_on_standard_error(folder, polyreply_here):
    scores(0.9, 1, "k3", k=3).save(folder / "k3.json")
    files = (folder / "beam.json", folder / "k3.json", "--samples", 50)
    warning = "warning: the signatures of beam and k3 differ (k: 4 and 3)"
    done = polyreply_here("compare", *files)
    assert warning in done.stdout and "warning" not in done.stderr and "signature (k3): tok:" in done.stdout
    done = polyreply_here("compare", *files, "--format", "csv")
    assert warning in done.stderr and done.stdout.splitlines()[0].endswith(",signature,warning")


def test_no_plot_is_left_behind_when_the_table_cannot_be_written(folder, polyreply_here):
    table = folder / f"{'x' * 300}.md"
    done = polyreply_here("compare", folder / "beam.json", "--output", table, "--plot", folder / "q.png")
    assert done.returncode == 2 and "File name too long" in done.stderr
    assert {path.name for path in folder.iterdir()} == {"beam.json", "good1.json", "good2.json"}


def test_table_and_plot_as_files(folder, polyreply, polyreply_here):
    arguments = ("compare", folder / "beam.json", f"ours={folder}/good1.json,{folder}/good2.json", "--baseline", "beam")
    files = ("--output", folder / "table.tex", "--plot", folder / "q.png")
    done = polyreply(*arguments, *files)
    assert done.returncode == 0 and done.stdout == "", done.stderr
    assert "ours & " in (folder / "table.tex").read_text() and (folder / "q.png").read_bytes()[:4] == b"\x89PNG"
    again = polyreply_here(*arguments, *files)
    assert again.returncode == 2 and "--overwrite" in again.stderr
    assert json.loads(polyreply_here(*arguments, "--json").stdout)["baseline"] == "beam"


@pytest.mark.parametrize(
    "options, message",
    [
        (["--format", "word"], "format: expected one of terminal, markdown, latex, html, csv, json, found word"),
        (["--output", "table.txt"], "format: expected one of markdown, latex, html, csv, json, found table.txt"),
        (["--plot", "q.gif"], "q.gif: expected a name ending in .png, .svg, .pdf"),
        (["--output", "beam.json/x.md"], "beam.json, found a file"),
        (
            ["--output", "x.svg", "--plot", "./x.svg", "-f", "csv"],
            "--plot: expected another file than --output, found x.svg",
        ),
    ],
)
def test_a_mistake_is_one_clear_line(folder, polyreply_here, options, message):
    done = polyreply_here("compare", folder / "beam.json", *options, cwd=folder)
    [line] = done.stderr.strip().splitlines()
    assert done.returncode == 2 and line.startswith("error: ") and message in line
