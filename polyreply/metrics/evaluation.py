"""All numbers of one system: `evaluate(responses, references)`.

Contexts are worked through in blocks, so that memory does not grow with their number beyond one value per number and
context, and, for inter Dist-n, the vocabulary and one integer for each different word and pair of words.
"""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from polyreply.arrays import Floats
from polyreply.errors import DataError
from polyreply.metrics import diversity
from polyreply.metrics.bleu import matches, sentence_bleu
from polyreply.metrics.corpus import CorpusPairwise, InterDist
from polyreply.metrics.ngrams import ORDERS, Block, Vocabulary, grams, make_block
from polyreply.metrics.scores import Scores, harmonic_mean
from polyreply.metrics.signature import Signature, span
from polyreply.metrics.tokenize import CaseName, TokenizerName, tokenizer_named
from polyreply.progress import Notify, silent

Texts = Sequence[Sequence[str]]

_BLOCK_CONTEXTS, _BLOCK_CELLS, _BLOCK_CHARACTERS = 256, 1 << 18, 1 << 18
"""A block ends before it has more contexts, more pairs of sentences or more text, however many tokens that is."""


def evaluate(
    responses: Texts,
    references: Texts | None = None,
    *,
    tokenizer: TokenizerName = "wordpunct",
    case: CaseName = "lower",
    variable_k: bool = False,
    embeddings: bool = False,
    system: str = "",
    notify: Notify = silent,
) -> Scores:
    """Scores the responses to each context against its references, or their diversity alone when there are none.

    Without `variable_k` every context must have the same number of responses. A text may be empty.
    """
    check_texts(responses, references, variable_k)
    if embeddings:
        from polyreply.metrics.embeddings import MODEL, embedding_columns, load_model

        load_model()  # before the work, in case it is not installed
    gold: Texts = [[]] * len(responses) if references is None else references
    per_context, corpus_numbers = _score_all(responses, gold, tokenizer, case, notify)
    if references is None:
        per_context = {name: column for name, column in per_context.items() if not name.startswith("bleu")}
    if embeddings:
        per_context |= embedding_columns(responses, references, notify)
    signature = _signature(responses, references, tokenizer, case, MODEL if embeddings else "")
    numbers = {**_numbers(per_context), **corpus_numbers}
    data = "" if references is None else _digest(references)
    return Scores(_in_order(numbers), per_context, signature, len(responses), data, system, _notes(numbers))


def _score_all(
    responses: Texts, references: Texts, tokenizer: str, case: str, notify: Notify
) -> tuple[dict[str, Floats], dict[str, float | None]]:
    """The values of each context, and the numbers of the corpus as a whole, block by block."""
    tokenize, vocabulary = tokenizer_named(tokenizer, case), Vocabulary()
    inter, pairwise = InterDist(), CorpusPairwise()
    parts: list[dict[str, Floats]] = []
    for begin, end in _blocks(responses, references):
        notify("scoring", begin / len(responses))
        block = make_block(responses[begin:end], references[begin:end], tokenize, vocabulary)
        parts.append({**_score_block(block, pairwise), "questions": diversity.questions(responses[begin:end])})
        inter.add(block)
    per_context = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return per_context, {**inter.numbers(), "corpus_pairwise_bleu": pairwise.bleu()}


def check_texts(responses: Texts, references: Texts | None, variable_k: bool) -> None:
    """Raises a line that names the first context that cannot be scored."""
    if not responses:
        raise DataError("expected the responses to at least one context, found none")
    if references is not None and len(references) != len(responses):
        raise DataError(
            f"expected references for {len(responses)} contexts, one list for each list of responses, found "
            f"{len(references)}; pass both in the same order"
        )
    for kind, rows in (("response", responses), ("reference", references or ())):
        for row, texts in enumerate(rows, start=1):
            found = _what_is_wrong(texts)
            if found:
                raise DataError(f"row {row}: expected a list of at least one {kind}, found {found}; fix the row")
    k = len(responses[0])
    other = next((row for row, texts in enumerate(responses, start=1) if len(texts) != k), None)
    if other is not None and not variable_k:
        raise DataError(
            f"row {other}: expected {k} responses as in row 1, found {len(responses[other - 1])}; give every context "
            "the same number, or allow a variable K (--variable-k, variable_k=True)"
        )


def _what_is_wrong(texts: object) -> str:
    """What stands in the place of a list of texts; empty when it is one."""
    if not isinstance(texts, Sequence) or isinstance(texts, str | bytes):
        return "a text" if isinstance(texts, str) and texts else "none" if not texts else repr(texts)[:40]
    if not texts:
        return "none"
    other = next((text for text in texts if not isinstance(text, str)), "")
    return "" if isinstance(other, str) else f"{repr(other)[:40]} among the texts"


