"""Cleaning rules for utterances. Each has a name, a documented promise and a switch in `CleanSettings`.

A rule sees a whole column of texts and works on it with Arrow's kernels; it either rewrites texts or marks those to
drop. Rules run in the order of `RULES`.
"""

import html
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from polyreply.arrays import Bools
from polyreply.data.characters import CJK, HAN, LATIN, LETTER, LETTER_OF_A_SCRIPT, SIGN, Characters


@dataclass(frozen=True)
class CleanSettings:
    """Which rules run, and their limits."""

    control: bool = True
    """Remove control and zero-width characters."""
    markup: bool = True
    """Remove HTML tags and subtitle style codes, and resolve entities such as &amp;."""
    nfkc: bool = True
    """Unicode NFKC: full-width letters, ligatures and the like become plain; Chinese keeps its own punctuation."""
    quotes: bool = True
    """Curly quotation marks and apostrophes become straight ones."""
    whitespace: bool = True
    """Runs of white space become one space; none at the ends."""
    detached: bool = True
    """Re-attach punctuation that a tokenizer detached: "it 's fine ." becomes "it's fine.", and misread "we ' il"
    becomes "we'll"; no spaces in Chinese."""
    urls: bool = True
    """Drop utterances with a web or e-mail address."""
    length: bool = True
    """Drop utterances outside the limits below. Without spaces (Chinese, Japanese) each character is a word."""
    min_words: Annotated[int, Field(ge=0)] = 1
    """Fewest words (length)."""
    max_words: Annotated[int, Field(ge=1)] = 100
    """Most words (length)."""
    min_chars: Annotated[int, Field(ge=0)] = 1
    """Fewest characters (length)."""
    max_chars: Annotated[int, Field(ge=1)] = 600
    """Most characters (length)."""
    repeated_chars: bool = True
    """Drop utterances with one character more than `max_repeated_chars` times in a row ("aaaaaaaaaa")."""
    max_repeated_chars: Annotated[int, Field(ge=1)] = 8
    """Longest run of one character (repeated_chars)."""
    repeated_words: bool = True
    """Drop utterances with one word more than `max_repeated_words` times in a row ("no no no no no")."""
    max_repeated_words: Annotated[int, Field(ge=1)] = 4
    """Longest run of one word (repeated_words)."""
    noise: bool = True
    """Drop utterances without a letter or digit, or with too few of them next to signs that are not plain punctuation:
    emoticons, "###", "♪ ♪"."""
    min_letter_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Smallest share of letters and digits among the characters other than space and . , ! ? ' " - (noise)."""
    script: bool = True
    """Drop utterances whose letters are mostly not of the language's script (for language `any`: nothing)."""
    personal: bool = False
    """Drop utterances that identify a person: phone numbers, handles, addresses, "my name is" (English)."""
    abuse: bool = False
    """Drop utterances with insults, slurs, obscenities, threats or talk of self-harm (English)."""
    words: tuple[str, ...] = ()
    """Drop utterances with one of these words or phrases, in any case."""
    duplicates: bool = True
    """Drop the second and later occurrences of a (context, response) pair inside a split."""
    max_uses: Annotated[int, Field(ge=1)] | None = None
    """Most pairs of a split with the same response (after lower-casing and removing punctuation), drawn at random; None
    means any number. A reply that answers everything ("That's cool!") is what a model learns first."""

    def problems(self) -> Iterator[str]:
        """Limits that contradict each other."""
        if self.min_words > self.max_words:
            yield f"min_words {self.min_words} is above max_words {self.max_words}; lower it or raise the other"
        if self.min_chars > self.max_chars:
            yield f"min_chars {self.min_chars} is above max_chars {self.max_chars}; lower it or raise the other"
        if not all(phrase.strip() for phrase in self.words):
            yield "words holds an empty word, which would drop everything; remove it"


Language = Literal["en", "zh", "any"]


@dataclass(frozen=True)
class Rule:
    """One cleaning rule: `apply` returns the rewritten texts, or a mask of the texts to drop."""

    name: str
    rewrites: bool
    apply: Callable[[pa.Array, CleanSettings, Language], Any]
    shows_examples: bool = True
    """Whether the report may quote what it found."""


@dataclass
class Cleaned:
    """Texts after all rules. `dropped_by` holds the index into RULES of the rule that dropped a text, or -1."""

    texts: pa.Array
    dropped_by: npt.NDArray[np.int8]
    changed_by: dict[str, Bools]
    """For each rewriting rule, the texts it changed."""
    steps: dict[str, tuple[pa.Array, pa.Array]]
    """For each rewriting rule, the texts as they came to it and as it left them."""


