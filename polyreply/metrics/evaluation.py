"""All scores of one system: `evaluate(responses, references)`.

Contexts are processed in blocks, so that memory does not grow with their number beyond one value per score and context
and, for inter Dist-n, the vocabulary and one integer for each different word and pair of words.
"""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from polyreply.arrays import Floats
from polyreply.errors import DataError
from polyreply.metrics.bleu import BLEU_METRICS
from polyreply.metrics.diversity import DIVERSITY_METRICS
from polyreply.metrics.embeddings import EMBEDDING_METRICS, MODEL, embedding_columns, load_model
from polyreply.metrics.ngrams import ORDERS, Vocabulary, make_block
from polyreply.metrics.registry import METRICS, Metric, harmonic_mean
from polyreply.metrics.relevance import CANDIDATES, RELEVANCE_METRICS, Context, joined_turns, relevance_columns
from polyreply.metrics.scores import Scores, Signature, span
from polyreply.metrics.tokenize import CaseName, TokenizerName, tokenizer_named
from polyreply.progress import Notify, silent

Texts = Sequence[Sequence[str]]

_BLOCK_CONTEXTS, _BLOCK_CELLS, _BLOCK_CHARACTERS = 256, 1 << 18, 1 << 18
"""A block ends before it has more contexts, more pairs of sentences or more text, however many tokens that is."""

BUILT_IN = (*BLEU_METRICS, *DIVERSITY_METRICS, *EMBEDDING_METRICS, *RELEVANCE_METRICS)
METRICS.update({metric.name: metric for metric in BUILT_IN})


def evaluate(
    responses: Texts,
    references: Texts | None = None,
    *,
    tokenizer: TokenizerName = "wordpunct",
    case: CaseName = "lower",
    variable_k: bool = False,
    embeddings: bool = False,
    contexts: Sequence[Context] | None = None,
    system: str = "",
    notify: Notify = silent,
) -> Scores:
    """Score the responses to each context against its references, or only their diversity if there are none.

    `responses` and `references` hold a list of texts for each context, in the same order; a text may be empty. Every
    context must have the same number of responses unless `variable_k` allows otherwise. `embeddings` adds scores by
    meaning (slower; English). `contexts`, what was replied to, adds relevance by the same embeddings. `system` names
    the system in tables.
    """
    check_texts(responses, references, variable_k)
    if contexts is not None and len(contexts) != len(responses):
        raise DataError(f"expected {len(responses)} contexts, one for each list of responses, found {len(contexts)}")
    said = None if contexts is None else joined_turns(contexts)
    asked = {"embeddings": embeddings, "relevance": said is not None}
    if any(asked.values()):
        load_model()  # fails before the work if it is not installed
    wanted = [metric for metric in METRICS.values() if asked.get(metric.only_with, True)]
    per_context, corpus_scores = _score_blocks(wanted, responses, references, tokenizer, case, notify)
    if embeddings:
        per_context |= embedding_columns(responses, references, notify)
    if said is not None:
        tokenize = tokenizer_named(tokenizer, case)
        per_context |= relevance_columns(said, responses, references, tokenize, notify)
    numbers = {
        metric.name: corpus_scores.get(metric.name) if metric.corpus else _aggregate(metric, per_context)
        for metric in wanted
    }
    signature = Signature(
        tokenizer,
        case,
        f"variable({ks})" if "-" in (ks := span(map(len, responses))) else ks,
        "none" if references is None else span(map(len, references)),
        MODEL if any(asked.values()) else "",
        "" if said is None else f"first-of-{min(CANDIDATES, len(set(said)))}",
        "+".join(f"{metric.name}@{metric.version}" for metric in wanted if metric.version),
    )
    data = "" if references is None else _digest(references)
    return Scores(numbers, per_context, signature, len(responses), data, system, _notes(numbers))


