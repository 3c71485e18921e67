"""Batches and streams: every sample once, the same order every time, resumable anywhere, little padding."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyreply.data.batches import BucketedStream, ContextDrawStream, DrawStream, collate
from polyreply.data.context_format import ContextFormat
from polyreply.data.dialogue import Dialogue
from polyreply.data.token_corpus import TokenCorpus
from polyreply.data.tokenizer import train_tokenizer
from polyreply.errors import DataError
from polyreply.models.score import Samples

RELAXED = settings(deadline=None, max_examples=60)


def lengths(num_samples: int, seed: int = 0):
    """Context and response lengths that look like those of dialogues: skewed, with repeats."""
    rng = np.random.default_rng(seed)
    contexts, responses = rng.geometric(0.06, size=(2, num_samples))
    return contexts.astype(np.int32), responses.astype(np.int32)


def contexts(num_samples: int, seed: int = 0):
    """The context of each sample: runs of 1 to 12 samples, numbered by the first of them."""
    counts = np.random.default_rng(seed).integers(1, 13, size=num_samples)
    firsts = np.cumsum(counts) - counts
    return np.repeat(firsts, counts)[:num_samples]


def make(kind: str, num_samples: int, size: int, seed: int = 0, rank: int = 0, world_size: int = 1):
    where = {"seed": seed, "rank": rank, "world_size": world_size}
    if kind == "draws":
        return DrawStream(num_samples, size=size, **where)
    if kind == "contexts":
        return ContextDrawStream(contexts(num_samples), size=size, **where)
    if kind == "rows":
        return BucketedStream(*lengths(num_samples), rows=size, **where)
    return BucketedStream(*lengths(num_samples), max_tokens=40 * size, **where)


def take(stream, count: int) -> list[list[int]]:
    return [ids.tolist() for ids in itertools.islice(stream, count)]


def epoch_of(stream):
    """The batches up to the end of the current epoch."""
    return list(itertools.islice(stream, stream.num_steps(stream.epoch) - stream.step))


def union(shares_per_rank: list[list[list[int]]]) -> list[list[int]]:
    """The global batch of each step, sorted, from what the ranks saw."""
    return [sorted(itertools.chain(*shares)) for shares in zip(*shares_per_rank, strict=True)]


KIND = st.sampled_from(["draws", "contexts", "rows", "tokens"])
SAMPLES = st.integers(1, 120)
SIZE = st.integers(1, 40)
WORLD = st.integers(1, 5)


# --- streams ----------------------------------------------------------------------------------------------


@RELAXED
@given(KIND, SAMPLES, SIZE, WORLD, st.integers(0, 3))
def test_an_epoch_has_every_sample_once_over_the_ranks(kind, num_samples, size, world_size, epoch):
    steps = make(kind, num_samples, size).num_steps(epoch)
    ranks = []
    for rank in range(world_size):
        stream = make(kind, num_samples, size, rank=rank, world_size=world_size)
        assert stream.num_steps(epoch) == steps
        stream.load_state_dict({**stream.state_dict(), "epoch": epoch, "step": 0})
        ranks.append([ids.tolist() for ids in epoch_of(stream)])
        assert len(ranks[-1]) == steps
        assert (stream.epoch, stream.step) == (epoch + 1, 0)
    assert sorted(itertools.chain(*union(ranks))) == list(range(num_samples))


@RELAXED
@given(KIND, SAMPLES, SIZE, WORLD)
def test_the_ranks_together_see_the_batches_of_one_process(kind, num_samples, size, world_size):
    whole = [sorted(ids) for ids in take(make(kind, num_samples, size), 9)]
    ranks = [take(make(kind, num_samples, size, rank=r, world_size=world_size), 9) for r in range(world_size)]
    assert union(ranks) == whole
    for shares in zip(*ranks, strict=True):
        counts = [len(share) for share in shares]
        assert max(counts) - min(counts) <= 1


@RELAXED
@given(KIND, SAMPLES, SIZE, WORLD, WORLD, st.integers(0, 12))
def test_a_resumed_run_continues_with_any_number_of_processes(kind, num_samples, size, before, after, stop):
    uninterrupted = [sorted(ids) for ids in take(make(kind, num_samples, size, seed=3), stop + 6)]
    states = []
    for rank in range(before):
        stream = make(kind, num_samples, size, seed=3, rank=rank, world_size=before)
        take(stream, stop)
        states.append(json.dumps(stream.state_dict()))
    assert len(set(states)) == 1
    resumed = []
    for rank in range(after):
        stream = make(kind, num_samples, size, seed=3, rank=rank, world_size=after)
        stream.load_state_dict(json.loads(states[0]))
        resumed.append(take(stream, 6))
    assert union(resumed) == uninterrupted[stop:]


@RELAXED
@given(KIND, SAMPLES, SIZE, st.integers(0, 12))
def test_resuming_in_one_process_keeps_the_order_inside_batches(kind, num_samples, size, stop):
    stream = make(kind, num_samples, size)
    take(stream, stop)
    copy = make(kind, num_samples, size)
    copy.load_state_dict(stream.state_dict())
    assert take(copy, 6) == take(stream, 6)


@pytest.mark.parametrize("kind", ["draws", "rows", "tokens"])
def test_seeds_and_epochs_give_other_batches_in_another_order(kind):
    def epochs(seed):
        stream = make(kind, 500, 10, seed=seed)
        return [[ids.tolist() for ids in epoch_of(stream)] for _ in range(2)]

    (first, second), other = epochs(0), epochs(1)[0]
    assert epochs(0) == [first, second]
    for another in (second, other):
        same = {tuple(sorted(ids)) for ids in first} & {tuple(sorted(ids)) for ids in another}
        assert len(same) < len(first) / 4
    sizes = [[len(ids) for ids in epoch] for epoch in (first, second)]
    assert kind != "tokens" or sizes[0] != sizes[1]


def test_short_and_long_batches_are_mixed_in_the_order():
    contexts, responses = lengths(2000)
    means = [contexts[ids].mean() for ids in epoch_of(BucketedStream(contexts, responses, rows=20))]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.3
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.4


def test_a_draw_ignores_the_order_of_the_corpus():
    first = next(DrawStream(10_000, size=640))
    assert len(first) == 640
    assert abs(first.mean() - 5000) < 500
    assert [len(ids) for ids in epoch_of(DrawStream(10, size=4))] == [4, 4, 2]


@RELAXED
@given(SAMPLES, st.integers(1, 400), st.integers(0, 5))
def test_the_token_budget_holds(num_samples, max_tokens, seed):
    contexts, responses = lengths(num_samples, seed)
    for ids in epoch_of(BucketedStream(contexts, responses, max_tokens=max_tokens, seed=seed)):
        assert len(ids) == 1 or len(ids) * (contexts[ids].max() + responses[ids].max()) <= max_tokens


def test_the_token_budget_is_used():
    contexts, responses = lengths(5000)
    stream = BucketedStream(contexts, responses, max_tokens=2000)
    cells = [len(ids) * (contexts[ids].max() + responses[ids].max()) for ids in epoch_of(stream)]
    assert np.mean(cells) > 0.9 * 2000


@RELAXED
@given(SAMPLES, SIZE, st.integers(0, 3))
def test_the_padding_share_is_what_the_batches_waste(num_samples, rows, epoch):
    contexts, responses = lengths(num_samples)
    stream = BucketedStream(contexts, responses, rows=rows)
    stream.load_state_dict({**stream.state_dict(), "epoch": epoch})
    batches = list(epoch_of(stream))
    cells = sum(len(ids) * int(contexts[ids].max() + responses[ids].max()) for ids in batches)
    assert stream.padding_share(epoch) == pytest.approx(1 - (contexts.sum() + responses.sum()) / cells)


def test_batches_pad_far_less_than_those_sorted_by_one_length():
    contexts, responses = lengths(20_000)
    share = BucketedStream(contexts, responses, rows=64).padding_share()

    def of_order(order):
        batches = [order[i : i + 64] for i in range(0, len(order), 64)]
        cells = sum(len(ids) * int(contexts[ids].max() + responses[ids].max()) for ids in batches)
        return 1 - (contexts.sum() + responses.sum()) / cells

    assert share < 0.5 * of_order(np.lexsort((responses, contexts)))
    assert share < 0.13 < 0.3 < of_order(np.argsort(contexts + responses))


@pytest.mark.parametrize(
    ("change", "name"),
    [({"seed": 1}, "seed"), ({"rows": 9}, "rows"), ({"num_samples": 31}, "num_samples"), ({"other": 1}, "lengths")],
)
def test_a_state_of_another_run_is_refused(change, name):
    settings = {"seed": 0, "rows": 8, "num_samples": 30, "other": 0} | change
    state = BucketedStream(*lengths(30), rows=8, seed=0).state_dict()
    contexts, responses = lengths(settings["num_samples"], settings["other"])
    stream = BucketedStream(contexts, responses, rows=settings["rows"], seed=settings["seed"])
    with pytest.raises(DataError, match=f"the saved state has {name} .* this run has"):
        stream.load_state_dict(state)
    assert (stream.epoch, stream.step) == (0, 0)


def test_states_of_other_streams_and_damaged_ones_are_refused():
    stream = DrawStream(30, size=8)
    with pytest.raises(DataError, match="stream buckets"):
        stream.load_state_dict(BucketedStream(*lengths(30), rows=8).state_dict())
    with pytest.raises(DataError, match="size 9"):
        stream.load_state_dict(DrawStream(30, size=9).state_dict())
    for damaged in ({"step": 4}, {"step": -1}, {"epoch": -1}):
        with pytest.raises(DataError, match="the state is damaged"):
            stream.load_state_dict(stream.state_dict() | damaged)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: BucketedStream(*lengths(5), rows=0), "rows must be 1 or more"),
        (lambda: BucketedStream(*lengths(5), max_tokens=0), "max_tokens must be 1 or more"),
        (lambda: BucketedStream(*lengths(5), rows=2, max_tokens=9), "rows or by max_tokens, not both"),
        (lambda: BucketedStream(*lengths(0), rows=2), "at least one sample"),
        (lambda: DrawStream(0, size=2), "at least one sample"),
        (lambda: DrawStream(5, size=0), "size must be 1 or more"),
        (lambda: DrawStream(5, size=2, seed=-1), "a seed is 0 or more"),
        (lambda: DrawStream(5, size=2, rank=2, world_size=2), "rank 2 is not one of 2"),
    ],
)
def test_impossible_streams_are_refused(build, message):
    with pytest.raises(DataError, match=message):
        build()


# --- collating --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    dialogues = [
        Dialogue(("Where is the ferry?",), ("At the pier, I think.", "Gone.")),
        Dialogue(("Wait.",), ("For how long, and for whom exactly?",)),
    ]
    texts = [text for dialogue in dialogues for text in (*dialogue.context, *dialogue.responses)]
    tokenizer = train_tokenizer(texts, vocab_size=400)
    path = tmp_path_factory.mktemp("tokens") / "tokens.arrow"
    return TokenCorpus.from_dialogues(dialogues, tokenizer, ContextFormat(), path)


@pytest.mark.parametrize("samples", [[0], [2, 0], [0, 1, 2], [1, 1]])
def test_rows_are_padded_on_the_right_to_the_longest_only(corpus, samples):
    batch = collate(corpus, np.array(samples), pad_id=77)
    assert batch.sample_ids_B.tolist() == samples
    for padded, mask, ids_of in (
        (batch.context_BS, batch.context_mask_BS, corpus.context_ids),
        (batch.response_BT, batch.response_mask_BT, corpus.response_ids),
    ):
        rows = [ids_of(sample).tolist() for sample in samples]
        longest = max(map(len, rows))
        assert padded.tolist() == [row + [77] * (longest - len(row)) for row in rows]
        assert mask.tolist() == [[True] * len(row) + [False] * (longest - len(row)) for row in rows]


def test_an_empty_share_makes_an_empty_batch(corpus):
    batch = collate(corpus, np.array([], dtype=np.int64), pad_id=0)
    assert batch.context_BS.shape == batch.response_BT.shape == (0, 0)
    assert len(Samples.of(batch)) == 0


def test_samples_are_the_arrays_of_a_batch_as_tensors(corpus):
    batch = collate(corpus, np.array([0, 2]), pad_id=0)
    samples = Samples.of(batch)
    for tensor, array in (
        (samples.context_NS, batch.context_BS),
        (samples.context_mask_NS, batch.context_mask_BS),
        (samples.response_NT, batch.response_BT),
        (samples.response_mask_NT, batch.response_mask_BT),
    ):
        assert tensor.tolist() == array.tolist()
        assert tensor.numpy().dtype == array.dtype  # int64 and bool, as the models expect


def test_a_stream_over_a_corpus_collates(corpus):
    stream = BucketedStream(corpus.context_lengths, corpus.response_lengths, rows=2)
    batches = [collate(corpus, ids, pad_id=0) for ids in epoch_of(stream)]
    assert sorted(i for batch in batches for i in batch.sample_ids_B) == [0, 1, 2]


@given(SAMPLES, SIZE, st.integers(0, 3))
@RELAXED
def test_draws_of_contexts_are_whole_and_as_full_as_their_order_allows(num_samples, size, seed):
    context_N = contexts(num_samples, seed)
    counts = dict(zip(*np.unique(context_N, return_counts=True), strict=True))
    draws = epoch_of(ContextDrawStream(context_N, size=size, seed=seed))
    for draw, following in itertools.zip_longest(draws, draws[1:]):
        found = dict(zip(*np.unique(context_N[draw], return_counts=True), strict=True))
        cut = any(counts[context] > size for context in found)
        assert len(draw) <= size and (cut or found == {context: counts[context] for context in found})
        if following is not None and not cut:
            assert len(draw) + counts[context_N[following[0]]] > size, "the next context would have fitted"
