"""What `polyreply bench precision` reports: nothing differs in one type, and what differs is counted."""

import json

import pytest

from polyreply.bench import precision
from polyreply.errors import DataError


@pytest.fixture
def data(tmp_path):
    rows = [
        {"context": f"How is the {thing} today?", "responses": [f"The {thing} is {word}." for word in ("good", "bad")]}
        for thing in ("cat", "dog", "car", "tea", "sea", "sky")
    ]
    for split in ("train", "valid"):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_float32_is_compared_with_the_other_types(data, monkeypatch):
    monkeypatch.setattr(precision, "MAX_NEW_TOKENS", 4)
    figures = precision.bench_precision("t5-mini-10", data, lambda *_: None, draws=1, draw_size=6, contexts=4)
    assert figures["precision.samples"] == 6
    assert 0.5 <= figures["precision.agreement"] <= 1 and figures["precision.nll_apart"] > 0
    for dtype in ("bfloat16", "int8"):
        assert 0 < figures[f"precision.{dtype}.same_replies"] <= 1
        difference = figures[f"precision.{dtype}.dist2"] - figures["precision.float32.dist2"]
        assert figures[f"precision.{dtype}.dist2.difference"] == pytest.approx(difference)


@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_missing_split_is_reported_before_any_work(data, split):
    (data / f"{split}.jsonl").unlink()
    with pytest.raises(DataError, match=f"expected a (test or )?{split} split"):
        precision.bench_precision("no model is loaded", data, lambda *_: None)


def test_a_type_does_not_differ_from_itself(data, monkeypatch):
    monkeypatch.setattr(precision, "MAX_NEW_TOKENS", 4)
    monkeypatch.setattr(precision, "TYPES", ("float32", "float32"))
    figures = precision.bench_precision("t5-mini-10", data, lambda *_: None, draws=0, contexts=1000)
    assert figures["precision.contexts"] == 6
    assert figures["precision.float32.same_replies"] == 1
    assert figures["precision.float32.dist2.p_value"] == 1
