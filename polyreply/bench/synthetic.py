"""Corpora of any size for benchmarks, with known duplicates put in.

`natural` text has a natural vocabulary: words follow the Zipf-Mandelbrot law, so rare words keep appearing as the
corpus grows, and utterance lengths are log-normal. The words are made of syllables and mean nothing. `smalltalk` text
comes from the embedded generator.
"""

import gzip
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from polyreply.data import smalltalk

Pair = tuple[str, str]

_VOCABULARY = 500_000
_ZIPF_EXPONENT, _ZIPF_SHIFT = 1.05, 2.7
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]


@dataclass(frozen=True)
class Planted:
    """What was put into a corpus on purpose."""

    exact: int
    """Rows of train that repeat an earlier row of train."""
    near: list[tuple[Pair, Pair]]
    """Rows of train that resemble a row of valid or test, each with that row."""


def held_out_size(rows: int) -> int:
    """Rows of valid, and of test, for `rows` of train: as many as `prepare` draws by default."""
    return min(rows // 20, 10_000)


def write_natural(folder: Path, rows: int, seed: int = 0) -> Planted:
    """Write train/valid/test with exact duplicates inside train and near-duplicates of the others in train."""
    rng = np.random.default_rng(seed)
    sizes = {"valid": held_out_size(rows), "test": held_out_size(rows)}
    held_out = {split: list(natural_pairs(size, rng)) for split, size in sizes.items()}
    planted = rows // 200
    near = [(_perturb(pair, rng), pair) for pairs in held_out.values() for pair in pairs[: planted // 2]]
    train = _with_repeats(natural_pairs(rows - planted - len(near), rng), planted)
    _write(folder / "train.jsonl.gz", _interleave(train, [copy for copy, _ in near], rows))
    for split, pairs in held_out.items():
        _write(folder / f"{split}.jsonl.gz", pairs)
    return Planted(planted, near)


def write_smalltalk(folder: Path, rows: int, seed: int = 0) -> Planted:
    """Write train/valid/test of smalltalk with exact duplicates inside train."""
    planted = rows // 100
    _write(folder / "train.jsonl.gz", _with_repeats(_smalltalk_pairs("train", rows - planted, seed), planted))
    for split in ("valid", "test"):
        _write(folder / f"{split}.jsonl.gz", _smalltalk_pairs(split, held_out_size(rows), seed))
    return Planted(planted, [])


def natural_pairs(rows: int, rng: np.random.Generator) -> Iterator[Pair]:
    """(context, response) pairs of made-up words with natural frequencies."""
    rank = np.arange(1, _VOCABULARY + 1)
    mass = 1 / (rank + _ZIPF_SHIFT) ** _ZIPF_EXPONENT
    cumulative = np.cumsum(mass / mass.sum())
    words = np.array([_word(number) for number in range(_VOCABULARY)], dtype=object)
    for begin in range(0, rows, 50_000):
        texts = _texts(2 * min(50_000, rows - begin), words, cumulative, rng)
        yield from zip(texts[0::2], texts[1::2], strict=True)


def _texts(
    number: int, words: npt.NDArray[np.object_], cumulative: npt.NDArray[np.float64], rng: np.random.Generator
) -> list[str]:
    lengths = np.clip(rng.lognormal(2.3, 0.55, number).astype(np.int64), 2, 60)
    drawn = words[np.searchsorted(cumulative, rng.random(lengths.sum()))]
    return [" ".join(part) for part in np.split(drawn, np.cumsum(lengths)[:-1])]


def _word(number: int) -> str:
    """The pronounceable name of a word: frequent words are short."""
    word = ""
    number += 1
    while number:
        number, syllable = divmod(number - 1, len(_SYLLABLES))
        word += _SYLLABLES[syllable]
    return word


def _perturb(pair: Pair, rng: np.random.Generator) -> Pair:
    """The pair with about a tenth of its words (at least one) replaced by new ones: overlap stays above 0.75."""
    context, response = (text.split() for text in pair)
    total = len(context) + len(response)
    for place in rng.choice(total, max(1, total // 10), replace=False):
        side, at = (context, place) if place < len(context) else (response, place - len(context))
        side[at] = _word(int(rng.integers(_VOCABULARY, 2 * _VOCABULARY)))
    return " ".join(context), " ".join(response)


def _with_repeats(pairs: Iterable[Pair], number: int) -> Iterator[Pair]:
    """The pairs, with the first `number` of them repeated at the end."""
    stream = iter(pairs)
    first = list(islice(stream, number))
    yield from first
    yield from stream
    yield from first


def _interleave(pairs: Iterable[Pair], extra: list[Pair], rows: int) -> Iterator[Pair]:
    every = max(1, rows // (len(extra) + 1))
    waiting = iter(extra)
    for number, pair in enumerate(pairs, start=1):
        yield pair
        if number % every == 0:
            yield from islice(waiting, 1)
    yield from waiting


def _smalltalk_pairs(split: str, rows: int, seed: int) -> Iterator[Pair]:
    for row in smalltalk.generate(split=split, rows=rows, seed=seed, form="implicit"):  # type: ignore[arg-type]
        yield row.context[0], row.responses[0]


def _write(path: Path, pairs: Iterable[Pair]) -> None:
    encode = msgspec.json.Encoder().encode
    with gzip.open(path, "wb", compresslevel=1) as file:
        for context, response in pairs:
            file.write(encode({"context": context, "response": response}) + b"\n")
