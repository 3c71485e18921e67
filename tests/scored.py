"""Scores of invented systems, for tests of what is done with scores."""

import random

from polyreply.metrics import evaluate

WORDS = "the cat sat on a mat and saw that old dog near its red house".split()


def texts(rng, k, length=8):
    return [" ".join(rng.choices(WORDS, k=length)) for _ in range(k)]


REFERENCES = [texts(random.Random(n), 3) for n in range(40)]


def scores(quality, seed=0, name="", k=4, references=REFERENCES, **options):
    """A system whose responses keep each word of a reference with this probability."""
    rng = random.Random(seed)

    def reply(gold):
        return " ".join(w if rng.random() < quality else rng.choice(WORDS) for w in rng.choice(gold).split())

    return evaluate([[reply(gold) for _ in range(k)] for gold in references], references, system=name, **options)
