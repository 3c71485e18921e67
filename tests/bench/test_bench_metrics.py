"""The benchmark compares like with like: both sides give the same nine numbers for the same texts."""

import json

import pytest

from polyreply.bench.metrics import REFERENCES, K, bench_metrics, bench_texts, nltk_numbers
from polyreply.metrics import evaluate
from polyreply.progress import silent


def test_both_ways_agree():
    responses, references = bench_texts(20)
    assert {len(texts) for texts in responses} == {K} and {len(texts) for texts in references} == {REFERENCES}
    expected = nltk_numbers(responses, references)
    found = evaluate(responses, references)
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-9)
    assert 5 < found["bleu2_f"] < 60 and 6 < found["length"] < 20  # neither alike nor strange to each other


def test_every_figure_is_reported(polyreply_here):
    done = polyreply_here("bench", "metrics", "--contexts", 600, "--sample", 10, "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["metrics.vs_nltk"] > 10 and figures["metrics.largest_difference"] < 1e-9
    assert figures["metrics.contexts"] == 600 and figures["metrics.nltk_contexts"] == 10
    assert 2 < figures["metrics.growth"] < 30 and 0 <= figures["metrics.memory_mb"] < 100


@pytest.mark.slow
def test_many_times_faster_than_nltk_with_bounded_memory_and_linear_cost():
    figures = bench_metrics(12_000, 100, silent)
    assert figures["metrics.vs_nltk"] >= 40
    assert figures["metrics.growth"] < 15 and figures["metrics.memory_mb"] < 100
