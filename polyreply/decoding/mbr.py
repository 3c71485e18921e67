"""`mbr`: minimum Bayes risk for sets. The decoders say the replies that agree best with all that they could have said.

Each decoder offers its greedy reply and some samples. The samples of all decoders stand in for the references that
nobody knows yet, and of each decoder's candidates one is taken so that the set as a whole has a high expected BLEU-2:
P, the mean of its replies with the samples, and R, the mean over samples of their best reply, joined by F-beta. With
beta 1 that is the paper's BLEU2-F of a context with one reference, in expectation under the model, on the tokenizer's
tokens.

Legend: B contexts, S context tokens, K replies to a context, G candidates of one reply, X samples of a context.
"""

import copy
from collections.abc import Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig

from polyreply.arrays import Floats
from polyreply.decoding.all_decoders import decode
from polyreply.decoding.response import Response
from polyreply.decoding.settings import decoding_of
from polyreply.decoding.single_decoder import sampled
from polyreply.errors import PolyReplyError
from polyreply.metrics.ngrams import Block, grams, matches, sentence_bleu
from polyreply.models.polyreply_model import PolyReplyModel

SAMPLES, SHARE, BETA = 8, 0.7, 2.0
"""Defaults. A smaller nucleus than for single samples: candidates should be good, and stand for what is likely."""
_SWEEPS = 20
"""Most times that every reply is reconsidered; two or three are the rule."""


@torch.no_grad()
def mbr(
    model: PolyReplyModel,
    context_BS: Tensor,
    mask_BS: Tensor,
    k: int,
    config: GenerationConfig | None = None,
    *,
    samples: int = SAMPLES,
    top_p: float = SHARE,
    beta: float = BETA,
    generator: torch.Generator | None = None,
) -> list[list[Response]]:
    """For each context k replies, reply i of decoder i modulo the number of decoders.

    `samples` are drawn for each reply from the nucleus of `top_p`; `beta` is how much more R counts than P: more makes
    the replies differ more. It takes `samples` + 1 times as long as greedy decoding.
    """
    _check(samples, beta)
    config = config or model.backbone.generation_config
    owners = [place % model.num_decoders for place in range(k)]
    greedy = copy.deepcopy(config)
    greedy.do_sample = False
    said = decode(model, context_BS, mask_BS, greedy, decoders=sorted(set(owners)))
    drawn = decode(
        model,
        context_BS,
        mask_BS,
        sampled(model, config, top_p),
        decoders=sorted(owners * samples),
        generator=generator,
    )
    candidates = [_candidates(*both, owners, samples) for both in zip(said, drawn, strict=True)]
    eos = decoding_of(config, 1).eos_ids
    return [
        [group[place] for group, place in zip(groups, best_set(agreement_KGX, beta), strict=True)]
        for groups, agreement_KGX in zip(candidates, agreement(candidates, eos), strict=True)
    ]


def _check(samples: int, beta: float) -> None:
    if samples < 1:
        raise PolyReplyError(f"samples: expected 1 or more, found {samples}; 8 is the usual number")
    if beta <= 0:
        raise PolyReplyError(f"beta: expected a number above 0, found {beta}; 1 weighs P and R alike")


def _candidates(
    said: Sequence[Response], drawn: Sequence[Response], owners: Sequence[int], samples: int
) -> list[list[Response]]:
    """For each reply the greedy one of its decoder, then samples that are its own."""
    greedy = {response.decoder: response for response in said}
    pools = {decoder: iter([one for one in drawn if one.decoder == decoder]) for decoder in greedy}
    return [[greedy[decoder], *islice(pools[decoder], samples)] for decoder in owners]


def agreement(candidates: Sequence[Sequence[Sequence[Response]]], eos_ids: Sequence[int] = ()) -> list[Floats]:
    """For each context BLEU-2 of every candidate (K, G) with every sample (X).

    A sample agrees with itself as with the others on average: it is no evidence for itself, and none against.
    """
    if not candidates:
        return []
    tokens = [
        [[token for token in response.tokens if token not in eos_ids] for group in groups for response in group]
        for groups in candidates
    ]
    size = len(candidates[0][0])
    sample_X = np.flatnonzero(np.arange(len(tokens[0])) % size)
    found = []
    for bleu_CC in _bleu2(tokens):
        np.fill_diagonal(bleu_CC, 0.0)
        agreement_CX = bleu_CC[:, sample_X]
        agreement_CX[sample_X, np.arange(len(sample_X))] = agreement_CX[sample_X].sum(1) / max(len(sample_X) - 1, 1)
        found.append(agreement_CX.reshape(-1, size, len(sample_X)))
    return found


def _bleu2(tokens: Sequence[Sequence[Sequence[int]]]) -> Floats:
    """BLEU-2 of each candidate of a context with each other, (B, C, C); all contexts have equally many."""
    lengths_BC = np.array([[len(one) for one in context] for context in tokens], np.int64)
    flat = [token for context in tokens for one in context for token in one]
    row_T = np.repeat(np.arange(lengths_BC.size), lengths_BC.ravel())
    full_B, none_B = np.full(len(tokens), lengths_BC.shape[-1]), np.zeros(len(tokens), np.int64)
    block = Block(np.array(flat, np.int64), row_T, lengths_BC, full_B, none_B, lengths_BC.shape[-1])
    matches_n = [matches(block, found) for found in islice(grams(block), 2)]
    return sentence_bleu(matches_n, lengths_BC[:, :, None], lengths_BC[:, None, :])[1]


def best_set(agreement_KGX: Floats, beta: float) -> list[int]:
    """The place of one candidate for each reply, such that no exchange of a single one makes the set better.

    It begins with the candidates that agree best by themselves and exchanges one at a time.
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
    """Their harmonic mean, in which R weighs beta times as much as P; 0 where both are 0."""
    weighed = beta**2 * precision + recall
    return np.where(weighed > 0, (1 + beta**2) * precision * recall / np.where(weighed > 0, weighed, 1.0), 0.0)
