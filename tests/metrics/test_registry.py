"""A metric is one function and one registration: evaluate, compare, tables, files and signatures know it."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from polyreply.errors import PolyReplyError
from polyreply.metrics import compare, evaluate, load_scores, metric, registry
from polyreply.tables import Column

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
REFERENCES = [["yes of course", "not today"]] * 12
FEW, MANY = [["yes", "yes yes", "no"]] * 12, [["yes", "no", "why"]] * 11 + [["yes", "yes", "yes"]]


@pytest.fixture(autouse=True)
def only_built_in_metrics_remain():
    before = dict(registry.METRICS)
    yield
    registry.METRICS.clear()
    registry.METRICS.update(before)


def register_openings(version="1", **options):
    @metric("openings", label="Openings", better=1, version=version, **options)
    def openings(responses, references):
        """Different first words."""
        return None if references == ["none"] else 10.0 * len({text.split()[0] for text in responses})


def test_the_documented_example_runs_outside_the_package(tmp_path):
    section = DOCS.read_text(encoding="utf-8").partition("## Add a metric")[2]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    assert len(code.splitlines()) <= 20
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    done = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, *table = done.stdout.splitlines()
    assert first.startswith("100.0 tok:") and "|with:openings@1|v:" in first
    [beam] = [line.split() for line in table if line.startswith("beam")]
    [ours] = [line.split() for line in table if line.startswith("ours")]
    assert "Openings" in done.stdout and beam[-1] == "33.33" and ours[-1] == "100.00*"


def test_a_metric_is_computed_labelled_tested_signed_and_kept(tmp_path):
    register_openings()
    few, many = evaluate(FEW, REFERENCES, system="few"), evaluate(MANY, REFERENCES, system="many")
    assert few["openings"] == 20 and many["openings"] == pytest.approx((11 * 30 + 10) / 12)
    assert "Openings" in str(few) and "Different first words" in few.table().render("markdown")
    few.save(tmp_path / "few.json")
    again = load_scores(tmp_path / "few.json")
    assert again["openings"] == 20 and again.signature == few.signature and len(again.per_context["openings"]) == 12
    comparison = compare(again, many, samples=200)
    assert comparison.significant("many", "openings") and comparison.best("openings") == {"many"}
    assert comparison.render("markdown").splitlines()[0].endswith("| Openings ↑ |")
    plain = evaluate(FEW, tokenizer="zh")
    assert not plain.signature.differences(plain.signature) and "openings" in plain.numbers


def test_scores_of_two_versions_are_not_compared():
    one = evaluate(FEW, REFERENCES)
    register_openings()
    two = evaluate(FEW, REFERENCES)
    register_openings(version="2")
    three = evaluate(FEW, REFERENCES)
    assert not compare({"a": one, "b": two}, samples=20).incomparable
    assert "openings@1 and openings@2" in compare({"a": two, "b": three}, samples=20).incomparable["b"]


def test_a_context_may_have_no_value_and_references_may_be_needed():
    register_openings(needs_references=True)
    scores = evaluate(MANY, [*REFERENCES[:11], ["none"]])
    assert scores["openings"] == 30 and np.isnan(scores.per_context["openings"][-1])
    assert evaluate(MANY)["openings"] is None


def test_two_metrics_can_be_combined_by_their_harmonic_mean():
    register_openings()
    registry.register(registry.Metric("both", Column("Both"), harmonic_of=("openings", "dist1"), version="1"))
    scores = evaluate(FEW, REFERENCES)
    assert scores["both"] == pytest.approx(
        2 * scores["openings"] * scores["dist1"] / (scores["openings"] + scores["dist1"])
    )
    assert "both" in compare(scores, samples=20).intervals["system 1"]


@pytest.mark.parametrize("name", ["bleu2_f", "signature", "two words"])
def test_a_name_that_is_taken_or_no_identifier_is_refused(name):
    with pytest.raises(PolyReplyError, match=re.escape(name)):
        metric(name)(lambda responses, references: 1.0)


def test_a_metric_needs_a_version_that_fits_a_signature():
    for version in ("", "a|b", "1+1"):
        with pytest.raises(PolyReplyError, match="version"):
            metric("mine", version=version)(lambda responses, references: 1.0)
