"""What each decoder specialises in: how long its replies are, how often it asks, and its most typical words.

Typical words are found by log-odds with an informative Dirichlet prior (Monroe, Colaresi and Quinn, 2008): how much
more one decoder uses a word than all others together, in standard deviations, with the words of all as the prior, so
that neither rare words nor frequent ones win by chance. Legend: C contexts, K decoders, V different words.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from polyreply.arrays import Floats
from polyreply.metrics.diversity import questions
from polyreply.metrics.tokenize import TokenizerName, tokenizer_named

_TYPICAL = 1.96
"""Standard deviations above which a word counts as typical."""
_MANY = 1.2
"""Factor of the mean over all decoders from which on a length or a share of questions is remarkable."""


@dataclass(frozen=True)
class DecoderProfile:
    """One decoder in numbers and in a line."""

    decoder: int
    length: float
    """Mean tokens of a reply."""
    questions: float
    """Percentage of replies that are questions."""
    with_word: float | None
    """Percentage of replies with the given word, if there is one."""
    distinct: float
    """Percentage of its replies to all contexts that are different."""
    words: list[tuple[str, float]]
    """The most typical words, the most typical first, each with its log-odds in standard deviations."""
    line: str
    """The profile in words."""


def profile_decoders(
    replies_CK: Sequence[Sequence[str]], tokenizer: TokenizerName = "wordpunct", word: str = "", most_words: int = 8
) -> list[DecoderProfile]:
    """A profile of each decoder, from the replies of all decoders to the same contexts."""
    tokenize = tokenizer_named(tokenizer, "lower")
    texts_KC = [list(texts) for texts in zip(*replies_CK, strict=True)]
    tokens_KC = [[tokenize(text) for text in texts] for texts in texts_KC]
    length_K = [float(np.mean([len(tokens) for tokens in tokens_C])) for tokens_C in tokens_KC]
    questions_K = questions(texts_KC).tolist()
    typical_K = typical_words([count_words(tokens_C, tokenizer) for tokens_C in tokens_KC], most_words)
    mean_length, mean_questions = max(float(np.mean(length_K)), 1e-9), float(np.mean(questions_K))
    wanted = tokenize(word)
    return [
        DecoderProfile(
            k,
            length_K[k],
            questions_K[k],
            100 * float(np.mean([_contains(tokens, wanted) for tokens in tokens_KC[k]])) if word else None,
            100 * len(set(texts_KC[k])) / len(texts_KC[k]),
            typical_K[k],
            _line(length_K[k] / mean_length, questions_K[k], mean_questions, typical_K[k]),
        )
        for k in range(len(texts_KC))
    ]


def typical_words(counts_K: Sequence[Counter[str]], most: int) -> list[list[tuple[str, float]]]:
    """For each decoder the words that it uses significantly more than the others do, the most typical first."""
    vocabulary = sorted(set().union(*counts_K))
    if not vocabulary or len(counts_K) < 2:
        return [[] for _ in counts_K]
    count_KV = np.array([[counts[word] for word in vocabulary] for counts in counts_K], np.float64)
    z_KV = log_odds(count_KV)
    best_K = [np.argsort(-z_V, kind="stable")[:most] for z_V in z_KV]
    return [
        [(vocabulary[v], round(float(z_V[v]), 2)) for v in best if z_V[v] >= _TYPICAL]
        for z_V, best in zip(z_KV, best_K, strict=True)
    ]


def log_odds(count_KV: Floats) -> Floats:
    """Log-odds of each word in each row against all other rows, in standard deviations.

    The prior is the distribution of all rows together, as heavy as an average row.
    """
    total_V = count_KV.sum(0)
    prior_V = total_V / len(count_KV)
    own_KV = count_KV + prior_V
    other_KV = total_V - count_KV + prior_V
    ratio_KV = [
        np.log(part_KV) - np.log(np.maximum(part_KV.sum(1, keepdims=True) - part_KV, 1e-9))
        for part_KV in (own_KV, other_KV)
    ]
    return np.asarray((ratio_KV[0] - ratio_KV[1]) / np.sqrt(1 / own_KV + 1 / other_KV))


def count_words(texts: Sequence[Sequence[str]], tokenizer: str) -> Counter[str]:
    """How often each word occurs; where tokens are characters, each pair of neighbours counts as a word."""
    if tokenizer in ("characters", "zh"):
        return Counter(one + two for tokens in texts for one, two in pairwise(tokens))
    return Counter(token for tokens in texts for token in tokens)


def _contains(tokens: Sequence[str], wanted: Sequence[str]) -> bool:
    return any(list(tokens[at : at + len(wanted)]) == list(wanted) for at in range(len(tokens) - len(wanted) + 1))


def _line(relative_length: float, asked: float, mean_asked: float, words: Sequence[tuple[str, float]]) -> str:
    """What is remarkable about a decoder, such as: short replies; asks questions (83 %); says “what”, “where”."""
    parts = []
    if relative_length >= _MANY or relative_length <= 1 / _MANY:
        parts.append("long replies" if relative_length > 1 else "short replies")
    if asked >= 50 or asked >= max(_MANY * mean_asked, 10):
        parts.append(f"asks questions ({asked:.0f} %)")
    elif mean_asked >= 10 and asked <= mean_asked / 2:
        parts.append(f"seldom asks ({asked:.0f} %)")
    if words:
        parts.append("says " + ", ".join(f"“{word}”" for word, _ in words[:5]))
    return "; ".join(parts) or "like the others"
