"""Token files: what they hold, and that the cache is never stale, half-written or damaged."""

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polyreply.data import token_corpus
from polyreply.data.context_format import ContextFormat, encode_contexts, encode_responses
from polyreply.data.dialogue import Dialogue
from polyreply.data.token_corpus import TokenCorpus
from polyreply.data.tokenizer import train_tokenizer
from polyreply.errors import DataError

DIALOGUES = [
    Dialogue(("Is the bakery open?",), ("It is.", "Only until noon.", "Ask the baker."), ("yes", "yes", "ask")),
    Dialogue(("I baked a pie.", "What is in it?"), ("Apples, mostly.",)),
    Dialogue(("Nobody answers this.",), ()),
    Dialogue(("Is the oven hot?",), ("It is.", "Not yet, wait a little.")),
]
FORMAT = ContextFormat()


def make_tokenizer(extra: str = ""):
    texts = [text for dialogue in DIALOGUES for text in (*dialogue.context, *dialogue.responses)]
    return train_tokenizer([*texts, extra], vocab_size=400)


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture
def dialogue_file(tmp_path):
    path = tmp_path / "train.jsonl"
    rows = [{"context": list(d.context), "responses": list(d.responses)} for d in DIALOGUES if d.responses]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def build_counting(path, tokenizer, format=FORMAT, cache_dir=None):
    """Build, and return whether the tokenizer was called."""
    asked = []

    class Counting(type(tokenizer)):
        def __call__(self, *args, **kwargs):
            asked.append(args)
            return super().__call__(*args, **kwargs)

    kind, tokenizer.__class__ = tokenizer.__class__, Counting
    try:
        corpus = TokenCorpus.build(path, tokenizer, format, cache_dir)
    finally:
        tokenizer.__class__ = kind
    return corpus, bool(asked)


def contents(corpus):
    return [(corpus.context_ids(i).tolist(), corpus.response_ids(i).tolist()) for i in range(len(corpus))]


@pytest.mark.parametrize("chunk", [1, 2, 16384])
@pytest.mark.parametrize("group", [1, 3])
def test_each_response_is_a_sample_with_the_context_of_its_row(tokenizer, tmp_path, monkeypatch, chunk, group):
    monkeypatch.setattr(token_corpus, "CHUNK", chunk)
    monkeypatch.setattr(token_corpus, "DIALOGUES_AT_ONCE", group)
    corpus = TokenCorpus.from_dialogues(iter(DIALOGUES), tokenizer, FORMAT, tmp_path / "tokens.arrow")
    pairs = [(d.context, response) for d in DIALOGUES for response in d.responses]
    expected_contexts, _ = encode_contexts(tokenizer, [context for context, _ in pairs], FORMAT)
    expected_responses, _ = encode_responses(tokenizer, [response for _, response in pairs], FORMAT)
    expected = [(c.tolist(), r.tolist()) for c, r in zip(expected_contexts, expected_responses, strict=True)]
    assert len(corpus) == 6
    assert contents(corpus) == expected
    assert corpus.context_lengths.tolist() == [len(context) for context, _ in expected]
    assert corpus.response_lengths.tolist() == [len(response) for _, response in expected]
    assert corpus.context_lengths.dtype == corpus.response_lengths.dtype == np.int32
    assert corpus.is_intact()


def test_contexts_are_stored_once_and_acts_not_at_all(tokenizer, tmp_path):
    long = "the oven and the pie " * 10
    many = [Dialogue((long,), ("It is.",) * 50, ("secretact",) * 50)]
    format = ContextFormat(max_context_tokens=4096)
    path = tmp_path / "tokens.arrow"
    corpus = TokenCorpus.from_dialogues(many, tokenizer, format, path)
    assert path.stat().st_size < 50 * 4 * corpus.context_lengths[0]
    assert b"secretact" not in path.read_bytes()
    without = TokenCorpus.from_dialogues([replace(many[0], acts=())], tokenizer, format, tmp_path / "b.arrow")
    assert path.read_bytes() == without.path.read_bytes()


def test_ids_are_views_of_the_file(tokenizer, tmp_path):
    corpus = TokenCorpus.from_dialogues(DIALOGUES, tokenizer, FORMAT, tmp_path / "tokens.arrow")
    assert not corpus.context_ids(0).flags.writeable
    assert not corpus.context_ids(0).flags.owndata
    with pytest.raises(IndexError):
        corpus.context_ids(6)
    with pytest.raises(IndexError):
        corpus.response_ids(-1)


