"""The tokenizers are NLTK's and sacreBLEU's, token for token."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk import wordpunct_tokenize
from sacrebleu.metrics import BLEU

from polyreply.errors import PolyReplyError
from polyreply.metrics.tokenize import tokenizer_named

TRICKY = [
    "Don't pay $3.88, it's 1,000.50 - or 10-20% (e.g. \"half\")!",
    "a.,b ..5 5.. .5 5. -5 5- 1-2,3",
    "&quot;x&quot; &amp;lt; <skipped>end-\nline",
    "a-\n",
    "我爱ＡＢＣ，iPhone13很“好”…〇",
    "ΑΣ ΑΣ. İstanbul",
    "…—‘quoted’ 𠀀\u2000\u2a6e\u2f81",
    " \t\u3000\x1c\x85",
]
any_text = st.one_of(st.sampled_from(TRICKY), st.text(max_size=20), st.text(alphabet="aB1.,-&;< 我，。\n", max_size=15))


# NLTK 3.10 has another regex engine than before, which judges combining marks, joiners, superscripts, fractions and a
# few more characters differently. Ours is Python's own, as NLTK's was when the paper was written.
alike = st.characters(exclude_categories=["M", "No", "So", "Pc", "Cc", "Cf", "Cs", "Cn"]) | st.sampled_from("_ .,!?'\n")


@settings(max_examples=200)
@given(st.text(alphabet=alike, max_size=20) | st.sampled_from(TRICKY[:5]))
def test_wordpunct_is_nltks(text):
    assert tokenizer_named("wordpunct", "mixed")(text) == wordpunct_tokenize(text)
    assert tokenizer_named("wordpunct", "lower")(text) == tokenizer_named("wordpunct", "mixed")(text.lower())


@pytest.mark.parametrize("name", ["13a", "zh"])
@pytest.mark.parametrize("text", TRICKY)
def test_tricky_texts_as_sacrebleu_has_them(name, text):
    for case in ("lower", "mixed"):
        expected = BLEU(tokenize=name, lowercase=case == "lower")._preprocess_segment(text)
        assert tokenizer_named(name, case)(text) == expected.split()


@settings(max_examples=200)
@given(any_text)
def test_13a_and_zh_are_sacrebleus(text):
    for name in ("13a", "zh"):
        assert tokenizer_named(name, "mixed")(text) == BLEU(tokenize=name)._preprocess_segment(text).split()


def test_every_character_of_the_first_plane_is_set_apart_as_in_sacrebleu():
    ours, theirs = tokenizer_named("zh", "mixed"), BLEU(tokenize="zh")._preprocess_segment
    for start in range(0x80, 0xD800, 64):
        text = "".join(f"a{chr(code)}b" for code in range(start, start + 64))
        assert ours(text) == theirs(text).split(), hex(start)


def test_characters():
    assert tokenizer_named("characters", "lower")("我 也Is\n。") == ["我", "也", "i", "s", "。"]


@pytest.mark.parametrize(
    "name, case, message",
    [
        ("words", "lower", "tokenizer: expected wordpunct, characters, 13a or zh, found 'words'"),
        ("13a", "upper", "case: expected lower or mixed, found 'upper'"),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_ones(name, case, message):
    with pytest.raises(PolyReplyError, match=message):
        tokenizer_named(name, case)
