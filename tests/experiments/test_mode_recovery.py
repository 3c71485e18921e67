"""mode-recovery: its held-out data, and, in the slow tier, that EqHard-EM finds the acts."""

import re

import numpy as np
import pytest

from polyreply.data.read import read_dialogues
from polyreply.experiments.cache import Cache
from polyreply.experiments.mode_recovery import HELD_OUT, METHODS, Smalltalk, recover, recovery_table


def test_the_two_kinds_of_held_out_contexts_of_smalltalk(tmp_path):
    smalltalk = Smalltalk(Cache(tmp_path))
    smalltalk.cache.get(smalltalk.data)

    def words(rows):
        texts = (text for row in rows for text in (*row.context, *row.responses))
        return {word for text in texts for word in re.findall(r"\w+", text.lower())}

    train = list(read_dialogues(smalltalk.data.path / "train.jsonl"))
    valid, unseen = (list(read_dialogues(smalltalk.held_out(kind))) for kind in HELD_OUT)
    assert len(train) == 60_000 and len(valid) > 1000 and len(unseen) == 1000
    assert not {row.context for row in train} & {row.context for row in (*valid, *unseen)}
    assert not words(valid) - words(train) and len(words(unseen) - words(train)) > 100
    assert all(row.acts for row in (*valid, *unseen))


@pytest.mark.slow
def test_eqhard_em_finds_the_acts_and_random_assignment_does_not(tmp_path):
    cache = Cache(tmp_path)
    found = recover(cache, ("EqHard-EM",), (0, 1, 2))["valid"]
    random = recover(cache, ("EqRandom-Dynamic",))["valid"]["methods"]["EqRandom-Dynamic"][0]
    for ours in found["methods"]["EqHard-EM"]:
        assert ours["training_usage"] == pytest.approx([0.1] * 10)
        assert all(0.05 <= share <= 0.15 for share in ours["usage"]), ours["usage"]
        assert ours["captured"] >= 0.8 and ours["max_posterior"] >= 0.8
        assert ours["gain"] > found["one_adapter_gain"]
    assert np.mean([ours["acts"] for ours in found["methods"]["EqHard-EM"]]) >= 6
    assert random["captured"] <= 0.2 and random["acts"] <= 3
    table = recovery_table("t", found, (0, 1, 2))
    [row] = table.rows
    assert row[0] == "EqHard-EM" and len(row) == len(table.columns) and set(METHODS) > set(found["methods"])
