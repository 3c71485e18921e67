"""The smalltalk corpus: what it promises about its size, its splits, its acts and its labeller."""

import random
import re
from collections import Counter, defaultdict
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyreply.data.smalltalk import ACTS, generate, label
from polyreply.data.smalltalk.content import frames, phrasings, shared_slots, slot_names, topics
from polyreply.errors import DataError

TOPICS, PHRASINGS = topics(), phrasings()
SLOTS = [*shared_slots().values(), *(slot for topic in TOPICS for slot in topic.slots.values())]
SPLITS = ("train", "valid", "test")
FORMS = ("explicit", "implicit")
UNSEEN = {
    "doing": "juggling seven flaming torches",
    "thing": "the torches of doom",
    "who": "your tall ship's cook",
    "place": "Upper Wobbleton",
    "when": "on the night of the long moon",
    "often": "under a full moon",
    "Doing": "Juggling seven flaming torches",
}


@pytest.fixture(scope="module")
def contexts():
    """Split -> {context: topic}, for every context there is."""
    found = {}
    for split in SPLITS:
        listed = [(f.text.format_map(v), f.topic) for f in frames(split) for v in f.fillings()]
        found[split] = dict(listed)
        assert len(found[split]) == len(listed), "two templates give the same context"
    return found


@pytest.fixture(scope="module")
def rows():
    """Split -> implicit rows."""
    return {split: list(generate(split=split, rows=4_000, seed=5, form="implicit")) for split in SPLITS}


def pairs(dialogues):
    return [(row.context[0], response) for row in dialogues for response in row.responses]


def shuffled(text, rng):
    """The words of a text in another order."""
    words = text.split()
    other = words[:]
    while other == words:
        rng.shuffle(other)
    return " ".join(other)


def values(split):
    return [value for slot in SLOTS for value in slot[split]]


def test_counts(contexts):
    assert len(TOPICS) == len({topic.name for topic in TOPICS}) >= 30
    assert " ".join(ACTS) == "agree disagree ask advise sympathise experience joke doubt praise change"
    assert all(len(phrasings) >= 25 for phrasings in PHRASINGS.values())
    assert len(contexts["train"]) >= 50_000
    assert min(len(contexts["valid"]), len(contexts["test"])) >= 5_000
    for topic in TOPICS:
        assert len(topic.lines["train"]) >= 4
        assert topic.lines["valid"] and topic.lines["test"]


def test_every_line_fills_what_the_reply_needs():
    for split in SPLITS:
        for frame in frames(split):
            for template in frame.reply.values():
                assert set(slot_names(template)) <= set(frame.values), frame.text


def test_every_phrasing_is_of_one_act_and_uses_a_slot():
    every = [phrasing for phrasings in PHRASINGS.values() for phrasing in phrasings]
    assert len(every) == len({phrasing.lower() for phrasing in every})
    assert all(slot_names(phrasing) for phrasing in every)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("split", SPLITS)
def test_same_seed_same_rows_and_a_prefix(split, form):
    long = list(generate(split=split, rows=1_000, seed=3, form=form))
    assert long == list(generate(split=split, rows=1_000, seed=3, form=form))
    assert long[:10] == list(generate(split=split, rows=10, seed=3, form=form))
    assert long != list(generate(split=split, rows=1_000, seed=4, form=form))
    assert len(long) == 1_000


def test_generation_is_lazy():
    assert next(generate(split="train", rows=10**12, seed=0, form="implicit")).acts[0] in ACTS


def test_implicit_rows_have_one_response_and_explicit_rows_three_to_six_of_distinct_acts():
    assert all(len(row.responses) == len(row.acts) == 1 for row in generate(rows=500, form="implicit"))
    sizes = Counter()
    for row in generate(rows=2_000, form="explicit"):
        assert len(row.context) == 1
        assert len(row.responses) == len(row.acts) == len(set(row.acts))
        sizes[len(row.acts)] += 1
    assert set(sizes) == {3, 4, 5, 6}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("split", SPLITS)
def test_no_pair_comes_twice(split, form):
    found = pairs(generate(split=split, rows=4_000, seed=1, form=form))
    assert len(found) == len(set(found))


def test_all_explicit_contexts_come_before_the_split_ends(contexts):
    total = len(contexts["test"])
    found = {row.context[0] for row in generate(split="test", rows=total, form="explicit")}
    assert found == set(contexts["test"])
    with pytest.raises(DataError, match=f"test ends after {total} explicit rows; ask for at most {total} rows"):
        list(generate(split="test", rows=total + 1, form="explicit"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"split": "dev", "rows": 1}, "splits train, valid and test, not 'dev'"),
        ({"form": "both", "rows": 1}, "forms explicit and implicit, not 'both'"),
        ({"rows": -1}, "rows must be 0 or more, not -1"),
    ],
)
def test_wrong_arguments_are_named(wrong, message):
    with pytest.raises(DataError, match=message):
        generate(**wrong)


@pytest.mark.parametrize(("one", "other"), tuple(combinations(SPLITS, 2)))
def test_splits_share_no_template_no_value_and_no_context(one, other, contexts):
    assert not {f.text for f in frames(one)} & {f.text for f in frames(other)}
    assert not {value.lower() for value in values(one)} & {value.lower() for value in values(other)}
    assert not contexts[one].keys() & contexts[other].keys()


