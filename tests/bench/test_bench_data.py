"""The benchmark of `prepare` plants the duplicates it claims to plant, and measures the real command."""

import json
from collections import Counter

import numpy as np

from polyreply.bench.synthetic import natural_pairs, write_natural
from polyreply.data.read import read_dialogues


def unigram_overlap(text, other):
    one, two = Counter(text.split()), Counter(other.split())
    return 2 * (one & two).total() / (one.total() + two.total())


def test_bench_data_reports_every_figure(polyreply_here):
    done = polyreply_here("bench", "data", "--rows", 4000, "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    for corpus in ("natural", "smalltalk"):
        assert figures[f"data.{corpus}.large.exact_found"] == 1.0
        assert figures[f"data.{corpus}.large.rows_per_second"] > 0
        assert 50 < figures[f"data.{corpus}.large.peak_mb"] < 2000
        assert figures[f"data.{corpus}.growth"] > 0
        assert figures[f"data.{corpus}.large.kept"] == 1.0
    assert figures["data.natural.large.near_found"] == 1.0


def test_planted_duplicates_are_what_they_should_be(tmp_path):
    planted = write_natural(tmp_path, 2000)
    train = [(row.context[0], row.responses[0]) for row in read_dialogues(tmp_path / "train.jsonl.gz")]
    held_out = [row for split in ("valid", "test") for row in read_dialogues(tmp_path / f"{split}.jsonl.gz")]
    assert {original for _, original in planted.near} <= {(row.context[0], row.responses[0]) for row in held_out}
    assert len(train) == 2000 and len(train) - len(set(train)) == planted.exact == 10
    assert {copy for copy, _ in planted.near} <= set(train)
    overlaps = [unigram_overlap(" ".join(copy), " ".join(original)) for copy, original in planted.near]
    assert min(overlaps) > 0.6 and np.mean(np.array(overlaps) > 0.75) > 0.9 and max(overlaps) < 1


def test_natural_text_has_a_natural_vocabulary():
    """New words keep coming: ten times the text has several times the words (Heaps' law)."""

    def vocabulary(rows):
        pairs = natural_pairs(rows, np.random.default_rng(0))
        return len({word for pair in pairs for text in pair for word in text.split()})

    assert 3 < vocabulary(10_000) / vocabulary(1_000) < 9