def clean(texts: pa.Array, settings: CleanSettings, language: Language = "en") -> Cleaned:
    """Run every rule that is switched on over a column of texts; a text dropped by one rule is not seen by the next."""
    result = Cleaned(texts, np.full(len(texts), -1, np.int8), {}, {})
    for index, rule in enumerate(RULES):
        if rule.name != "empty" and not getattr(settings, rule.name):
            continue
        if rule.rewrites:
            rewritten = rule.apply(result.texts, settings, language)
            result.changed_by[rule.name] = _mask(pc.not_equal(rewritten, result.texts))
            result.steps[rule.name] = (result.texts, rewritten)
            result.texts = rewritten
        else:
            found = rule.apply(result.texts, settings, language) & (result.dropped_by < 0)
            result.dropped_by[found] = index
    return result


def reattach(texts: Sequence[str], language: Language) -> list[str]:
    """The rule `detached` alone, which also makes the apostrophe of "don ’ t" plain; other quotes stay as they are."""
    plain = pa.array(texts, pa.string())
    if language != "zh":
        plain = _replace(plain, "[‘’‛]", "'")
    attached: list[str] = _detached(plain, CleanSettings(), language).to_pylist()
    return attached


def _mask(array: pa.Array) -> Bools:
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _matches(texts: pa.Array, pattern: str, ignore_case: bool = False) -> Bools:
    return _mask(pc.match_substring_regex(texts, pattern, ignore_case=ignore_case))


def _replace(texts: pa.Array, pattern: str, replacement: str) -> pa.Array:
    return pc.replace_substring_regex(texts, pattern, replacement)


# Rewriting rules.


def _control(texts: pa.Array, settings: CleanSettings, language: Language) -> pa.Array:
    spaced = _replace(texts, r"[\x00-\x1f\x7f-\x9f\x{2028}\x{2029}]", " ")
    return _replace(spaced, r"[\x{200b}-\x{200f}\x{202a}-\x{202e}\x{2060}-\x{2064}\x{feff}\x{fffd}]", "")


_TAG = r"""</?[a-zA-Z][\w:-]*(?:\s+[\w:-]+\s*=\s*(?:"[^"]*"|'[^']*'|[^\s>]+))*\s*/?>|\{\\[^{}]{0,200}\}"""
"""An HTML tag with its attributes, or a style code of subtitles such as {\\an8}; not any text in angle brackets."""


def _markup(texts: pa.Array, settings: CleanSettings, language: Language) -> pa.Array:
    entities = _matches(texts, r"&(#\d+|#x[0-9a-fA-F]+|[a-zA-Z]+);")
    if entities.any():
        resolved = [html.unescape(text) for text in texts.filter(pa.array(entities)).to_pylist()]
        texts = pc.replace_with_mask(texts, pa.array(entities), pa.array(resolved, texts.type))
    return _replace(texts, _TAG, " ")


_CHINESE_SIGNS = "，！？：；（）…"
"""Full-width punctuation of Chinese text, which NFKC would turn into that of English."""


def _nfkc(texts: pa.Array, settings: CleanSettings, language: Language) -> pa.Array:
    if language != "zh":
        return pc.utf8_normalize(texts, form="NFKC")
    for number, sign in enumerate(_CHINESE_SIGNS):  # hidden in private characters, which NFKC leaves alone
        texts = pc.replace_substring(texts, sign, chr(0xF000 + number))
    texts = pc.utf8_normalize(texts, form="NFKC")
    for number, sign in enumerate(_CHINESE_SIGNS):
        texts = pc.replace_substring(texts, chr(0xF000 + number), sign)
    return texts


def _quotes(texts: pa.Array, settings: CleanSettings, language: Language) -> pa.Array:
    straight = _replace(texts, r"[‘’‛`´]", "'")
    return _replace(_replace(straight, r"(\w)''(\w)", r"\1'\2"), r"[“”„‟«»]|''", '"')


def _whitespace(texts: pa.Array, settings: CleanSettings, language: Language) -> pa.Array:
    plain = _replace(
        texts,
        r"[\t\n\v\f\r\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]+",
        " ",
    )
    return pc.utf8_trim_whitespace(_replace(plain, " {2,}", " "))


_BEFORE_PUNCTUATION = (r" +([,.!?%]+|[)\]]+)(\s|[\"')\]]|$)", r"\1\2")
_WILL = "i|you|he|she|it|we|they|that|this|there|what|who"
"""Words whose 'll becomes 'il or 'ii when text recognition takes l for i; in French, "qu'il" is right."""
_DETACHED = (
    (r"(?i)\b(\w+) ?n ' ?t\b", r"\1n't"),  # do n ' t
    (r"(?i)\b(\w+) n't\b", r"\1n't"),  # do n't
    (r"(?i)(\w) ?' ?(s|m|re|ve|ll|d|t)(\s|[,.!?;)]|$)", r"\1'\2\3"),  # it 's, I ' ll, don ' t
    (rf"(?i)\b({_WILL}) ?' ?(il|ii)\b", r"\1'll"),  # we ' il
    (r"s ' (\w)", r"s' \1"),  # five minutes ' walk
    (r"(?i)\b(gon|wan) na\b", r"\1na"),
    (r"(?i)\b(got) ta\b", r"\1ta"),
    (r" +([;:])(\s|$)", r"\1\2"),
    _BEFORE_PUNCTUATION,
    _BEFORE_PUNCTUATION,  # again: a match uses up the space behind it, as in "( me ) ?"
    (r"([(\[]) +", r"\1"),
    (r"\$ +(\d)", r"$\1"),
)


