"""The four tokenizers of scores.

- `wordpunct`: runs of word characters and runs of other signs, as NLTK's function of that name; the paper's choice for
  English.
- `characters`: every character but white space; for Chinese.
- `13a` and `zh`: sacreBLEU's, token for token, for scores that are compared with sacreBLEU's.
"""

import re
from collections.abc import Callable
from typing import Literal, get_args

from polyreply.errors import PolyReplyError

TokenizerName = Literal["wordpunct", "characters", "13a", "zh"]
CaseName = Literal["lower", "mixed"]
Tokenize = Callable[[str], list[str]]

TOKENIZERS: tuple[str, ...] = get_args(TokenizerName)
CASES: tuple[str, ...] = get_args(CaseName)


def tokenizer_named(name: str, case: str) -> Tokenize:
    """The function from a text to its tokens."""
    for option, value, choices in (("tokenizer", name, TOKENIZERS), ("case", case, CASES)):
        if value not in choices:
            raise PolyReplyError(f"{option}: expected {', '.join(choices[:-1])} or {choices[-1]}, found {value!r}")
    tokenize = _TOKENIZE[name]
    if case == "mixed":
        return tokenize
    return lambda text: tokenize(text.lower())


_wordpunct: Tokenize = re.compile(r"\w+|[^\w\s]+").findall
_characters: Tokenize = re.compile(r"\S").findall

# The rules of mteval-v13a, which both of sacreBLEU's tokenizers end with. They run one after the other, and each
# consumes the neighbours it looks at: "a.,b" depends on that, so they are not written as look-arounds.
_SIGNS = re.compile(r"([ -&(-+/:-@\[-`{-~])")
_MARK_AFTER_NO_DIGIT = re.compile(r"([^0-9])([.,])")
_MARK_BEFORE_NO_DIGIT = re.compile(r"([.,])([^0-9])")
_DASH_AFTER_DIGIT = re.compile(r"([0-9])(-)")
_ENTITIES = (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"))

# What sacreBLEU's zh separates, one character at a time. The first and the third range begin and end where they do
# because sacreBLEU writes code points above FFFF with four digits, and scores must agree with it.
_ZH = re.compile(
    "([\u2001-\u2a6d\u2e80-\u2eff\u2f00-\u2fdf\u2ff0-\u2fff\u3000-\u303f\u3100-\u312f\u31a0-\u31bf\u31c0-\u31ef"
    "\u3200-\u33ff\u3400-\u4db5\u4e00-\u9fbb\uf900-\ufa2d\ufa30-\ufa6a\ufa70-\ufad9\ufe10-\ufe1f\ufe30-\ufe4f"
    "\uff00-\uffef])"
)


def _mteval(line: str) -> list[str]:
    line = _SIGNS.sub(r" \1 ", line)
    line = _MARK_AFTER_NO_DIGIT.sub(r"\1 \2 ", line)
    line = _MARK_BEFORE_NO_DIGIT.sub(r" \1 \2", line)
    return _DASH_AFTER_DIGIT.sub(r"\1 \2 ", line).split()


def _13a(text: str) -> list[str]:
    line = text.rstrip().replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    for entity, sign in _ENTITIES:
        line = line.replace(entity, sign)
    return _mteval(f" {line} ")


def _zh(text: str) -> list[str]:
    return _mteval(_ZH.sub(r" \1 ", text.strip()))


_TOKENIZE: dict[str, Tokenize] = {"wordpunct": _wordpunct, "characters": _characters, "13a": _13a, "zh": _zh}
