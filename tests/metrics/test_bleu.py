"""Every number equals NLTK's `sentence_bleu`, averaged as the paper's authors do, within 1e-9."""

import itertools
import math
import random
import re
import statistics
import warnings

import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.translate.bleu_score import sentence_bleu

from polyreply.data import chitchat, smalltalk
from polyreply.metrics import evaluate, evaluation

WEIGHTS = [(1.0,), (0.5, 0.5), (1 / 3, 1 / 3, 1 / 3), (0.25, 0.25, 0.25, 0.25)]

# Written for this test: short replies as in chats, with shared phrases, repeated signs, and Latin letters in between.
CHINESE = (
    "我也想买一个，可惜没钱。 我也想去看看！ 你在哪里啊？ 哈哈哈哈，太好笑了 这个是什么？求解释 "
    "不错不错，我喜欢 今天天气真好 我也是，还不如在家睡觉 好的，谢谢你！ OK啊，没问题 明天一起去吃火锅吧？ "
    "我昨天买了iPhone，还不错 真的吗？我不信 加油，加油，加油！ 早上好 晚安，好梦。 你说得对，我也这么想 "
    "我不知道你在说什么 这个周末有空吗？ 周末没空，下周吧 太贵了，买不起 便宜又好吃，推荐 "
    "… 嗯 嗯嗯，知道了 你是不是傻？ 我才不傻呢 图片真好看 求原图！ 看哭了。。。"
).split()


def nltk_numbers(responses, references, tokenize):
    """The definitions, by loops over pairs."""
    columns = {}

    def add(name, value):
        columns.setdefault(name, []).append(value)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for said, gold in zip(responses, references, strict=True):
            hypotheses, golds = [tokenize(text) for text in said], [tokenize(text) for text in gold]
            for order, weights in enumerate(WEIGHTS, start=1):
                scores = [[sentence_bleu([two], one, weights) for two in golds] for one in hypotheses]
                add(f"bleu{order}_p", statistics.mean(max(row) for row in scores))
                add(f"bleu{order}_r", statistics.mean(max(column) for column in zip(*scores, strict=True)))
            for order in (1, 2):
                grams = [gram for one in hypotheses for gram in zip(*(one[n:] for n in range(order)), strict=False)]
                add(f"dist{order}", len(set(grams)) / len(grams) if grams else 0)
            if len(hypotheses) > 1:
                pairs = list(itertools.permutations(hypotheses, 2))
                add("pairwise_bleu", statistics.mean(sentence_bleu([two], one) for one, two in pairs))
                add("identical", statistics.mean(one == two for one, two in pairs))
                others = [(one, hypotheses[:n] + hypotheses[n + 1 :]) for n, one in enumerate(hypotheses)]
                add("self_bleu", statistics.mean(sentence_bleu(rest, one) for one, rest in others))
    numbers = {name: 100 * statistics.mean(values) for name, values in columns.items()}
    for order in range(1, 5):
        p, r = numbers[f"bleu{order}_p"], numbers[f"bleu{order}_r"]
        numbers[f"bleu{order}_f"] = 2 * p * r / (p + r) if p + r else 0
    return numbers


def check(responses, references, tokenize, **options):
    found = evaluate(responses, references, variable_k=True, **options)
    expected = nltk_numbers(responses, references, tokenize)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-9, rel=0), name
    for name in ("pairwise_bleu", "identical", "self_bleu"):
        assert name in expected or found[name] is None


def characters(text):
    return [character for character in text.lower() if not character.isspace()]


def wordpunct(text):
    return re.findall(r"\w+|[^\w\s]+", text.lower())


def rows(texts, most=4):
    """Contexts with several texts each; few different words, so that n-grams are shared and repeated."""
    return st.lists(
        st.tuples(st.lists(texts, min_size=1, max_size=most), st.lists(texts, min_size=1, max_size=most)),
        min_size=1,
        max_size=4,
    )


few_words = st.lists(st.sampled_from(["a", "B", "b", "c", "?", "..."]), max_size=9).map(" ".join)


@settings(max_examples=150)
@given(rows(few_words))
def test_equals_nltk_on_few_words(pairs):
    responses, references = zip(*pairs, strict=True)
    check(responses, references, wordpunct)


@settings(max_examples=60)
@given(rows(st.text(max_size=12), most=3))
def test_equals_nltk_on_any_text(pairs):
    responses, references = zip(*pairs, strict=True)
    check(responses, references, wordpunct)


@settings(max_examples=60)
@given(rows(st.text(alphabet="我也想买一个，。 aB", max_size=10), most=3))
def test_equals_nltk_on_characters(pairs):
    responses, references = zip(*pairs, strict=True)
    check(responses, references, characters, tokenizer="characters")


def disturbed(texts, k, seed):
    """K texts near some of the given ones or far from them, some of them short, empty or equal."""
    draw = random.Random(seed)
    near = [text.split() for text in draw.choices(texts, k=k)]
    return [
        draw.choice([" ".join(words), " ".join(words[:3]), " ".join(draw.sample(words, len(words))), ""])
        for words in near
    ]


