"""Profiles of decoders: typical words, and what is remarkable."""

from collections import Counter

import numpy as np
import pytest

from polyreply.analysis.decoder_profiles import log_odds, profile_decoders, typical_words


def test_log_odds_find_what_one_decoder_says_and_the_others_do_not():
    count_KV = np.array([[50.0, 20.0, 1.0], [50.0, 1.0, 20.0]])
    z_KV = log_odds(count_KV)
    assert abs(z_KV[0, 0]) < 0.5 and z_KV[0, 1] > 1.96 and z_KV[0, 2] < -1.96
    assert z_KV[0] == pytest.approx(-z_KV[1])
    # computed by hand: prior (50, 10.5, 10.5); own 30.5 of 142, the others' 11.5 of 142
    odds = np.log(30.5 / (142 - 30.5)) - np.log(11.5 / (142 - 11.5))
    assert z_KV[0, 1] == pytest.approx(odds / np.sqrt(1 / 30.5 + 1 / 11.5))
    typical = typical_words([Counter(the=50, what=20, yes=1), Counter(the=50, what=1, yes=20)], 3)
    assert [[word for word, _ in words] for words in typical] == [["what"], ["yes"]]
    assert typical_words([Counter()], 3) == [[]]


def test_a_profile_names_what_is_remarkable():
    replies = [["what is that ?", "i like it very much , thank you", "ok ."]] * 30
    asking, liking, short = profile_decoders(replies, word="like")
    assert asking.questions == 100 and liking.with_word == 100 and asking.with_word == 0 and short.length == 2
    assert asking.line.startswith("asks questions (100 %); says “") and "“what”" in asking.line
    assert liking.line.startswith("long replies") and short.line.startswith("short replies")
    assert asking.distinct == pytest.approx(100 / 30)
    [one, two] = profile_decoders([["我很喜欢", "是吗？"]] * 30, "characters", "喜欢")
    assert one.with_word == 100 and two.with_word == 0 and two.questions == 100 and "喜欢" in dict(one.words)
