"""Events on disk: each exactly once, in their order, durable."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyreply.study.answers import UNDO, Answers, OtherItemError, StaleTurnError, answered

ITEMS = [f"item {n}" for n in range(6)]


@pytest.fixture
def answers(tmp_path):
    Answers.create(tmp_path / "a.sqlite", "id")
    opened = Answers(tmp_path / "a.sqlite", "id")
    yield opened
    opened.close()


def test_commits_are_synchronised_to_disk(answers):
    assert answers._database.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    assert answers._database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_repeated_request_counts_once(answers):
    first = answers.record("bo", 0, ITEMS[0], "1", ITEMS, 2.5)
    assert answers.record("bo", 0, ITEMS[0], "1", ITEMS, 9.0) == first and len(answers.events("bo")) == 1
    answers.record("bo", 1, ITEMS[1], "2", ITEMS)
    assert len(answers.record("bo", 0, ITEMS[0], "1", ITEMS)) == 2  # a late repeat of the first


@pytest.mark.parametrize(
    "turn, item, action",
    [
        (0, ITEMS[0], "2"),
        (0, ITEMS[1], "1"),
        (1, ITEMS[0], "1"),
        (1, ITEMS[2], "1"),
        (2, ITEMS[1], "1"),
        (1, ITEMS[1], UNDO),
    ],
)
def test_an_outdated_page_changes_nothing(answers, turn, item, action):
    before = answers.record("bo", 0, ITEMS[0], "1", ITEMS)
    with pytest.raises(StaleTurnError):
        answers.record("bo", turn, item, action, ITEMS)
    assert answers.events("bo") == before


def test_somebody_elses_item_is_refused(answers):
    with pytest.raises(OtherItemError):
        answers.record("bo", 0, "theirs", "1", ITEMS)
    assert answers.count() == 0


def test_undo_takes_back_the_last_and_keeps_a_trace(answers):
    for turn, (item, action) in enumerate([(ITEMS[0], "1"), (ITEMS[1], "2"), (ITEMS[1], UNDO), (ITEMS[1], "tie")]):
        events = answers.record("bo", turn, item, action, ITEMS)
    assert [event.action for event in answered(events)] == ["1", "tie"] and len(events) == 4
    with pytest.raises(StaleTurnError):  # the undo again, late
        answers.record("bo", 2, ITEMS[1], "2", ITEMS)
    assert len(answers.record("bo", 2, ITEMS[1], UNDO, ITEMS)) == 4


@given(st.lists(st.sampled_from(["1", "2", "tie", UNDO]), max_size=30))
def test_what_is_answered_is_always_the_first_items(actions):
    """Any session that the page can produce: answers and undos, against a plain stack."""
    stack, events = [], []
    for action in actions:
        if action == UNDO and not stack:
            continue
        item = ITEMS[0] if action != UNDO else stack[-1][0]
        stack = stack[:-1] if action == UNDO else [*stack, (item, action)]
        events.append(type("E", (), {"item": item, "action": action})())
    assert [(event.item, event.action) for event in answered(events)] == stack


def test_many_threads_and_two_connections_never_lose_or_double(tmp_path):
    Answers.create(tmp_path / "a.sqlite", "id")
    connections = [Answers(tmp_path / "a.sqlite", "id") for _ in range(2)]
    names = [f"annotator {n}" for n in range(6)]
    problems = []

    def work(name, place):
        try:
            for turn, item in enumerate(ITEMS):
                for _ in range(2):  # every request is sent twice
                    connections[(turn + place) % 2].record(name, turn, item, "tie", ITEMS)
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(name, place)) for place, name in enumerate(names)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems and connections[0].count() == len(names) * len(ITEMS)
    assert all([event.item for event in connections[1].events(name)] == ITEMS for name in names)
    for connection in connections:
        connection.close()
