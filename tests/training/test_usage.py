"""Usage adds up to what NumPy finds in the whole history, resumes exactly, and is drawn."""

import json

import numpy as np
import pytest

from polyreply.em.em_step import StepRecord
from polyreply.errors import PolyReplyError
from polyreply.training import usage
from polyreply.training.usage import UsageStatistics, read_usage, write_usage

K = 3


def history(steps, seed=0):
    """Random weights of each step's samples, and the records they give."""
    generator = np.random.default_rng(seed)
    weights = [generator.dirichlet([0.3] * K, size=generator.integers(4, 9)) for _ in range(steps)]
    return weights, [record(n, found) for n, found in enumerate(weights, start=1)]


def record(step, weights_NK):
    usage, std = tuple(weights_NK.mean(0).tolist()), tuple(weights_NK.std(0).tolist())
    return StepRecord(step, 0, 3.0, 1e-3, len(weights_NK), 0.1, 0.0, 0.1, usage, weight_std_K=std)


def counted(records):
    statistics = UsageStatistics(K)
    for one in records:
        statistics.add(one)
    return statistics


def test_summary_is_what_the_whole_history_gives():
    weights, records = history(120)
    found = counted(records).summary("soft-em")
    steps = np.array([one.usage_K for one in records])
    samples = np.concatenate(weights)
    assert (found["method"], found["num_decoders"], found["steps"]) == ("soft-em", K, 120)
    assert found["samples"] == len(samples)
    expected = {
        "share": samples.mean(0),
        "sample_std": samples.std(0),
        "step_mean": steps.mean(0),
        "step_std": steps.std(0),
        "first": steps[0],
        "last": steps[-1],
    }
    for name, values in expected.items():
        assert found[name] == pytest.approx(values.tolist(), abs=1e-6), name
    assert found["series"]["step"] == [*range(1, 121)]


def test_the_paper_s_two_extremes_differ_over_samples_not_over_steps():
    hard = counted([record(n, np.eye(K)) for n in range(1, 9)]).summary("eqhard-em")
    soft = counted([record(n, np.full((K, K), 1 / K)) for n in range(1, 9)]).summary("soft-em")
    assert hard["share"] == soft["share"] and hard["step_std"] == soft["step_std"] == [0.0] * K
    assert soft["sample_std"] == pytest.approx([0.0] * K, abs=1e-6)
    assert hard["sample_std"] == pytest.approx([np.sqrt(1 / K - 1 / K**2)] * K, abs=1e-6)


@pytest.mark.parametrize("steps", [1, 499, 500, 501, 1999, 3300])
def test_the_series_is_thin_and_each_point_the_mean_of_its_steps(steps):
    _, records = history(steps)
    series = counted(records).summary("")["series"]
    stride, points = series["steps_per_point"], len(series["step"])
    assert points == -(-steps // stride) <= 500 and (stride == 1 or points >= 250)
    usage = np.array([one.usage_K for one in records])
    means = [usage[at : at + stride].mean(0) for at in range(0, steps, stride)]
    assert np.allclose(series["usage"], means, atol=1e-6)
    assert series["step"][-1] == steps


@pytest.mark.parametrize("cut", [0, 1, 503, 1100])
def test_a_resumed_run_counts_as_an_uninterrupted_one(cut):
    _, records = history(1200)
    resumed = UsageStatistics(K)
    resumed.load_state_dict(json.loads(json.dumps(counted(records[:cut]).state_dict())))
    for one in records[cut:]:
        resumed.add(one)
    assert resumed.state_dict() == counted(records).state_dict()
    assert resumed.summary("") == counted(records).summary("")


def test_what_has_no_usage_is_not_counted_and_a_wrong_number_is_refused():
    statistics = counted([StepRecord(1, 0, 3.0, 1e-3, 8, 0, 0, 1), record(2, np.full((2, K), np.nan))])
    assert statistics.summary("mle")["steps"] == 0 and statistics.summary("mle")["sample_std"] is None
    with pytest.raises(ValueError, match="expected the usage of 3 decoders, found 2"):
        statistics.add(StepRecord(1, 0, 3.0, 1e-3, 8, 0, 0, 1, (0.5, 0.5)))


def test_without_deviations_over_samples_there_are_none():
    assert counted([StepRecord(1, 0, 3.0, 1e-3, 8, 0, 0, 1, (0.2, 0.3, 0.5))]).summary("")["sample_std"] is None


def test_the_file_is_replaced_and_read_back(tmp_path):
    path = tmp_path / "usage.json"
    summary = counted(history(7)[1]).summary("hard-em")
    write_usage(path, {**summary, "steps": 1})
    write_usage(path, summary)
    assert read_usage(path) == summary == json.loads(path.read_text())
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "expected the usage.json"),
        ("{", "expected the usage.json"),
        ('{"schema_version": 99, "share": 0, "step_std": 0, "series": 0}', "upgrade polyreply"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "usage.json"
    path.write_text(text)
    with pytest.raises(PolyReplyError, match=message):
        read_usage(path)
    with pytest.raises(PolyReplyError, match="no such file"):
        read_usage(tmp_path / "none.json")


def test_plots_are_drawn_the_same_each_time(tmp_path):
    hard, soft = counted(history(60)[1]).summary("hard-em"), counted(history(9, 1)[1]).summary("soft-em")
    for name in ("one.png", "two.png"):
        usage.plot_usage(hard, tmp_path / f"usage-{name}")
        usage.plot_assignment({"hard-em": hard, "soft-em": soft}, tmp_path / f"assignment-{name}")
    for kind in ("usage", "assignment"):
        first, second = ((tmp_path / f"{kind}-{name}").read_bytes() for name in ("one.png", "two.png"))
        assert first == second and first.startswith(b"\x89PNG")


def test_smoothing_keeps_the_length_and_averages_around_each_point():
    values = np.array([[0.0], [3.0], [6.0], [3.0]])
    assert usage._smooth(values, 3).ravel().tolist() == [1.5, 3.0, 4.0, 4.5]
    assert usage._smooth(values, 1).tolist() == values.tolist()


def test_the_deviation_is_over_steps_unless_every_run_knows_it_over_samples():
    known = counted(history(5)[1]).summary("")
    unknown = {**known, "sample_std": None}
    assert usage._deviation_over({"a": known, "b": known}) == "samples"
    assert usage._deviation_over({"a": known, "b": unknown}) == "steps"
    for over, mean, std in (("samples", "share", "sample_std"), ("steps", "step_mean", "step_std")):
        found_mean, found_std = usage._mean_and_std(known, over)
        assert (found_mean / 100).tolist() == pytest.approx(known[mean])
        assert (found_std / 100).tolist() == pytest.approx(known[std])


def test_nothing_to_draw_is_said(tmp_path):
    empty = UsageStatistics(K).summary("mle")
    with pytest.raises(PolyReplyError, match="found none"):
        usage.plot_usage(empty, tmp_path / "a.png")
    with pytest.raises(PolyReplyError, match="at least one step"):
        usage.plot_assignment({"mle": empty}, tmp_path / "a.png")


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(PolyReplyError, match=r"pip install 'polyreply\[demo\]'"):
        usage.plot_usage(counted(history(5)[1]).summary(""), tmp_path / "a.png")
