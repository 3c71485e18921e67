"""Cleaning rules, one table: (rule, text, what becomes of it); None means dropped."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyreply.data.clean import RULES, CleanSettings, clean

OFF = {field.name: False for field in dataclasses.fields(CleanSettings) if field.type in (bool, "bool")}


def run(text, language="en", **config):
    result = clean(pa.array([text]), CleanSettings(**config), language)
    return None if result.dropped_by[0] >= 0 else result.texts[0].as_py()


@pytest.mark.parametrize(
    "rule, language, text, expected",
    [
        ("control", "en", "a\x00b\u200bc\x7f", "a bc "),
        ("markup", "en", "<i>Tom &amp; Ann</i> {\\an8}&#39;s 3 < 4", " Tom & Ann   's 3 < 4"),
        ("markup", "en", "<can we meet> <a href='x'>ok</a>", "<can we meet>  ok "),
        ("markup", "en", "&lt;b&gt;bold&lt;/b&gt;", " bold "),
        ("quotes", "en", "I wasn''t", "I wasn't"),
        ("nfkc", "zh", "Ａ，真的！？（是）…", "A，真的！？（是）…"),
        ("nfkc", "en", "ｆｉｎｅ… ﬁne", "fine... fine"),
        ("quotes", "en", "“I ‘think’ it’s” ''so''", '"I \'think\' it\'s" "so"'),
        ("whitespace", "en", "  a \t\u3000 b\n", "a b"),
        ("detached", "en", "it 's fine , do n't go !", "it's fine, don't go!"),
        ("detached", "en", "I ' ll wan na ask : why ( me ) ?", "I'll wanna ask: why (me)?"),
        ("detached", "en", "that 's $ 5 :) ok", "that's $5 :) ok"),
        ("detached", "en", "rock ' roll 's", "rock ' roll's"),
        ("detached", "en", "I use .NET , costs .5 more", "I use .NET, costs .5 more"),
        ("detached", "en", "press the 's' key , or 'Re: Zero'", "press the 's' key, or 'Re: Zero'"),
        ("detached", "en", "five minutes ' walk .", "five minutes' walk."),
        ("detached", "en", "i ' il see if We'ii go , qu'il vienne", "i'll see if We'll go, qu'il vienne"),
        ("detached", "zh", "我 也 想 买 一个 ， 但是 iPad", "我也想买一个，但是 iPad"),
        ("urls", "en", "see www.example.org", None),
        ("urls", "en", "mail me@example.com", None),
        ("urls", "en", "at 5.30 p.m. then", "at 5.30 p.m. then"),
        ("length", "en", "word " * 101, None),
        ("length", "en", "word " * 100, "word " * 100),
        ("length", "en", "w" * 601, None),
        ("length", "zh", "好" * 101, None),
        ("length", "zh", "好" * 100, "好" * 100),
        ("repeated_chars", "en", "nooooooooo", None),
        ("repeated_chars", "en", "noooooooo", "noooooooo"),
        ("repeated_words", "en", "No, no no NO no!", None),
        ("repeated_words", "en", "no no no no", "no no no no"),
        ("noise", "en", "♪ ♪ ♪", None),
        ("noise", "en", "...", None),
        ("noise", "en", ":)", None),
        ("noise", "en", "oh ...", "oh ..."),
        ("noise", "en", "ok ### $$$ @@@", None),
        ("noise", "zh", "好的。。。", "好的。。。"),
        ("script", "en", "привет my friend", "привет my friend"),
        ("script", "en", "привет друг hi", None),
        ("script", "zh", "hello there", None),
        ("script", "zh", "我爱你 ok", "我爱你 ok"),
        ("script", "any", "привет", "привет"),
        ("personal", "en", "text me, it's (555) 010-1234", None),
        ("personal", "en", "Hey! I'm Dana, nice to meet you", None),
        ("personal", "en", "follow @dana_runs", None),
        ("personal", "en", "I live at 12 Elm Street", None),
        ("personal", "en", "I'm tired, it was a 12 hour drive", "I'm tired, it was a 12 hour drive"),
        ("personal", "en", "I was born in 1999 and love New York", "I was born in 1999 and love New York"),
        ("abuse", "en", "you are such an idiot", None),
        ("abuse", "en", "Shut up!", None),
        ("abuse", "en", "that joke killed me, class was great", "that joke killed me, class was great"),
        ("abuse", "en", "I passed the assignment in Sussex", "I passed the assignment in Sussex"),
    ],
)
def test_each_rule_alone(rule, language, text, expected):
    assert run(text, language, **{**OFF, rule: True}) == expected


HANDLED_BY_RULE = {
    "markup": "<b>ok</b>",
    "control": "o\u200bk",
    "nfkc": "ｏk",
    "quotes": "it’s",
    "whitespace": "o  k",
    "detached": "ok .",
    "urls": "www.example.org",
    "length": "ok " * 101,
    "repeated_chars": "k" * 9,
    "repeated_words": "ok ok ok ok ok",
    "noise": "###",
    "script": "привет",
    "personal": "my name is Dana",
    "abuse": "you are stupid",
}


@pytest.mark.parametrize("rule", HANDLED_BY_RULE)
def test_every_rule_does_something_and_can_be_switched_off(rule):
    text = HANDLED_BY_RULE[rule]
    assert run(text, **{**OFF, rule: True}) != text
    assert run(text, **OFF) == text


def test_no_rule_is_forgotten():
    assert {*HANDLED_BY_RULE, "empty", "words"} == {rule.name for rule in RULES}


@pytest.mark.parametrize(
    "text, kept",
    [("Go to Acme now", False), ("the ACME?", False), ("acmes", True), ("big  red box", False), ("big box", True)],
)
def test_listed_words_are_dropped_whole_and_in_any_case(text, kept):
    assert (run(text, **OFF, words=("acme", "big red", "a+b")) == text) == kept
    assert list(CleanSettings(words=(" ",)).problems())


def test_an_empty_text_is_always_dropped():
    assert run("<br>", **OFF) == "<br>"
    assert run("<br>") is None
    assert run("  ", **OFF) is None


def test_limits_are_settings():
    assert run("a b c", max_words=2) is None
    assert run("a b", min_words=3) is None
    assert run("aaa", max_repeated_chars=2) is None
    assert list(CleanSettings(min_words=5, max_words=4).problems())


@settings(max_examples=60)
@given(st.lists(st.text(max_size=20), max_size=6))
def test_a_text_is_judged_alone(texts):
    """Neighbours in the column change nothing, for any characters."""
    together = clean(pa.array(texts, pa.string()), CleanSettings(), "en")
    alone = [clean(pa.array([text]), CleanSettings(), "en") for text in texts]
    assert together.texts.to_pylist() == [one.texts[0].as_py() for one in alone]
    assert list(together.dropped_by) == [one.dropped_by[0] for one in alone]


@pytest.mark.parametrize("text", ["it 's “ok” , n't it ?", "<i>a &amp; b</i>", "a\u3000\u200b b ( c )", "do n ' t"])
def test_cleaning_twice_changes_nothing_more(text):
    once = clean(pa.array([text]), CleanSettings()).texts
    assert clean(once, CleanSettings()).texts == once


def test_what_changed_and_what_dropped_is_known():
    result = clean(pa.array(["it 's", "fine", "♪♪♪"]), CleanSettings())
    assert result.changed_by["detached"].tolist() == [True, False, False]
    assert [texts[0].as_py() for texts in result.steps["detached"]] == ["it 's", "it's"]
    assert [RULES[i].name if i >= 0 else None for i in result.dropped_by] == [None, None, "noise"]
    assert result.dropped_by.dtype == np.int8
