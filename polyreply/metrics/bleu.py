"""BLEU-P, BLEU-R and BLEU-F: how good the responses are, and how many of the references they cover.

Legend: C contexts, K responses, R references.
"""

from functools import partial
from typing import Any

import numpy as np

from polyreply.arrays import Floats
from polyreply.metrics.ngrams import ORDERS, Block
from polyreply.metrics.registry import Metric
from polyreply.tables import Column


def bleu_precision(block: Block, order: int) -> Floats:
    """P: the mean over responses of their best BLEU among the references, in percent, for each context.

    Empty slots score 0 against everything, so they are never a best match.
    """
    bleu_CKR = block.bleu_n[order - 1][:, :, block.most_responses :]
    return np.asarray(100 * (bleu_CKR.max(2, initial=0).sum(1) / block.num_responses_C))


def bleu_recall(block: Block, order: int) -> Floats:
    """R: the mean over references of their best BLEU among the responses, in percent, for each context."""
    bleu_CKR = block.bleu_n[order - 1][:, :, block.most_responses :]
    return np.asarray(100 * (bleu_CKR.max(1).sum(1) / np.maximum(block.num_references_C, 1)))


def _metrics(order: int) -> tuple[Metric, ...]:
    name, shown = f"bleu{order}", order <= 2  # in dialogue, longer n-grams hardly ever match

    def metric(which: str, description: str, **how: Any) -> Metric:
        column = Column(f"BLEU{order}-{which.upper()}", better=1, group=f"BLEU{order}", own=which.upper())
        return Metric(f"{name}_{which}", column, description, needs_references=True, shown=shown, **how)

    return (
        metric("f", "harmonic mean of P and R", harmonic_of=(f"{name}_p", f"{name}_r")),
        metric("p", "how good the responses are", per_block=partial(bleu_precision, order=order)),
        metric("r", "how many references are met", per_block=partial(bleu_recall, order=order)),
    )


BLEU_METRICS = tuple(metric for order in range(1, ORDERS + 1) for metric in _metrics(order))
