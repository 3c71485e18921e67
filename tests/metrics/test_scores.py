"""Scores: their file, their signature, and clear errors for files that hold something else."""

import json

import numpy as np
import pytest

from polyreply.errors import PolyReplyError
from polyreply.metrics import PAPER_NUMBERS, Signature, evaluate, load_scores

RESPONSES = [["hello there", "how are you?", "hello there"], ["no", "yes", ""]]
REFERENCES = [["hello", "how do you do?"], ["yes", "of course", "no way"]]


@pytest.mark.parametrize("name", ["scores.json", "scores.json.gz"])
def test_a_saved_file_reads_back(tmp_path, name):
    scores = evaluate([*RESPONSES, ["x", "y", "z"]], [*REFERENCES, ["x y"]], system="ours")
    scores.save(tmp_path / name)
    again = load_scores(tmp_path / name)
    assert again.numbers == scores.numbers and again.signature == scores.signature
    assert (again.system, again.data, again.num_contexts) == ("ours", scores.data, 3)
    for column, values in scores.per_context.items():
        np.testing.assert_allclose(again.per_context[column], values, atol=5e-5)
    assert list(tmp_path.iterdir()) == [tmp_path / name]


def test_a_file_is_plain_json(tmp_path):
    evaluate([["a"]], [["a"]]).save(tmp_path / "s.json")
    tree = json.loads((tmp_path / "s.json").read_text())
    assert tree["schema_version"] == 1 and set(PAPER_NUMBERS) < set(tree)
    assert tree["pairwise_bleu"] is None and tree["per_context"]["pairwise_bleu"] == [None]
    assert load_scores(tmp_path / "s.json").system == ""


def test_a_file_is_not_replaced_unasked(tmp_path):
    scores, path = evaluate(RESPONSES), tmp_path / "s.json"
    path.write_text("mine")
    with pytest.raises(PolyReplyError, match="--overwrite"):
        scores.save(path)
    assert path.read_text() == "mine"
    scores.save(path, overwrite=True)
    assert load_scores(path)["dist1"] == scores["dist1"]


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        evaluate(RESPONSES).save(tmp_path / "s.json")
    assert not list(tmp_path.iterdir())


def broken(**changes):
    scores = evaluate([["a", "b"]], [["a"]])
    columns = {name: column.tolist() for name, column in scores.per_context.items()}
    return {**scores.summary(), "per_context": columns, **changes}


@pytest.mark.parametrize(
    "content, message",
    [
        (b"not json", "expected a score file as `polyreply evaluate --output` writes it"),
        (b"not json", "found something else (JSON is malformed"),
        (b'{"context": "a", "responses": ["b"]}\n', "object missing required field `schema_version`"),
        (b"[]", "expected a score file"),
        (b"\x1f\x8bxx", "expected a score file"),
        (broken(schema_version=9), "has schema version 9, and this polyreply reads up to 1; upgrade polyreply"),
        (broken(contexts=2), "expected 2 values of bleu1_p, one per context, found 1"),
        (broken(contexts=0, per_context={}), "expected the scores of at least 1 context, found 0; evaluate"),
        (
            broken(per_context={}),
            "behind bleu1_f, found no bleu1_p, bleu1_r; evaluate",
        ),
        (broken(bleu1_f="x"), "expected a number or null under bleu1_f, found 'x'"),
        (broken(dist2=True), "expected a number or null under dist2, found 'True'"),
        (broken(self_bleu=[1]), "expected a number or null under self_bleu, found '[1]'"),
        (broken(signature="new"), "expected a signature such as tok:…"),
        ({key: value for key, value in broken().items() if key != "dist1"}, "found no dist1"),
    ],
)
def test_a_file_that_is_not_a_score_file_is_one_clear_line(tmp_path, content, message):
    path = tmp_path / "s.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(PolyReplyError) as caught:
        load_scores(path)
    assert str(path) in str(caught.value) and message in str(caught.value) and "\n" not in str(caught.value)


def test_a_remark_in_a_score_file_is_ignored(tmp_path):
    (tmp_path / "s.json").write_text(json.dumps(broken(remark="mine", bleu1_f=None)))
    scores = load_scores(tmp_path / "s.json")
    assert "remark" not in scores.numbers and scores["bleu1_f"] is None


def test_signatures_read_back_and_show_their_differences():
    one = Signature("wordpunct", "lower", "10", "1-5")
    assert Signature.parse(str(one)) == one
    other = Signature("zh", "lower", "variable(3-10)", "1-5", embeddings="m")
    assert Signature.parse(str(other)) == other
    assert one.differences(other) == ["tok: wordpunct and zh", "k: 10 and variable(3-10)"]
    assert other.differences(Signature("zh", "lower", "variable(3-10)", "1-5", embeddings="n")) == ["emb: m and n"]
