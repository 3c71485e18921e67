"""`mbr`: minimum Bayes risk for sets. The replies are those that agree best with everything the decoders could say.

Each decoder offers its greedy reply and some samples. The samples of all decoders stand for the unknown references, and
one candidate of each decoder is chosen so that the set as a whole has a high expected BLEU-2: P, the mean over replies
and samples, and R, the mean over samples of their best reply, combined by F-beta. With beta 1 that is the paper's
BLEU2-F of a context with one reference, in expectation under the model, on the tokenizer's tokens.

Legend: B contexts, S context tokens, K replies to a context, G candidates of a reply, C = K·G, X samples of a context.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from polyreply.arrays import Floats
from polyreply.decoding.all_decoders import decode
from polyreply.decoding.settings import Decoding, Response
from polyreply.decoding.single_decoder import nucleus_sampling
from polyreply.errors import PolyReplyError
from polyreply.metrics.ngrams import Block, grams, matches, sentence_bleu
from polyreply.models.model import PolyReplyModel

SAMPLES, SHARE, BETA = 8, 0.7, 2.0
"""Defaults. The nucleus is smaller than for single samples: candidates should be good, and stand for what is likely."""
_SWEEPS = 20
"""Most times that every reply is reconsidered; two or three usually suffice."""


@torch.no_grad()
def mbr(model: PolyReplyModel, context_BS: Tensor, mask_BS: Tensor, decoding: Decoding) -> list[list[Response]]:
    """For each context k replies, reply i from decoder i modulo the number of decoders.

    `samples` are drawn for each reply from the nucleus of `top_p`; `beta` is how much more R counts than P, so more
    makes the replies differ more. It takes `samples` + 1 times as long as greedy decoding.
    """
    samples = SAMPLES if decoding.samples is None else decoding.samples
    beta = BETA if decoding.beta is None else decoding.beta
    if samples < 1:
        raise PolyReplyError(f"samples: expected 1 or more, found {samples}; 8 is the usual number")
    if beta <= 0:
        raise PolyReplyError(f"beta: expected a number above 0, found {beta}; 1 weighs P and R equally")
    nucleus = nucleus_sampling(SHARE if decoding.top_p is None else decoding.top_p)
    owners = [place % model.num_decoders for place in range(decoding.k)]
    context = model, context_BS, mask_BS
    greedy = decode(*context, replace(decoding, sampling=None), decoders=sorted(set(owners)))
    drawn = decode(*context, replace(decoding, sampling=nucleus), decoders=sorted(owners * samples))
    candidates = [_candidates(*both, owners, samples) for both in zip(greedy, drawn, strict=True)]
    return [
        [group[place] for group, place in zip(groups, best_set(agreement_KGX, beta), strict=True)]
        for groups, agreement_KGX in zip(candidates, agreement(candidates, decoding.eos_ids), strict=True)
    ]


def _candidates(
    greedy: Sequence[Response], drawn: Sequence[Response], owners: Sequence[int], samples: int
) -> list[list[Response]]:
    """For each reply the greedy response of its decoder, then the samples drawn for it."""
    by_decoder = {response.decoder: response for response in greedy}
    pools = {decoder: iter([one for one in drawn if one.decoder == decoder]) for decoder in by_decoder}
    return [[by_decoder[decoder], *islice(pools[decoder], samples)] for decoder in owners]


def agreement(candidates: Sequence[Sequence[Sequence[Response]]], eos_ids: Sequence[int] = ()) -> list[Floats]:
    """For each context BLEU-2 of every candidate (K, G) with every sample (X).

    A sample's agreement with itself is set to its mean agreement with the others: it is evidence neither for itself nor
    against.
    """
    if not candidates:
        return []
    tokens = [
        [[token for token in response.tokens if token not in eos_ids] for group in groups for response in group]
        for groups in candidates
    ]
    size = len(candidates[0][0])
    sample_X = np.flatnonzero(np.arange(len(tokens[0])) % size)
    by_context = []
    for bleu_CC in _bleu2(tokens):
        np.fill_diagonal(bleu_CC, 0.0)
        agreement_CX = bleu_CC[:, sample_X]
        agreement_CX[sample_X, np.arange(len(sample_X))] = agreement_CX[sample_X].sum(1) / max(len(sample_X) - 1, 1)
        by_context.append(agreement_CX.reshape(-1, size, len(sample_X)))
    return by_context


def _bleu2(tokens: Sequence[Sequence[Sequence[int]]]) -> Floats:
    """BLEU-2 of each candidate of a context with each other, (B, C, C); all contexts have the same number."""
    lengths_BC = np.array([[len(one) for one in context] for context in tokens], np.int64)
    flat = [token for context in tokens for one in context for token in one]
    row_T = np.repeat(np.arange(lengths_BC.size), lengths_BC.ravel())
    full_B, none_B = np.full(len(tokens), lengths_BC.shape[-1]), np.zeros(len(tokens), np.int64)
    block = Block(np.array(flat, np.int64), row_T, lengths_BC, full_B, none_B, lengths_BC.shape[-1])
    matches_n = [matches(block, n_grams) for n_grams in islice(grams(block), 2)]
    return sentence_bleu(matches_n, lengths_BC[:, :, None], lengths_BC[:, None, :])[1]


def best_set(agreement_KGX: Floats, beta: float) -> list[int]:
    """The place of one candidate for each reply, such that no exchange of a single one improves the set.

    Starts from the candidates that agree best by themselves and exchanges one at a time.
    """
    mean_KG = agreement_KGX.mean(-1)
    taken_K = mean_KG.argmax(1)
    for _ in range(_SWEEPS):
        before_K = taken_K.copy()
        for k in range(len(taken_K)):
            others = np.flatnonzero(np.arange(len(taken_K)) != k)
            covered_X = agreement_KGX[others, taken_K[others]].max(0, initial=0.0)
            precision_G = (mean_KG[others, taken_K[others]].sum() + mean_KG[k]) / len(taken_K)
            recall_G = np.maximum(covered_X, agreement_KGX[k]).mean(-1)
            taken_K[k] = f_beta(precision_G, recall_G, beta).argmax()
        if (taken_K == before_K).all():
            break
    return [int(place) for place in taken_K]


def f_beta(precision: Floats, recall: Floats, beta: float) -> Floats:
    """The harmonic mean of P and R in which R weighs beta times as much; 0 where both are 0."""
    weighed = beta**2 * precision + recall
    return np.where(weighed > 0, (1 + beta**2) * precision * recall / np.where(weighed > 0, weighed, 1.0), 0.0)