def test_slot_values_are_written_once():
    for slot in SLOTS:
        for split in SPLITS:
            assert len(slot[split]) == len(set(slot[split])) >= 3


def chi_square(counts):
    expected = sum(counts.values()) / len(ACTS)
    return sum((counts[act] - expected) ** 2 / expected for act in ACTS)


@pytest.mark.parametrize("form", FORMS)
def test_acts_are_uniform_over_all_and_in_every_topic(form, contexts):
    """Chi-square with 9 degrees of freedom exceeds 45 once in a million times."""
    by_topic = defaultdict(Counter)
    for row in generate(split="train", rows=15_000, seed=11, form=form):
        by_topic[contexts["train"][row.context[0]]].update(row.acts)
    assert len(by_topic) == len(TOPICS)
    assert chi_square(sum(by_topic.values(), Counter())) < 45
    for topic, counts in by_topic.items():
        assert chi_square(counts) < 45, topic


@pytest.mark.parametrize("split", SPLITS)
def test_labeller_knows_its_own_replies(split, rows):
    wrong = [(row.responses[0], row.acts[0]) for row in rows[split] if label(row.responses[0]) != row.acts[0]]
    assert not wrong


@pytest.mark.parametrize("split", SPLITS)
def test_labeller_refuses_shuffled_words_and_contexts(split, rows):
    rng = random.Random(7)
    labelled = sum(label(shuffled(row.responses[0], rng)) is not None for row in rows[split])
    assert labelled <= 0.01 * len(rows[split])
    unmarked = [re.sub(r"[,.?!]", "", row.responses[0]) for row in rows[split]]
    assert sum(label(shuffled(text, rng)) is not None for text in unmarked) <= 0.01 * len(unmarked)
    assert all(label(row.context[0]) is None for row in rows[split])


def test_labeller_refuses_random_words(rows):
    rng = random.Random(8)
    vocabulary = sorted({word for row in rows["train"] for word in row.responses[0].split()})
    texts = [" ".join(rng.choices(vocabulary, k=rng.randint(1, 18))) for _ in range(4_000)]
    assert all(label(text) is None for text in texts)


@pytest.mark.parametrize(
    "text", ["", " ", ".", "?!", "Yes.", "I", "Yes, I'm all for .", "Yes, I'm all for the.", "{doing}"]
)
def test_labeller_refuses_fragments(text):
    assert label(text) is None


@given(st.text())
def test_labeller_takes_any_text(text):
    assert label(text) in (None, *ACTS)


@pytest.mark.parametrize("act", ACTS)
def test_labeller_tolerates_unseen_fillers_case_spaces_and_missing_marks(act):
    for phrasing in PHRASINGS[act]:
        reply = phrasing.format_map(UNSEEN)
        assert label(reply) == act
        assert label(reply.lower().rstrip(".?!")) == act
        assert label("  " + reply.replace(" ", "\n ").replace(",", " ,").replace("'", "’") + " ") == act


def test_labeller_does_not_run_over_sentences():
    assert label("I admire you for juggling.") == "praise"
    assert label("I admire you for juggling. It is hot today.") is None
    assert label("I admire you for " + "juggling " * 30) is None


def test_texts_are_tidy(contexts, rows):
    replies = {response for split in SPLITS for row in rows[split] for response in row.responses}
    contexts = {context for split in SPLITS for context in random.Random(2).sample(sorted(contexts[split]), 4_000)}
    for text in replies | contexts:
        assert not re.search(r"[{}]|  |\s[,.?!]|^\s|\s$|[^\S ]", text), text
        assert re.fullmatch(r"[A-Z].*[.?!]", text), text
        assert not re.search(r"[.?!] [a-z]", text), text
        assert not re.search(r"\ba [aeiou]", text, re.IGNORECASE), text
        assert not re.search(r"\ban (?!hour\b)[^aeiou]", text, re.IGNORECASE), text
        assert not re.search(r"\b(?!knock)(\w+) \1\b", text.lower()), text


def test_replies_speak_from_the_other_side():
    """The speaker's "my sister" is the replier's "your sister"; nothing else that is shared names an owner."""
    for split in SPLITS:
        for frame in frames(split):
            for kind in ("kin", "friend"):
                if kind in frame.values and "name" not in frame.values:
                    assert f"my {{{kind}}}" in frame.text.lower(), frame.text
                    assert frame.reply["who"] == f"your {{{kind}}}"
    shared = [text for topic in TOPICS for text in (topic.doing, topic.thing)]
    for text in [*shared, *(value for split in SPLITS for value in values(split))]:
        assert not re.search(r"\b(I|me|my|mine|you|your|yours|our|us)\b", text), text


def test_replies_are_short_and_longer(rows):
    lengths = Counter(len(row.responses[0].split()) for row in rows["train"])
    assert min(lengths) >= 4
    assert max(lengths) <= 24
    assert sum(count for length, count in lengths.items() if length <= 7) > 0.1 * lengths.total()
    assert sum(count for length, count in lengths.items() if length >= 12) > 0.1 * lengths.total()


@pytest.mark.slow
def test_a_million_distinct_train_pairs():
    assert len(set(map(hash, pairs(generate(split="train", rows=1_000_000, form="implicit"))))) > 999_990
