"""Alarms name each collapse once, stay quiet on healthy runs, and do the same after a resume."""

import json
import math
import random

import pytest

from polyreply.config import load_recipe
from polyreply.em.em_step import StepRecord
from polyreply.errors import PolyReplyError, RecipeError
from polyreply.training.alarms import Alarms, AlarmSettings, CollapseError

SETTINGS = AlarmSettings(grace=5, patience=4, window=6)
EQUAL = (0.25, 0.25, 0.25, 0.25)


def record(step, usage=EQUAL, distance=0.5, samples=40):
    return StepRecord(step, 0, 3.0, 1e-3, samples, 0.1, 0.0, 0.1, tuple(usage), 0.6, distance)


def raised(alarms, records):
    return [alarm for one in records for alarm in alarms.step(one)]


def test_a_healthy_run_is_quiet():
    generator = random.Random(0)
    records = [record(n, distance=generator.uniform(0.1, 0.7)) for n in range(1, 300)]
    alarms = Alarms(AlarmSettings(), 4)
    assert raised(alarms, records) == []
    assert alarms.validation([["fine", "yes, I am", "who?", "no, no, no"]] * 4, 300) == []


def test_synchronous_training_is_told_once_after_grace_and_patience():
    (alarm,) = raised(Alarms(SETTINGS, 4), [record(n, distance=0.01) for n in range(1, 30)])
    assert (alarm.kind, alarm.step, alarm.decoders, alarm.values) == ("synchronous-training", 5 + 4, (), (0.01,))
    assert "for 4 steps" in alarm.message and "0.0100" in alarm.message and "try eqhard-em" in alarm.message


@pytest.mark.parametrize("distance", [0.05 * 0.75, None, math.nan])
def test_posteriors_that_differ_or_are_unknown_are_not_synchronous(distance):
    assert raised(Alarms(SETTINGS, 4), [record(n, distance=distance) for n in range(1, 30)]) == []


def test_patience_counts_steps_in_a_row():
    records = [record(n, distance=0.5 if n % 4 == 0 else 0.01) for n in range(1, 60)]
    assert raised(Alarms(SETTINGS, 4), records) == []


def test_untrained_decoders_are_named_with_their_shares_and_later_ones_too():
    records = [record(n, (0.5, 0.01, 0.49, 0.0)) for n in range(1, 20)]
    records += [record(n, (1.0, 0.0, 0.0, 0.0)) for n in range(20, 40)]
    first, second = raised(Alarms(SETTINGS, 4), records)
    assert (first.kind, first.step, first.decoders) == ("non-training", 6, (1, 3))
    assert first.values == pytest.approx((0.01, 0.0))
    assert "decoders 1 and 3 had 1.00% and 0.00% of the samples of the last 6 steps" in first.message
    assert (second.decoders, second.step) == ((2,), 25) and "decoder 2 had" in second.message


def test_the_share_of_training_counts_samples_not_steps():
    small = [record(n, (0.0, 0.3, 0.3, 0.4), samples=1) for n in range(1, 6)]
    assert raised(Alarms(SETTINGS, 4), [*small, record(6, EQUAL, samples=100)]) == []


def test_degenerate_decoders_are_told_once():
    alarms = Alarms(SETTINGS, 4)
    said = ["Well, I think so.", "no", "ha ha ha", "the the the the", "fine"]
    loops = ["the the the the", "I am I am I am I am", "...", "", "fine"]
    (alarm,) = alarms.validation([said, loops, said, ["", "", ""]], 50)
    assert (alarm.kind, alarm.step, alarm.decoders, alarm.values) == ("degenerate", 50, (1,), (0.8,))
    assert "4 of 5 validation replies of decoder 1" in alarm.message
    assert alarms.validation([said, loops, said, said], 60) == []
    (later,) = alarms.validation([said, loops, loops, said], 70)
    assert later.decoders == (2,)


def test_chinese_repeats_characters():
    laughs = ["哈哈哈哈哈", "好好好好好好", "的的的的", "我我我我我"]
    assert Alarms(SETTINGS, 2, "characters").validation([laughs, ["你好"] * 4], 1)[0].decoders == (0,)


def test_one_decoder_and_stage_1_have_nothing_to_collapse():
    assert raised(Alarms(SETTINGS, 1), [record(n, (1.0,), 0.0) for n in range(1, 50)]) == []
    assert raised(Alarms(SETTINGS, 4), [record(n, (), None) for n in range(1, 50)]) == []


def test_numbers_that_are_not_finite_raise_nothing():
    usage = (math.nan, 0.0, 0.5, 0.5)
    assert raised(Alarms(SETTINGS, 4), [record(n, usage, math.nan) for n in range(1, 50)]) == []


@pytest.mark.parametrize("cut", [1, 7, 14, 25, 39])
def test_a_resumed_run_warns_as_an_uninterrupted_one(cut):
    generator = random.Random(3)
    shares = [[generator.random() ** 6 for _ in range(4)] for _ in range(40)]
    records = [
        record(n, [share / sum(row) for share in row], generator.choice([0.01] * 9 + [0.5]))
        for n, row in enumerate(shares, start=1)
    ]
    settings = AlarmSettings(grace=5, patience=4, window=6, untrained_below=0.3)
    whole, before, after = (Alarms(settings, 4) for _ in range(3))
    expected = raised(whole, records)
    assert len({alarm.kind for alarm in expected}) == 2
    found = raised(before, records[:cut])
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert found + raised(after, records[cut:]) == expected
    assert after.state_dict() == whole.state_dict()


def test_stop_ends_the_run_with_the_alarm_in_one_line():
    alarms = Alarms(SETTINGS, 2)
    found = alarms.validation([[""] * 5, ["yes"] * 5], 9)
    error = CollapseError(found)
    assert isinstance(error, PolyReplyError) and error.alarms == found
    assert "degenerate replies at step 9" in str(error) and "\n" not in str(error)


def test_an_alarm_is_plain_json():
    (alarm,) = Alarms(SETTINGS, 2).validation([[""] * 3 + ["a"], ["yes"] * 5], 9)
    tree = alarm.to_json()
    assert json.loads(json.dumps(tree)) == tree
    assert tree["alarm"] == "degenerate" and tree["values"] == [0.75] and tree["decoders"] == [0]


def test_settings_are_checked_as_part_of_a_recipe():
    assert load_recipe(AlarmSettings, overrides=["stop=true"]).stop
    with pytest.raises(RecipeError, match="patience"):
        load_recipe(AlarmSettings, overrides=["patience=0"])