def test_equals_nltk_on_real_english():
    conversations = itertools.islice(chitchat.conversations("valid"), 40)
    references = [list(row["turns"][:5]) for row in conversations]
    texts = [text for gold in references for text in gold]
    responses = [disturbed([*gold, *texts[:8]], 5 + n % 3, n) for n, gold in enumerate(references)]
    check(responses, references, wordpunct)


def test_equals_nltk_on_chinese():
    draw = random.Random(0)
    references = [draw.sample(CHINESE, 1 + n % 5) for n in range(30)]
    responses = [
        [*draw.sample(CHINESE, 3), *draw.choices(gold, k=2), draw.choice(CHINESE)[:2]]
        for gold in references
        for _ in (0,)
    ]
    check(responses, references, characters, tokenizer="characters")


def test_blocks_do_not_matter(monkeypatch):
    """Contexts of different sizes, so that every block is padded."""
    dialogues = list(smalltalk.generate(split="train", rows=30, form="explicit"))
    references = [list(row.responses) for row in dialogues]
    responses = [disturbed(gold, 1 + n % 6, n) for n, gold in enumerate(references)]
    whole = evaluate(responses, references, variable_k=True)
    for limit in ("_BLOCK_CELLS", "_BLOCK_CHARACTERS"):
        monkeypatch.setattr(f"polyreply.metrics.evaluation.{limit}", 100)
        parts = evaluate(responses, references, variable_k=True)
        assert parts.numbers == pytest.approx(whole.numbers, abs=1e-12)


@pytest.mark.parametrize(
    "lengths, blocks",
    [
        ([10] * 5, [(0, 5)]),
        ([50] * 5, [(0, 2), (2, 4), (4, 5)]),
        ([1000, 10, 10], [(0, 1), (1, 3)]),
        ([10, 1000, 10], [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_a_block_ends_at_a_number_of_characters(monkeypatch, lengths, blocks):
    monkeypatch.setattr(evaluation, "_BLOCK_CHARACTERS", 120)
    texts = [["x" * (length // 2)] for length in lengths]
    assert list(evaluation._blocks(texts, texts)) == blocks


@pytest.mark.parametrize(
    "response, reference, bleu1, bleu2",
    [
        ("a b c", "a b c", 100, 100),
        ("a b", "a b c d", 100 * math.exp(-1), 100 * math.exp(-1)),  # brevity penalty exp(1 - 4/2)
        ("a a a a", "a b", 25, 100 * math.sqrt(0.25 * 2.2250738585072014e-308)),  # clipped; no common pair of words
        ("a", "a", 100, 100 * math.sqrt(2.2250738585072014e-308)),  # no pair of words at all
        ("A", "a", 100, 100 * math.sqrt(2.2250738585072014e-308)),  # lower-cased
        ("", "a", 0, 0),
        ("a", "", 0, 0),
        ("", "", 0, 0),
    ],
)
def test_by_hand(response, reference, bleu1, bleu2):
    scores = evaluate([[response]], [[reference]])
    assert scores["bleu1_p"] == scores["bleu1_r"] == pytest.approx(bleu1, abs=1e-12)
    assert scores["bleu2_p"] == pytest.approx(bleu2, rel=1e-9, abs=0)


def test_f_is_the_harmonic_mean_of_the_averages():
    scores = evaluate([["a"], ["x"]], [["a", "b"], ["y"]])
    assert (scores["bleu1_p"], scores["bleu1_r"]) == (50, 25)
    assert scores["bleu1_f"] == pytest.approx(2 * 50 * 25 / 75)


def test_self_bleu_takes_the_shorter_of_two_lengths_as_close():
    check([["a b c d e f", "a b c d e", "a b c d e f g"]], [["a"]], wordpunct)


@settings(max_examples=60)
@given(st.lists(st.lists(few_words, min_size=1, max_size=4), min_size=1, max_size=4))
def test_corpus_pairwise_bleu_equals_sacrebleu(responses):
    found = evaluate(responses, variable_k=True)["corpus_pairwise_bleu"]
    pairs = [pair for texts in responses for pair in itertools.permutations(texts, 2)]
    if not pairs:
        assert found is None
        return
    hypotheses, golds = ([" ".join(wordpunct(text)) for text in side] for side in zip(*pairs, strict=True))
    assert found == pytest.approx(
        sacrebleu.corpus_bleu(hypotheses, [golds], tokenize="none", force=True).score, abs=1e-9
    )


@settings(max_examples=60)
@given(st.lists(st.lists(few_words, min_size=1, max_size=4), min_size=1, max_size=4))
def test_inter_dist(responses):
    scores = evaluate(responses, variable_k=True)
    tokens = [wordpunct(text) for texts in responses for text in texts]
    for order in (1, 2):
        grams = [gram for one in tokens for gram in zip(*(one[n:] for n in range(order)), strict=False)]
        assert scores[f"inter_dist{order}"] == pytest.approx(100 * len(set(grams)) / max(1, len(grams)))