def _detached(texts: pa.Array, settings: CleanSettings, language: Language) -> pa.Array:
    if language == "zh":
        for _ in range(2):  # a match uses up its right neighbour, so every other gap is left for a second pass
            texts = _replace(texts, rf"([{CJK}\p{{P}}]) +([{CJK}\p{{P}}])", r"\1\2")
        return texts
    for pattern, replacement in _DETACHED:
        texts = _replace(texts, pattern, replacement)
    return texts


# Dropping rules.


def _empty(texts: pa.Array, settings: CleanSettings, language: Language) -> Bools:
    return ~_matches(texts, r"\S")


def _urls(texts: pa.Array, settings: CleanSettings, language: Language) -> Bools:
    address = r"https?\s?:\s?/|\bwww\s?\.|\b[a-z0-9-]+\.(com|org|net|cn|ly|io|co\.uk)\b|\b\S+@[a-z0-9-]+\.[a-z]"
    return _matches(texts, address, ignore_case=True)


def _length(texts: pa.Array, settings: CleanSettings, language: Language) -> Bools:
    characters = Characters(texts)
    words, chars = characters.words(), characters.ends - characters.starts
    outside_words = (words < settings.min_words) | (words > settings.max_words)
    outside_chars = (chars < settings.min_chars) | (chars > settings.max_chars)
    return np.asarray(outside_words | outside_chars)


def _repeated_chars(texts: pa.Array, settings: CleanSettings, language: Language) -> Bools:
    characters = Characters(texts)
    return _has_run(characters.codes, characters.owner(), len(texts), settings.max_repeated_chars)


def _repeated_words(texts: pa.Array, settings: CleanSettings, language: Language) -> Bools:
    plain = pc.utf8_trim_whitespace(pc.utf8_lower(_replace(texts, r"[^\p{L}\p{N}\s]+", " ")))
    words = pc.utf8_split_whitespace(plain)  # trimmed: Arrow now and then fails to split at white space at the end
    codes = words.flatten().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    owner = np.repeat(np.arange(len(texts)), pc.list_value_length(words).to_numpy(zero_copy_only=False))
    return _has_run(codes, owner, len(texts), settings.max_repeated_words)


def _has_run(codes: npt.NDArray[Any], owner: npt.NDArray[Any], num_texts: int, longest: int) -> Bools:
    """Which texts hold one code more than `longest` times in a row; `owner` is the text of each code."""
    found = np.zeros(num_texts, np.bool_)
    if len(codes) > longest:
        starts = np.flatnonzero(np.r_[True, (codes[1:] != codes[:-1]) | (owner[1:] != owner[:-1])])
        lengths = np.diff(np.r_[starts, len(codes)])
        found[owner[starts[lengths > longest]]] = True
    return found


def _noise(texts: pa.Array, settings: CleanSettings, language: Language) -> Bools:
    characters = Characters(texts)
    letters, signs = characters.count(LETTER), characters.count(SIGN)
    return np.asarray((letters == 0) | (letters < settings.min_letter_share * (letters + signs)))


_SCRIPT: dict[Language, int] = {"en": LATIN, "zh": HAN}


def _script(texts: pa.Array, settings: CleanSettings, language: Language) -> Bools:
    if language == "any":
        return np.zeros(len(texts), np.bool_)
    characters = Characters(texts)
    return 2 * characters.count(_SCRIPT[language]) < characters.count(LETTER_OF_A_SCRIPT)


# Screens for data that a published model should not learn: personal data and abuse, as patterns of English text. They
# are blunt: they drop whole utterances, too many rather than too few, and still miss what no pattern can know, such as
# a friend's first name. The patterns are RE2's (Arrow's), which has no look-around; they ignore case except inside
# `(?-i:…)`.

_NAME = r"(?-i:[A-Z][a-z]+)"
_NETWORK = r"(insta(gram)?|snap(chat)?|facebook|fb|twitter|discord|skype|gamertag)"
_STREET = r"(street|st|avenue|ave|road|rd|lane|ln|boulevard|blvd|apartment|apt)"

