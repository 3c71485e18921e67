"""`polyreply evaluate` as a user meets it."""

import json

import pytest

from polyreply.metrics import PAPER_NUMBERS, evaluate, load_scores

CONTEXTS = ["how are you?", "where to?", "how are you?"]
RESPONSES = [["fine thanks", "not so well", "fine thanks"], ["home", "to the sea", "home, I think"], ["", "ok", "ok"]]
REFERENCES = [["fine, thanks", "could be worse"], ["to the sea"], ["ok", "well", "so so"]]


@pytest.fixture
def files(tmp_path, write_rows):
    def rows(texts):
        return [{"context": context, "responses": list(few)} for context, few in zip(CONTEXTS, texts, strict=True)]

    return write_rows(tmp_path / "said.jsonl", rows(RESPONSES)), write_rows(
        tmp_path / "gold.jsonl.gz", rows(REFERENCES)
    )


def test_a_table_for_people_and_a_file_for_compare(tmp_path, polyreply, polyreply_here, files):
    said, gold = files
    out = tmp_path / "new" / "scores.json"
    done = polyreply("evaluate", said, "--references", gold, "--output", out, "--name", "ours")
    assert done.returncode == 0, done.stderr
    expected = evaluate(RESPONSES, REFERENCES, system="ours")
    for label, number in (("BLEU2-F", "bleu2_f"), ("Pairwise-BLEU", "pairwise_bleu"), ("Identical pairs", "identical")):
        [line] = [line for line in done.stdout.splitlines() if line.startswith(f"{label} ")]
        assert f"{expected[number]:.2f}" in line
    assert str(expected.signature) in done.stdout and f"written to {out}" in done.stdout
    assert "note: 22.2 % of the pairs of responses are identical" in done.stdout
    scores = load_scores(out)
    assert scores.numbers == pytest.approx(expected.numbers) and scores.system == "ours"
    again = polyreply_here("evaluate", said, "-r", gold, "-o", out)
    assert again.returncode == 2 and "--overwrite" in again.stderr
    assert polyreply_here("evaluate", said, "-r", gold, "-o", out, "--overwrite").returncode == 0
    assert load_scores(out).system == ""


def test_json_for_programs(polyreply_here, files):
    said, gold = files
    done = polyreply_here("evaluate", said, "-r", gold, "--json", "--tokenizer", "characters", "--case", "mixed")
    tree = json.loads(done.stdout)
    expected = evaluate(RESPONSES, REFERENCES, tokenizer="characters", case="mixed")
    assert {name: tree[name] for name in PAPER_NUMBERS} == pytest.approx({n: expected[n] for n in PAPER_NUMBERS})
    assert tree["signature"].startswith("tok:characters|case:mixed|") and "per_context" not in tree


def test_a_variable_k_has_to_be_asked_for_and_is_signed(tmp_path, polyreply_here, write_rows, files):
    _, gold = files
    rows = [{"context": context, "responses": ["a", "b"][: 1 + n % 2]} for n, context in enumerate(CONTEXTS)]
    said = write_rows(tmp_path / "uneven.jsonl", rows)
    done = polyreply_here("evaluate", said, "-r", gold)
    [line] = done.stderr.strip().splitlines()
    assert done.returncode == 2 and done.stdout == ""
    assert (
        line.startswith(f"error: {said}, line 2: expected 1 responses as in line 1, found 2;")
        and "--variable-k" in line
    )
    done = polyreply_here("evaluate", said, "-r", gold, "--variable-k", "--json")
    assert "|k:variable(1-2)|refs:1-3|" in json.loads(done.stdout)["signature"]


@pytest.mark.parametrize(
    "options, message",
    [
        (["--tokenizer", "words"], "tokenizer: expected wordpunct, characters, 13a or zh, found 'words'"),
        (["--case", "upper"], "case: expected lower or mixed"),
        (["--output", "."], "expected a file to write, found a folder"),
        (["--output", "said.jsonl/new/s.json"], "said.jsonl, found a file"),
        (["--references", "missing.jsonl"], "missing.jsonl: there is no such file"),
    ],
)
def test_a_mistake_is_one_clear_line(tmp_path, polyreply_here, files, options, message):
    said, gold = files
    done = polyreply_here("evaluate", said, "-r", gold, *options, cwd=tmp_path)
    [line] = done.stderr.strip().splitlines()
    assert done.returncode == 2 and line.startswith("error: ") and message in line


def test_rows_that_were_left_out_are_reported(tmp_path, polyreply_here, write_rows, files):
    said, _ = files
    rows = [{"context": context, "responses": ["x"]} for context in CONTEXTS]
    gold = write_rows(tmp_path / "gold.jsonl", [rows[0], b"{", *rows[1:]])
    done = polyreply_here("evaluate", said, "-r", gold, "--json")
    assert done.returncode == 0 and f"warning: 1 bad row of {gold} was left out" in done.stderr
