"""`polyreply bench metrics`: the paper's nine scores for K=10 and 5 references, against NLTK.

The comparison is fair to NLTK: every text is tokenised once, and BLEU-1 and BLEU-2 of a pair come from one call of
`sentence_bleu`. NLTK is timed on the first contexts only, since all of them would take minutes, and both are compared
per context. Ours computes its other scores as well. Memory is the growth of a process's peak during the work.
"""

import itertools
import statistics
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from random import Random
from typing import Any

from polyreply.bench.timing import peak_growth, timed
from polyreply.data import smalltalk
from polyreply.errors import MissingExtraError
from polyreply.metrics import PAPER_NUMBERS, evaluate
from polyreply.metrics.registry import harmonic_mean
from polyreply.metrics.tokenize import tokenizer_named
from polyreply.progress import Notify

K, REFERENCES = 10, 5
Texts = list[list[str]]


def bench_metrics(contexts: int, sample: int, notify: Notify) -> dict[str, Any]:
    """Milliseconds per context, their ratio, growth of time and memory for ten times the contexts."""
    notify("making texts", 0.0)
    responses, references = bench_texts(contexts)
    few = (responses[:sample], references[:sample])
    notify(f"NLTK, {sample} contexts", 0.1)
    for run in (nltk_numbers, evaluate):  # one-time costs of the libraries do not count
        run(responses[:2], references[:2])
    expected, nltk_seconds = timed(lambda: nltk_numbers(*few))
    found = evaluate(*few)
    small = max(1, contexts // 10)
    notify(f"polyreply, {small} contexts", 0.6)
    _, small_seconds = timed(lambda: evaluate(responses[:small], references[:small]))
    notify(f"polyreply, {contexts} contexts", 0.65)
    _, seconds = timed(lambda: evaluate(responses, references))
    notify("memory", 0.8)
    memory = {size: peak_growth(partial(_score_in_a_process, size)) for size in (small, contexts)}
    ours, theirs = 1000 * seconds / contexts, 1000 * nltk_seconds / len(few[0])
    return {
        "metrics.contexts": contexts,
        "metrics.nltk_contexts": len(few[0]),
        "metrics.seconds": seconds,
        "metrics.ms_per_context": ours,
        "metrics.nltk_ms_per_context": theirs,
        "metrics.vs_nltk": theirs / ours,
        "metrics.largest_difference": max(abs((found[name] or 0.0) - expected[name]) for name in PAPER_NUMBERS),
        "metrics.small_contexts": small,
        "metrics.small_seconds": small_seconds,
        "metrics.growth": seconds / small_seconds,
        "metrics.memory_mb": memory[contexts],
        "metrics.small_memory_mb": memory[small],
    }


def bench_texts(contexts: int, seed: int = 0) -> tuple[Texts, Texts]:
    """Responses and references for that many contexts: replies of smalltalk, half of the responses near a reference."""
    random = Random(seed)
    rows = smalltalk.generate(split="train", rows=contexts, seed=seed, form="explicit")
    pools = [list(row.responses) for row in rows]
    texts = [text for pool in pools for text in pool]
    responses, references = [], []
    for pool in pools:
        gold = [*pool, *random.choices(texts, k=REFERENCES)][:REFERENCES]
        near = [_one_word_changed(random.choice(gold), random.choice(texts), random) for _ in range(K // 2)]
        responses.append([*near, *random.choices(texts, k=K - len(near))])
        references.append(gold)
    return responses, references


def _one_word_changed(text: str, other: str, random: Random) -> str:
    words = text.split()
    words[int(random.random() * len(words))] = random.choice(other.split())
    return " ".join(words)


def nltk_numbers(responses: Texts, references: Texts) -> dict[str, float]:
    """The nine scores by NLTK's `sentence_bleu`, pair by pair."""
    sentence_bleu = _nltk_sentence_bleu()
    tokenize = tokenizer_named("wordpunct", "lower")
    columns: dict[str, list[float]] = {name: [] for name in PAPER_NUMBERS if not name.endswith("_f")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NLTK warns of every pair without a common n-gram
        for ours, theirs in zip(responses, references, strict=True):
            hypotheses, golds = [tokenize(text) for text in ours], [tokenize(text) for text in theirs]
            pairs = [[sentence_bleu([two], one, [(1.0,), (0.5, 0.5)]) for two in golds] for one in hypotheses]
            for order in (0, 1):
                scores = [[pair[order] for pair in row] for row in pairs]
                columns[f"bleu{order + 1}_p"].append(statistics.fmean(map(max, scores)))
                columns[f"bleu{order + 1}_r"].append(statistics.fmean(map(max, zip(*scores, strict=True))))
            twos = itertools.permutations(hypotheses, 2)
            columns["pairwise_bleu"].append(statistics.fmean(sentence_bleu([two], one) for one, two in twos))
            for order in (1, 2):
                grams = [gram for one in hypotheses for gram in zip(*(one[n:] for n in range(order)), strict=False)]
                columns[f"dist{order}"].append(len(set(grams)) / max(1, len(grams)))
    numbers = {name: 100 * statistics.fmean(values) for name, values in columns.items()}
    return numbers | {f"bleu{n}_f": float(harmonic_mean(numbers[f"bleu{n}_p"], numbers[f"bleu{n}_r"])) for n in (1, 2)}


def _nltk_sentence_bleu() -> Callable[..., Any]:
    try:
        return import_module("nltk.translate.bleu_score").sentence_bleu  # type: ignore[no-any-return]
    except ImportError:
        raise MissingExtraError("nltk", "dev", "the benchmark of the metrics") from None


def _score_in_a_process(contexts: int, begin: Callable[[], None]) -> None:
    responses, references = bench_texts(contexts)
    evaluate(responses[:10], references[:10])  # one-time costs of the libraries
    begin()
    evaluate(responses, references)