_PERSONAL = "|".join(
    (
        r"\S@\S+\.\w",  # an e-mail address
        r"(^|[\s(:])@\s?[a-z_]",  # a handle
        r"\d{7,}",  # a phone or account number
        r"\d{3}\)?[\s.-]{0,2}\d{3}[\s.-]?\d{4}",
        r"\b\d{3}[.-]\d{4}\b",
        r"\b\d{1,5}\s(north|south|east|west)\b",
        rf"\b\d{{1,5}}\s{_NAME}\s{_STREET}\b",
        r"\bmy (full |real |first |last |middle )?names?('s)?( is)? ",
        rf"\b(i'?m called|call me|i go by) {_NAME}",
        rf"\b(hi|hey|hello)\b.{{0,20}}\b(i'?m|i am|this is|it's) {_NAME}",
        rf"\bmy ({_NETWORK}|number|phone number|e-?mail|address|user ?name|handle)( name| account| address)? is\b",
        r"\b(add|follow|text|call|message|find|dm|email) me (on|at)\b|\b(add|follow|dm) me\b|\btext me\b",
        r"\b(social security|credit card number|password is|zip code is)\b",
    )
)

_ABUSE = "|".join(
    rf"\b({words})\b"
    for words in (
        r"\w*fuck\w*|f+u+k+(ing|er|ed)?|f\*+\w*|wtf|stfu|\w*shit(s|ty|ting|head|hole)?|sh\*+t?|bullcrap",
        r"bitch\w*|b\*+\w*|ass|asses|\w*assh?oles?|dumbass|jackass|bastards?|cunts?|twats?|wankers?|pricks?|douche\w*",
        r"nigg\w*|negro\w*|chinks?|spics?|kikes?|gooks?|wetbacks?|beaners?|honkys?|crackers? people|jigg?aboo\w*",
        r"fag|fags|faggot\w*|dykes?|tranny|trannies|homos?|retard\w*|tards?|midgets?|spaz|cripples?",
        r"sluts?|slutty|whores?|hoes|hookers?|prostitut\w*|porn\w*|hentai|nudes?|boobs?|tits?|titties|horny|sexy|sexting",
        r"blow ?jobs?|hand ?jobs?|dildos?|masturbat\w*|orgasm\w*|penis\w*|vagina\w*|dicks?|pussy|cum|cumming",
        r"have sex|having sex|had sex|sex with|rap(e|ed|es|ing|ist|ists)|molest\w*|pedo\w*|incest",
        r"(kill|murder|strangle|stab|shoot|hang) (you|yourself|yourselves|myself|himself|herself|them all|him|her)",
        r"kys|suicid\w*|self[ -]?harm\w*|cut(ting)? (yourself|myself)|go die|hope you die|wish (you|i) (were|was) dead",
        r"(you|you're|youre|ur|u|are) (so |such |such an? |an? |all |just |really |fucking )*(stupid|dumb|idiots?|ugly|"
        r"fat|morons?|losers?|worthless|pathetic|trash|disgusting)",
        r"shut (the \w+ )?up|shut your \w+|screw you|go to hell|hate (you|u)|damn you",
        r"(hate|kill|gas|deport|nuke) (all )?(the )?(jews?|muslims?|blacks?|whites?|mexicans?|gays?|women|asians?)",
        r"hitler|nazis?|kkk|holocaust|white power|terroris\w+|school shoot\w*",
    )
)


def _personal(texts: pa.Array, settings: CleanSettings, language: Language) -> Bools:
    return _matches(texts, _PERSONAL, ignore_case=True)


def _abuse(texts: pa.Array, settings: CleanSettings, language: Language) -> Bools:
    return _matches(texts, _ABUSE, ignore_case=True)


def _words(texts: pa.Array, settings: CleanSettings, language: Language) -> Bools:
    phrases = (r"\s+".join(re.escape(word) for word in phrase.split()) for phrase in settings.words)
    return _matches(texts, "|".join(rf"(?:^|[^\pL\pN]){phrase}(?:[^\pL\pN]|$)" for phrase in phrases), ignore_case=True)


RULES = (
    Rule("markup", True, _markup),
    Rule("control", True, _control),
    Rule("nfkc", True, _nfkc),
    Rule("quotes", True, _quotes),
    Rule("whitespace", True, _whitespace),
    Rule("detached", True, _detached),
    Rule("empty", False, _empty),
    Rule("urls", False, _urls),
    Rule("length", False, _length),
    Rule("repeated_chars", False, _repeated_chars),
    Rule("repeated_words", False, _repeated_words),
    Rule("noise", False, _noise),
    Rule("script", False, _script),
    Rule("personal", False, _personal, shows_examples=False),
    Rule("abuse", False, _abuse, shows_examples=False),
    Rule("words", False, _words),
)
"""Every rule on utterances, in the order they run. `empty` cannot be switched off."""
