"""`diverse_subset`: m of K responses that differ most."""

from collections import Counter
from collections.abc import Hashable, Sequence

import pyarrow as pa

from polyreply.data.overlap import tokens as words_of
from polyreply.errors import PolyReplyError


def diverse_subset(
    responses: Sequence[str] | Sequence[Sequence[Hashable]], m: int, *, logprobs: Sequence[float] | None = None
) -> list[int]:
    """The places of m diverse responses, in the order in which they are chosen; of all, if there are no more than m.

    Greedy max-min selection: first the most likely response, then repeatedly the one whose largest similarity with
    those already chosen is smallest. Ties go to the more likely one (without `logprobs`, the earlier), but a response
    equal to a chosen one comes after all that are not. So the first m of m+1 are the choice of m.

    Responses are texts, compared by their lower-cased words without punctuation, or lists of tokens.
    """
    if m < 1:
        raise PolyReplyError(f"m must be 1 or more, found {m}")
    if logprobs is not None and len(logprobs) != len(responses):
        raise PolyReplyError(
            f"expected one log-probability for each of {len(responses)} responses, found {len(logprobs)}"
        )
    tokens = _token_lists(responses)
    likelier = sorted(range(len(tokens)), key=lambda place: -logprobs[place] if logprobs is not None else 0.0)
    bags = [Counter(one) for one in tokens]
    closest, repeats = [0.0] * len(tokens), [False] * len(tokens)
    taken: list[int] = []
    while likelier and len(taken) < m:
        chosen = min(likelier, key=lambda place: (repeats[place], closest[place]))
        likelier.remove(chosen)
        taken.append(chosen)
        for place in likelier:
            closest[place] = max(closest[place], similarity(bags[place], bags[chosen]))
            repeats[place] |= tokens[place] == tokens[chosen]
    return taken


def similarity(a: Counter[Hashable], b: Counter[Hashable]) -> float:
    """Unigram F1, 2·|A∩B| / (|A|+|B|) on token multisets: 0 for nothing in common, 1 for the same tokens."""
    size = a.total() + b.total()
    return 2 * (a & b).total() / size if size else 1.0


def _token_lists(responses: Sequence[str] | Sequence[Sequence[Hashable]]) -> list[tuple[Hashable, ...]]:
    texts = [response for response in responses if isinstance(response, str)]
    if not texts:
        return [tuple(response) for response in responses]
    if len(texts) != len(responses):
        raise PolyReplyError(
            f"expected texts only or lists of tokens only, found {len(texts)} of {len(responses)} texts"
        )
    return [tuple(words) for words in words_of(pa.array(texts, pa.string())).to_pylist()]
