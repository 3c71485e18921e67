"""A decoder's manner: what it tends to do, in a few words for people, such as "asks back" or "declines".

Manners are found in the replies of all decoders to the same contexts. A decoder has those that it shows clearly more
often than the other decoders do; if it has none, its most typical words stand in. The patterns are English; replies in
another language are told apart by questions, exclamations, length and words.

Legend: C contexts, K decoders, M manners.
"""

import re
from collections.abc import Sequence

import numpy as np

from polyreply.analysis.decoder_profiles import count_words, typical_words
from polyreply.arrays import Floats
from polyreply.metrics.tokenize import TokenizerName, tokenizer_named

_PATTERNS = {
    "asks back": r"[?？][\s\W]*$",
    "is excited": r"[!！][\s\W]*$",
    "agrees": r"^(yes|yeah|yep|yup|sure|of course|definitely|absolutely|certainly|okay|ok|agreed|i agree|true)\b"
    r"|^right\b(?! now)"
    r"|^(that|it)( would|'d)?( be| is|'s|s)? (sounds? )?(so |really |very )?(great|good|nice|awesome|lovely|fun)\b"
    r"|^i('d| would)( really)? (love|like) (to|that)",
    "declines": r"^(nope|nah|unfortunately)\b|^no\b(?! (problem|worries|way|doubt))|^not\b(?! (bad|sure))"
    r"|^never\b(?! better)|^sorry\b(?! to hear)"
    r"|^i( really)?('m not| am not| don't| do not| can't| cannot| won't| haven't| didn't| wouldn't)\b"
    r"|^i('d| would) (rather|prefer)\b|^(it|that)('s not| isn't| is not)\b",
    "hedges": r"\b(maybe|perhaps|possibly|probably|depends?|sometimes|might|not (so |too |really |quite )?sure|i guess"
    r"|i suppose|kind of|sort of|a (little|bit))\b",
    "sympathises": r"\b(so sorry|sorry to hear|i hope|hope (you|it|that)|good luck|congrat\w*|take care|feel better)\b"
    r"|^(oh no|too bad|that sucks)\b",
    "advises": r"^(please )?(don't |do not |just |maybe )?"
    r"(ask|be|buy|call|check|drink|eat|find|get|give|go|have(?! you)|keep|leave|let(?!'s)|look|make|put|read|remember"
    r"|rest|save|say|set|show|sit|start|stay|stop|take|talk|tell|think|try|use|wait|walk|wear|write)\b(?! (me|us)\b)",
    "offers help": r"\b(let me|let's|shall (i|we)|want me to|do you want (me|to)|we (can|could|should)"
    r"|i('ll| will| can| could) (\w+ )?(ask|bring|buy|call|come|cook|drive|get|give|go|help|hold|join|keep|lend"
    r"|look|make|pick|send|show|take|teach|wait|watch))\b",
    "looks ahead": r"^(you|he|she|it|they|we|that)('ll| will| won't)\b|\b(soon|in no time|one day)\b",
    "knows it too": r"^(me too|same here)\b|^(i|my|mine|we|our)\b.*\b(once|either|as well|last \w+|years? ago)\b"
    r"|^(i|my|mine|we|our)\b.* too[.!]*$|^i('ve| have)? (always|once|used to|never|felt|had|hated|loved|lost|did)\b",
    "talks about itself": r"\b(i|my|me|i'm|i've|i'd|i'll)\b",
    "talks about you": r"\b(you|your|you're|you'll|yours)\b",
}
_LENGTHS = ("is brief", "says more")
_LEAST_SHARE, _LEAST_RATIO, _SIGNIFICANT = 0.15, 1.4, 2.5
"""Of replies that show a manner; against the other decoders; and in standard deviations of the difference."""
_MOST, _CANDIDATES = 2, 12
"""Manners or words that a line names, and the words from which short ones (the "s" of "it's") are left out."""


def find_manners(replies_CK: Sequence[Sequence[str]], tokenizer: TokenizerName = "wordpunct") -> list[str]:
    """A line for each decoder, from the replies of all decoders to the same contexts."""
    texts_KC = [[text.replace("’", "'") for text in texts] for texts in zip(*replies_CK, strict=True)]
    tokenize = tokenizer_named(tokenizer, "lower")
    tokens_KC = [[tokenize(text) for text in texts] for texts in texts_KC]
    names = [*_PATTERNS, *_LENGTHS]
    shown_KCM = np.stack([_shown(texts, tokens, tokens_KC) for texts, tokens in zip(texts_KC, tokens_KC, strict=True)])
    words_K = typical_words([count_words(tokens, tokenizer) for tokens in tokens_KC], _CANDIDATES)
    lines = []
    for clear_M, words in zip(_clarity(shown_KCM), words_K, strict=True):
        best = [names[m] for m in np.argsort(-clear_M, kind="stable")[:_MOST] if clear_M[m] > 0]
        telling = [f"“{word}”" for word, _ in words if len(word) > 2 or not word.isascii()][:_MOST]
        if not best and telling:
            best = ["says " + ", ".join(telling)]
        lines.append(", ".join(best) or "like the others")
    return lines


def _shown(
    texts: Sequence[str], tokens_C: Sequence[Sequence[str]], tokens_KC: Sequence[Sequence[Sequence[str]]]
) -> Floats:
    """Which manners each reply of a decoder shows, (C, M); it is brief or says more than the others' replies there."""
    by_pattern = [[bool(re.search(pattern, text, re.I)) for text in texts] for pattern in _PATTERNS.values()]
    typical_C = [np.median([len(tokens) for tokens in same]) for same in zip(*tokens_KC, strict=True)]
    length_C = [len(tokens) for tokens in tokens_C]
    brief = [length < 0.67 * typical for length, typical in zip(length_C, typical_C, strict=True)]
    more = [length > 1.5 * typical for length, typical in zip(length_C, typical_C, strict=True)]
    return np.array([*by_pattern, brief, more], np.float64).T


def _clarity(shown_KCM: Floats) -> Floats:
    """How clearly each decoder has each manner, in standard deviations; 0 where it is not clear, (K, M)."""
    num_decoders, num_contexts, _ = shown_KCM.shape
    share_KM = shown_KCM.mean(1)
    if num_decoders == 1:
        return np.zeros_like(share_KM)
    others_KM = (share_KM.sum(0) - share_KM) / (num_decoders - 1)
    pooled_KM = np.clip((share_KM + others_KM) / 2, 1e-3, 1 - 1e-3)
    z_KM = (share_KM - others_KM) / np.sqrt(pooled_KM * (1 - pooled_KM) * 2 / num_contexts)
    clear_KM = (share_KM >= _LEAST_SHARE) & (share_KM >= _LEAST_RATIO * others_KM) & (z_KM >= _SIGNIFICANT)
    return np.where(clear_KM, z_KM, 0.0)