def _blocks(responses: Texts, references: Texts) -> Iterator[tuple[int, int]]:
    """Where blocks begin and end; a context of many sentences makes its block short, since slots are padded."""
    begin = most_responses = most_references = characters = 0
    for end, (said, gold) in enumerate(zip(responses, references, strict=True)):
        most_responses, most_references = max(most_responses, len(said)), max(most_references, len(gold))
        cells = (end + 1 - begin) * most_responses * (most_responses + most_references)
        own = sum(len(text) for texts in (said, gold) for text in texts)
        characters += own
        full = cells > _BLOCK_CELLS or characters > _BLOCK_CHARACTERS or end - begin >= _BLOCK_CONTEXTS
        if end > begin and full:
            yield begin, end
            begin, most_responses, most_references, characters = end, len(said), len(gold), own
    yield begin, len(responses)


def _score_block(block: Block, corpus: CorpusPairwise) -> dict[str, Floats]:
    """The per-context values of a block."""
    k = block.most_responses
    grams_n = list(grams(block))
    matches_n = [matches(block, found) for found in grams_n]
    bleu_n = sentence_bleu(matches_n, block.lengths_CS[:, :k, None], block.lengths_CS[:, None, :])
    corpus.add(block, [found[:, :, :k] for found in matches_n])
    columns: dict[str, Floats] = {}
    for order in range(1, ORDERS + 1):
        columns |= _precision_recall(block, f"bleu{order}", bleu_n[order - 1][:, :, k:])
    return columns | {
        "dist1": diversity.dist(block, grams_n[0], 1),
        "dist2": diversity.dist(block, grams_n[1], 2),
        "pairwise_bleu": diversity.pairwise_bleu(block, bleu_n[-1][:, :, :k]),
        "identical": diversity.identical(block),
        "self_bleu": diversity.self_bleu(block, grams_n),
        "length": diversity.mean_length(block),
        "empty": diversity.empty(block),
        "repeating": diversity.repeating(block),
    }


def _precision_recall(block: Block, name: str, bleu_CKR: Floats) -> dict[str, Floats]:
    """P: the mean over responses of the best match among references. R: the other way round.

    Empty slots score 0 against everything, so they never are a best match.
    """
    precision_C = bleu_CKR.max(2, initial=0).sum(1) / block.num_responses_C
    recall_C = bleu_CKR.max(1).sum(1) / np.maximum(block.num_references_C, 1)
    return {f"{name}_p": 100 * precision_C, f"{name}_r": 100 * recall_C}


def _numbers(per_context: dict[str, Floats]) -> dict[str, float | None]:
    numbers = {name: _mean(values) for name, values in per_context.items()}
    for name in [name.removesuffix("_p") for name in numbers if name.endswith("_p")]:
        precision, recall = numbers[f"{name}_p"], numbers[f"{name}_r"]
        assert precision is not None and recall is not None
        numbers[f"{name}_f"] = harmonic_mean(precision, recall)
    return numbers


def _mean(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


_ORDER = [
    *(f"bleu{order}_{which}" for order in range(1, ORDERS + 1) for which in "fpr"),
    *"dist1 dist2 pairwise_bleu identical self_bleu corpus_pairwise_bleu inter_dist1 inter_dist2".split(),
    *"length questions empty repeating".split(),
]
_EMBEDDING_ORDER = [*(f"embedding_{which}" for which in "fpr"), "embedding_diversity"]


def _in_order(numbers: dict[str, float | None]) -> dict[str, float | None]:
    """The numbers as a file lists them; those that these inputs do not define are None."""
    embedding = [name for name in _EMBEDDING_ORDER if name in numbers]
    return {name: numbers.get(name) for name in [*_ORDER, *embedding]}


def _signature(responses: Texts, references: Texts | None, tokenizer: str, case: str, model: str) -> Signature:
    ks = span([len(texts) for texts in responses])
    refs = "none" if references is None else span([len(texts) for texts in references])
    return Signature(tokenizer, case, f"variable({ks})" if "-" in ks else ks, refs, model)


def _digest(references: Texts) -> str:
    digest = hashlib.sha256()
    for texts in references:
        digest.update("\0".join([str(len(texts)), *texts, ""]).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


def _notes(numbers: dict[str, float | None]) -> list[str]:
    """What a reader should know before trusting a number."""
    notes = []
    same, pairwise, length = numbers["identical"], numbers["pairwise_bleu"], numbers["length"]
    if same is not None and pairwise is not None and same > pairwise + 1:
        notes.append(
            f"{same:.1f} % of the pairs of responses are identical, more than Pairwise-BLEU says: responses under four "
            "tokens count about 0 there"
        )
    if length is not None and length < ORDERS:
        notes.append(f"responses have {length:.1f} tokens on average: BLEU-3, BLEU-4 and Pairwise-BLEU say little")
    return notes