def _score_blocks(
    metrics: Sequence[Metric], responses: Texts, references: Texts | None, tokenizer: str, case: str, notify: Notify
) -> tuple[dict[str, Floats], dict[str, float | None]]:
    """The per-context values of each metric, and the scores of the corpus as a whole."""
    tokenize, vocabulary = tokenizer_named(tokenizer, case), Vocabulary()
    usable = [metric for metric in metrics if references is not None or not metric.needs_references]
    per_block = {metric.name: metric.per_block for metric in usable if metric.per_block}
    corpus = {metric.name: metric.corpus() for metric in usable if metric.corpus}
    parts: dict[str, list[Floats]] = {name: [] for name in per_block}
    given: Texts = [[]] * len(responses) if references is None else references
    for begin, end in _blocks(responses, given):
        notify("scoring", begin / len(responses))
        block = make_block(responses[begin:end], given[begin:end], tokenize, vocabulary)
        for name, compute in per_block.items():
            parts[name].append(compute(block))
        for accumulator in corpus.values():
            accumulator.add(block)
    per_context = {name: np.concatenate(values) for name, values in parts.items()}
    return per_context, {name: accumulator.value() for name, accumulator in corpus.items()}


def _aggregate(metric: Metric, per_context: dict[str, Floats]) -> float | None:
    """The mean over the contexts that have a value, or the harmonic mean of two means; None if no context has one."""
    means = []
    for name in metric.harmonic_of or (metric.name,):
        values = per_context.get(name, np.zeros(0))
        known = values[~np.isnan(values)]
        if not len(known):
            return None
        means.append(float(known.mean()))
    return float(harmonic_mean(*means)) if metric.harmonic_of else means[0]


def check_texts(responses: Texts, references: Texts | None, variable_k: bool) -> None:
    """Raise a DataError that names the first context that cannot be scored."""
    if not responses:
        raise DataError("expected the responses to at least one context, found none")
    if references is not None and len(references) != len(responses):
        raise DataError(
            f"expected references for {len(responses)} contexts, one list for each list of responses, found "
            f"{len(references)}; pass both in the same order"
        )
    for kind, rows in (("response", responses), ("reference", references or ())):
        for row, texts in enumerate(rows, start=1):
            problem = _what_is_wrong(texts)
            if problem:
                raise DataError(f"row {row}: expected a list of at least one {kind}, found {problem}; fix the row")
    k = len(responses[0])
    other = next((row for row, texts in enumerate(responses, start=1) if len(texts) != k), None)
    if other is not None and not variable_k:
        raise DataError(
            f"row {other}: expected {k} responses as in row 1, found {len(responses[other - 1])}; give every context "
            "the same number, or allow a variable K (--variable-k, variable_k=True)"
        )


def _what_is_wrong(texts: object) -> str:
    """What is in the place of a list of texts; empty if it is one."""
    if not isinstance(texts, Sequence) or isinstance(texts, str | bytes):
        return "a text" if isinstance(texts, str) and texts else "none" if not texts else repr(texts)[:40]
    if not texts:
        return "none"
    other = next((text for text in texts if not isinstance(text, str)), "")
    return "" if isinstance(other, str) else f"{repr(other)[:40]} among the texts"


def _blocks(responses: Texts, references: Texts) -> Iterator[tuple[int, int]]:
    """Where blocks begin and end; a context of many sentences makes its block short, since slots are padded."""
    begin = most_responses = most_references = characters = 0
    for end, (ours, theirs) in enumerate(zip(responses, references, strict=True)):
        most_responses, most_references = max(most_responses, len(ours)), max(most_references, len(theirs))
        cells = (end + 1 - begin) * most_responses * (most_responses + most_references)
        own = sum(len(text) for texts in (ours, theirs) for text in texts)
        characters += own
        full = cells > _BLOCK_CELLS or characters > _BLOCK_CHARACTERS or end - begin >= _BLOCK_CONTEXTS
        if end > begin and full:
            yield begin, end
            begin, most_responses, most_references, characters = end, len(ours), len(theirs), own
    yield begin, len(responses)


def _digest(references: Texts) -> str:
    digest = hashlib.sha256()
    for texts in references:
        digest.update("\0".join([str(len(texts)), *texts, ""]).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


def _notes(numbers: dict[str, float | None]) -> list[str]:
    """What a reader should know before trusting a score."""
    notes = []
    same, pairwise, length = numbers["identical"], numbers["pairwise_bleu"], numbers["length"]
    if same is not None and pairwise is not None and same > pairwise + 1:
        notes.append(
            f"{same:.1f} % of the pairs of responses are identical, more than Pairwise-BLEU shows: it counts responses "
            "under four tokens as about 0"
        )
    if length is not None and length < ORDERS:
        notes.append(f"responses have {length:.1f} tokens on average: BLEU-3, BLEU-4 and Pairwise-BLEU mean little")
    return notes
