"""messages: ten different replies to every message, in splits that share none."""

from collections import Counter

import pytest

from polyreply.data import messages

SPLITS = ("train", "valid", "test")


@pytest.fixture(scope="module")
def rows():
    return {split: list(messages.rows(split)) for split in SPLITS}


def test_sizes_and_splits(rows):
    assert {split: len(found) for split, found in rows.items()} == {"train": 2417, "valid": 120, "test": 146}
    contexts = Counter(row["context"].casefold() for found in rows.values() for row in found)
    assert max(contexts.values()) == 1


def test_every_message_has_ten_replies_that_begin_differently(rows):
    for row in (row for found in rows.values() for row in found):
        openings = {tuple(reply.casefold().split()[:2]) for reply in row["responses"]}
        assert len(row["responses"]) == len(openings) == 10, row["context"]


def test_hardly_a_reply_fits_everything(rows):
    replies = Counter(reply.casefold() for found in rows.values() for row in found for reply in row["responses"])
    assert max(replies.values()) <= 3


def test_texts_are_short_and_plain(rows):
    for row in (row for found in rows.values() for row in found):
        for text in (row["context"], *row["responses"]):
            assert text == text.strip()
            assert text.isprintable()
            assert 1 <= len(text.split()) <= 20, text


@pytest.mark.parametrize("topic", ["driving test", "wedding", "getting married", "quit my job"])
def test_what_the_documents_show_was_not_learnt(topic, rows):
    assert not [row["context"] for found in rows.values() for row in found if topic in row["context"].casefold()]