def test_the_report_counts_what_was_cut(tokenizer, tmp_path):
    format = ContextFormat(max_context_tokens=4, max_response_tokens=3)
    corpus = TokenCorpus.from_dialogues(DIALOGUES, tokenizer, format, tmp_path / "tokens.arrow")
    assert max(corpus.context_lengths) == 4
    assert max(corpus.response_lengths) == 3
    _, contexts = encode_contexts(tokenizer, [d.context for d in DIALOGUES], format)
    _, responses = encode_responses(tokenizer, [r for d in DIALOGUES for r in d.responses], format)
    assert contexts.contexts_lost_turns == 1
    assert contexts.contexts_cut_inside_turn >= 3
    assert corpus.truncation == vars(contexts + responses)


# --- the cache --------------------------------------------------------------------------------------------


def test_a_second_build_does_not_tokenise(tokenizer, dialogue_file, tmp_path):
    first, asked = build_counting(dialogue_file, tokenizer, cache_dir=tmp_path / "cache")
    assert asked
    before = first.path.stat()
    second, asked = build_counting(dialogue_file, tokenizer, cache_dir=tmp_path / "cache")
    assert not asked
    assert (second.path.stat().st_ino, second.path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert contents(second) == contents(first)
    assert second.truncation == first.truncation


def test_another_file_of_the_same_size_and_time_is_not_confused(tokenizer, dialogue_file, tmp_path):
    build_counting(dialogue_file, tokenizer, cache_dir=tmp_path / "cache")
    before = dialogue_file.stat()
    dialogue_file.write_text(dialogue_file.read_text().replace("noon", "nine"))
    os.utime(dialogue_file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (dialogue_file.stat().st_size, dialogue_file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    corpus, asked = build_counting(dialogue_file, tokenizer, cache_dir=tmp_path / "cache")
    assert asked
    assert "nine" in tokenizer.decode(corpus.response_ids(1))


@pytest.mark.parametrize(
    "change",
    [
        {"turn_separator": "/"},
        {"prefix": "pie:"},
        {"chat_template": True},
        {"max_context_tokens": 200},
        {"max_response_tokens": 100},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_changed_format_is_built_again(dialogue_file, tmp_path, change):
    chatty = make_tokenizer()
    chatty.chat_template = "{% for m in messages %}{{ m['role'] + m['content'] }}{% endfor %}"
    build_counting(dialogue_file, chatty, cache_dir=tmp_path / "cache")
    _, asked = build_counting(dialogue_file, chatty, replace(FORMAT, **change), tmp_path / "cache")
    assert asked
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_changed_tokenizer_is_built_again(tokenizer, dialogue_file, tmp_path):
    build_counting(dialogue_file, tokenizer, cache_dir=tmp_path / "cache")
    _, asked = build_counting(dialogue_file, make_tokenizer("quince jelly, quince"), cache_dir=tmp_path / "cache")
    assert asked
    changed = make_tokenizer()
    _, asked = build_counting(dialogue_file, changed, cache_dir=tmp_path / "cache")
    assert not asked
    changed.add_tokens(["bakery"])
    _, asked = build_counting(dialogue_file, changed, cache_dir=tmp_path / "cache")
    assert asked


def cut_half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def cut_end(data: bytes) -> bytes:
    return data[:-1]


def empty(data: bytes) -> bytes:
    return b""


def flip_every_hundredth(data: bytes) -> bytes:
    return bytes(byte ^ 255 if i % 100 == 50 else byte for i, byte in enumerate(data))


def without_report(data: bytes) -> bytes:
    import io

    import pyarrow as pa

    reader, sink = pa.ipc.open_file(io.BytesIO(data)), io.BytesIO()
    with pa.ipc.new_file(sink, reader.schema) as writer:
        writer.write_batch(reader.get_batch(0))
    return sink.getvalue()


@pytest.mark.parametrize("damage", [cut_half, cut_end, empty, flip_every_hundredth, without_report])
def test_a_damaged_cache_is_built_again(tokenizer, dialogue_file, tmp_path, damage):
    corpus, _ = build_counting(dialogue_file, tokenizer, cache_dir=tmp_path / "cache")
    expected, good, path = contents(corpus), corpus.path.read_bytes(), corpus.path
    path.unlink()
    path.write_bytes(damage(good))
    corpus, asked = build_counting(dialogue_file, tokenizer, cache_dir=tmp_path / "cache")
    assert asked
    assert contents(corpus) == expected
    assert path.read_bytes() == good


def test_one_changed_token_is_found_by_the_checksum(tokenizer, dialogue_file, tmp_path):
    corpus, _ = build_counting(dialogue_file, tokenizer, cache_dir=tmp_path / "cache")
    path, good = corpus.path, corpus.path.read_bytes()
    needle = corpus.response_ids(1).tobytes()
    assert good.count(needle) == 1
    path.unlink()
    path.write_bytes(good.replace(needle, needle[:4] + b"\x07" + needle[5:]))
    assert not TokenCorpus(path).is_intact()
    corpus, asked = build_counting(dialogue_file, tokenizer, cache_dir=tmp_path / "cache")
    assert asked
    assert path.read_bytes() == good


def test_a_failed_build_leaves_nothing_behind(tokenizer, tmp_path):
    def breaking():
        yield DIALOGUES[0]
        raise DataError("row 2 is bad")

    with pytest.raises(DataError, match="row 2 is bad"):
        TokenCorpus.from_dialogues(breaking(), tokenizer, FORMAT, tmp_path / "cache" / "tokens.arrow")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_killed_build_is_built_again_and_its_rest_removed_after_a_day(tokenizer, dialogue_file, tmp_path):
    corpus, _ = build_counting(dialogue_file, tokenizer, cache_dir=tmp_path / "cache")
    half = corpus.path.read_bytes()[:500]
    corpus.path.unlink()
    fresh, old = (corpus.path.with_name(f"{corpus.path.name}.{name}.tmp") for name in ("fresh", "old"))
    for left in (fresh, old):
        left.write_bytes(half)
    os.utime(old, (time.time() - 2 * 86400,) * 2)
    again, asked = build_counting(dialogue_file, tokenizer, cache_dir=tmp_path / "cache")
    assert asked
    assert contents(again) == contents(corpus)
    assert fresh.exists()
    assert not old.exists()


def test_a_file_that_changes_while_it_is_read_is_not_cached(tokenizer, dialogue_file, tmp_path, monkeypatch):
    def read_and_change(path, **options):
        yield from DIALOGUES
        path.write_text(path.read_text() + "\n")

    monkeypatch.setattr(token_corpus, "read_dialogues", read_and_change)
    with pytest.raises(DataError, match="changed while it was read"):
        TokenCorpus.build(dialogue_file, tokenizer, FORMAT, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_builds_at_once_do_not_harm_each_other(dialogue_file, tmp_path):
    start = threading.Barrier(3)

    def build_often(_):
        own = make_tokenizer()
        start.wait()
        found = []
        for _ in range(15):
            corpus = TokenCorpus.build(dialogue_file, own, FORMAT, tmp_path / "cache")
            assert corpus.is_intact()
            found.append(contents(corpus))
            corpus.path.unlink(missing_ok=True)  # even when another builder throws the cache away
        TokenCorpus.build(dialogue_file, own, FORMAT, tmp_path / "cache")
        return found

    with ThreadPoolExecutor(3) as pool:
        found = [contents for many in pool.map(build_often, range(3)) for contents in many]
    assert all(contents == found[0] for contents in found)
    (only,) = (tmp_path / "cache").iterdir()
    assert TokenCorpus(only).is_intact()


def test_the_cache_is_where_the_environment_says(tokenizer, dialogue_file, tmp_path, monkeypatch):
    monkeypatch.setenv("POLYREPLY_CACHE", str(tmp_path / "named"))
    assert TokenCorpus.build(dialogue_file, tokenizer, FORMAT).path.parent == tmp_path / "named" / "tokens"
    monkeypatch.delenv("POLYREPLY_CACHE")
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    expected = tmp_path / "home" / ".cache" / "polyreply" / "tokens"
    assert TokenCorpus.build(dialogue_file, tokenizer, FORMAT).path.parent == expected


def test_bad_input_is_one_line(tokenizer, dialogue_file, tmp_path):
    with pytest.raises(DataError, match="no response to tokenise"):
        TokenCorpus.from_dialogues([DIALOGUES[2]], tokenizer, FORMAT, tmp_path / "tokens.arrow")
    with pytest.raises(DataError, match=r"cannot read dialogues from .*missing"):
        TokenCorpus.build(tmp_path / "missing.jsonl", tokenizer, FORMAT, tmp_path / "cache")
    with pytest.raises(DataError, match="token file") as caught:
        TokenCorpus(dialogue_file)
    assert "\n" not in str(caught.value)
    (tmp_path / "taken").write_text("a file where the folder should be")
    with pytest.raises(DataError, match="cannot write tokens to"):
        TokenCorpus.build(dialogue_file, tokenizer, FORMAT, tmp_path / "taken")
