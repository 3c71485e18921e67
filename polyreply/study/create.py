"""A new study from response files: contexts are sampled, systems paired, blinded and shared out among annotators.

Everything random follows from the seed, except ids and tokens, which must not be guessable.
"""

import random
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

import msgspec

from polyreply import __version__
from polyreply.config import to_tree
from polyreply.errors import DataError, PolyReplyError
from polyreply.files import digest
from polyreply.metrics.response_files import Row, check_one_k, check_same_contexts, read_responses
from polyreply.study.balance import balanced_sides, in_order, most_repeats, share_out
from polyreply.study.folder import Annotator, Comparison, Item, StudiedSystem, Study
from polyreply.study.wording import Question, Wording
from polyreply.tables import one_line

DEFAULT_CONTEXTS, DEFAULT_ANNOTATORS = 100, 5
"""As in the paper."""
_LEAST_TOKENS = 5
"""Fewest words (or characters, where there are no spaces) of a response that is scrambled for a gold check."""
_SCRAMBLES = 20
_ONE_K = "reply with one K throughout, because annotators would recognise a system by its number of responses"
_SAME_CONTEXTS = "a study compares responses to the same contexts: let every system reply to the same file"


@dataclass(frozen=True)
class StudySettings:
    """What a researcher decides."""

    contexts: int | None = None
    """Contexts to sample; None: 100, or all if there are fewer."""
    annotators: tuple[str, ...] = tuple(f"annotator-{n}" for n in range(1, DEFAULT_ANNOTATORS + 1))
    votes: int | None = None
    """Annotators who judge each comparison; None: all of them, as in the paper."""
    questions: tuple[str, ...] = ()
    """Names of the wording's questions; empty: all of them."""
    pairs: tuple[tuple[str, str], ...] = ()
    """The systems to compare with each other; empty: all pairs. The hypothesis is that the first one is better."""
    repeats: int = 0
    """Comparisons per question that each annotator sees twice, the second time with sides exchanged."""
    gold: int = 0
    """Checks per question with a known answer that are made from the responses."""
    seed: int = 0


def new_study(
    files: Mapping[str, Path], wording: Wording, settings: StudySettings, gold_file: Path | None = None
) -> Study:
    """Read the response files, by system, and plan the whole study; raises if something does not fit."""
    rows = read_systems(files)
    questions = _chosen_questions(settings, wording, len(next(iter(rows.values()))[0].texts))
    pairs = _chosen_pairs(settings, list(files))
    votes = _checked_votes(settings)
    rng = random.Random(settings.seed)
    sampled, others = _sample_contexts(rows, settings.contexts, rng)
    strata = list(_comparisons(rows, sampled, questions, pairs, rng))
    checks = _gold_from_responses(rows, others or sampled, questions, settings.gold, rng)
    checks += _gold_from_file(gold_file, questions) if gold_file else []
    comparisons = [one for stratum in strata for one in stratum] + checks
    annotators = _annotators(comparisons, settings, votes, rng)
    return Study(
        id=secrets.token_hex(8),
        systems=tuple(StudiedSystem(name, str(path), digest(path)) for name, path in files.items()),
        pairs=pairs,
        wording=wording,
        questions=tuple(questions),
        comparisons=tuple(comparisons),
        annotators=annotators,
        settings={**to_tree(settings), "contexts": len(sampled), "votes": votes, "gold": len(checks)},
        version=__version__,
    )


# --- what is asked for


def name_systems(files: Sequence[str]) -> dict[str, Path]:
    """Response files by the names of their systems: `NAME=FILE`, or the file's own name without its endings."""
    named: dict[str, Path] = {}
    for text in files:
        name, equals, path = text.partition("=")
        if not equals or Path(text).exists():
            path, name = text, Path(text).name.partition(".")[0] or text
        name = one_line(name).strip()
        if name in named:
            raise PolyReplyError(
                f"expected systems with different names, found {name} for {named[name]} and {path}; "
                "name them with NAME=FILE"
            )
        named[name] = Path(path)
    if len(named) < 2:
        raise PolyReplyError(f"expected the response files of two systems or more, found {len(named)}; name another")
    return named


def read_systems(files: Mapping[str, Path]) -> dict[str, list[Row]]:
    """The rows of each system; raises unless contexts and K are the same in all files."""
    rows = {name: read_responses(path) for name, path in files.items()}
    (first, first_path), *others = files.items()
    for name, path in files.items():
        check_one_k(path, rows[name], _ONE_K)
    for name, path in others:
        check_same_contexts(path, rows[name], first_path, rows[first], _SAME_CONTEXTS)
        expected, found = len(rows[first][0].texts), len(rows[name][0].texts)
        if expected != found:
            raise DataError(
                f"{path}: expected {expected} responses to each context as in {first_path}, found {found}; {_ONE_K}"
            )
    return rows


def _chosen_questions(settings: StudySettings, wording: Wording, k: int) -> dict[str, Question]:
    """The questions to ask; with one response to a context, those that show all responses are left out."""
    for name in settings.questions:
        if name not in wording.questions:
            raise PolyReplyError(
                f"questions: expected some of {', '.join(wording.questions)}, found {name!r}; see the wording file"
            )
        if k == 1 and wording.questions[name].shows == "all":
            raise PolyReplyError(f"questions: {name} shows all K responses, found K = 1; ask another question")
    names = settings.questions or tuple(wording.questions)
    chosen = {name: wording.questions[name] for name in names if k > 1 or wording.questions[name].shows == "one"}
    if not chosen:
        raise PolyReplyError("questions: expected one for a single response, found none in the wording; add one")
    return chosen


def _chosen_pairs(settings: StudySettings, systems: Sequence[str]) -> tuple[tuple[str, str], ...]:
    seen: set[frozenset[str]] = set()
    for pair in settings.pairs:
        unknown = [name for name in pair if name not in systems]
        if unknown or pair[0] == pair[1] or frozenset(pair) in seen:
            reason = f"no system {unknown[0]!r}" if unknown else f"{pair[0]}:{pair[1]} twice or with itself"
            raise PolyReplyError(f"pairs: expected different pairs of {', '.join(systems)}, found {reason}; fix --pair")
        seen.add(frozenset(pair))
    return settings.pairs or tuple(combinations(systems, 2))


def _checked_votes(settings: StudySettings) -> int:
    people = settings.annotators
    if not people or len(set(people)) < len(people) or not all(name.strip() for name in people):
        raise PolyReplyError(f"annotators: expected different names, found {', '.join(people) or 'none'}; rename them")
    votes = len(people) if settings.votes is None else settings.votes
    if not 1 <= votes <= len(people):
        raise PolyReplyError(f"votes: expected 1 to {len(people)}, the number of annotators, found {votes}")
    return votes


# --- comparisons


def _sample_contexts(
    rows: Mapping[str, Sequence[Row]], wanted: int | None, rng: random.Random
) -> tuple[list[int], list[int]]:
    """Places of sampled rows, all with different contexts, and the places of the other contexts."""
    first: dict[tuple[str, ...], int] = {}
    for place, row in enumerate(next(iter(rows.values()))):
        first.setdefault(row.context, place)
    places = list(first.values())
    if wanted is not None and not 1 <= wanted <= len(places):
        raise PolyReplyError(
            f"contexts: expected 1 to {len(places)}, the different contexts in the files, found {wanted}"
        )
    rng.shuffle(places)
    size = min(DEFAULT_CONTEXTS, len(places)) if wanted is None else wanted
    return places[:size], places[size:]


def _comparisons(
    rows: Mapping[str, Sequence[Row]],
    sampled: Sequence[int],
    questions: Mapping[str, Question],
    pairs: Sequence[tuple[str, str]],
    rng: random.Random,
) -> Iterator[list[Comparison]]:
    """All comparisons, one list for each question about each pair.

    Where one response is shown it is drawn from the K of its system, the same draw in all comparisons of a context.
    """
    k = len(next(iter(rows.values()))[0].texts)
    drawn = {(name, place): rng.randrange(k) for name in rows for place in sampled}
    for name, question in questions.items():
        for pair in pairs:
            stratum = []
            for place in sampled:
                shown = [_shown_texts(rows[one][place], question, drawn[one, place]) for one in pair]
                row = rows[pair[0]][place]
                stratum.append(Comparison(name, _clean(row.context), (shown[0], shown[1]), pair, row.line))
            yield stratum


def _shown_texts(row: Row, question: Question, drawn: int) -> tuple[str, ...]:
    return _clean(row.texts if question.shows == "all" else [row.texts[drawn]])


def _clean(texts: Sequence[str]) -> tuple[str, ...]:
    """Texts without the white space around them, by which a system could be recognised."""
    return tuple(text.strip() for text in texts)


# --- gold checks


def _gold_from_responses(
    rows: Mapping[str, Sequence[Row]],
    places: Sequence[int],
    questions: Mapping[str, Question],
    wanted: int,
    rng: random.Random,
) -> list[Comparison]:
    """Checks with a known answer.

    A response is compared with its own words in another order, or K different responses with one of them K times.
    """
    checks = []
    for name, question in questions.items():
        candidates = [rows[system][place] for place in places for system in rows]
        made = (_gold(name, question.shows, row, rng) for row in rng.sample(candidates, len(candidates)))
        usable = {check.context: check for check in made if check is not None} if wanted else {}
        if len(usable) < wanted:
            raise PolyReplyError(
                f"gold: expected {wanted} contexts with responses for a check of {name}, found {len(usable)}; "
                "ask for fewer, or write your own with --gold-file"
            )
        checks += list(usable.values())[:wanted]
    return checks


def _gold(name: str, shows: Literal["one", "all"], row: Row, rng: random.Random) -> Comparison | None:
    """A check made of a row's responses; None if they do not allow one."""
    context, texts = _clean(row.context), _clean(row.texts)
    if shows == "all":
        if len(set(texts)) < len(texts) or not all(texts):
            return None
        return Comparison(name, context, (texts, (rng.choice(texts),) * len(texts)), None, 0)
    text = rng.choice(texts)
    scrambled = _scramble(text, rng)
    return Comparison(name, context, ((text,), (scrambled,)), None, 0) if scrambled else None


def _scramble(text: str, rng: random.Random) -> str:
    """The words in another order, or the characters of a text without spaces; empty if the text is too short."""
    gap = " " if " " in text else ""
    tokens = text.split() if gap else list(text)
    for _ in range(_SCRAMBLES if len(tokens) >= _LEAST_TOKENS else 0):
        scrambled = gap.join(rng.sample(tokens, len(tokens)))
        if scrambled != text:
            return scrambled
    return ""


class _GoldRow(msgspec.Struct, forbid_unknown_fields=True):
    question: str
    context: str | list[str]
    better: str | list[str]
    worse: str | list[str]


def _gold_from_file(path: Path, questions: Mapping[str, Question]) -> list[Comparison]:
    """Checks that the researcher wrote: JSONL rows of a question, a context, a better and a worse side."""
    checks = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"{path}: expected a file of gold checks, found {error.strerror}; check the path") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line, type=_GoldRow)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DataError(
                f'{path}, line {number}: expected {{"question", "context", "better", "worse"}}, found {error}; fix it'
            ) from None
        if row.question not in questions:
            raise DataError(
                f"{path}, line {number}: expected one of {', '.join(questions)}, found {row.question!r}; fix the row"
            )
        parts = (row.context, row.better, row.worse)
        context, better, worse = (_clean([one] if isinstance(one, str) else one) for one in parts)
        checks.append(Comparison(row.question, context, (better, worse), None, 0))
    if not checks:
        raise DataError(f"{path}: expected gold checks, found an empty file; write some or leave it out")
    return checks


# --- who sees what


def _annotators(
    comparisons: Sequence[Comparison], settings: StudySettings, votes: int, rng: random.Random
) -> tuple[Annotator, ...]:
    """Each annotator's items: question by question, in an order of their own."""
    strata: dict[tuple[str, tuple[str, str]], list[int]] = {}
    checks: dict[str, list[int]] = {}
    for number, one in enumerate(comparisons):
        if one.systems is None:
            checks.setdefault(one.question, []).append(number)
        else:
            strata.setdefault((one.question, one.systems), []).append(number)
    loads = share_out(list(strata.values()), len(settings.annotators), votes, rng)
    edges = [(annotator, comparison) for annotator, load in enumerate(loads) for comparison in load]
    swapped: dict[tuple[int, int], bool] = {}
    for stratum in strata.values():
        inside = set(stratum)
        few = [edge for edge in edges if edge[1] in inside]
        swapped |= dict(zip(few, balanced_sides(few, rng), strict=True))
    people = []
    for annotator, (name, load) in enumerate(zip(settings.annotators, loads, strict=True)):
        items: list[Item] = []
        for question in dict.fromkeys(question for question, _ in strata):
            own = [number for number in load if comparisons[number].question == question]
            gold = checks.get(question, [])
            sides = {number: swapped[annotator, number] for number in own} | _coin_sides(gold, rng)
            items += _ordered_items(comparisons, own, gold, sides, settings.repeats, rng)
        people.append(Annotator(name, tuple(items)))
    return tuple(people)


def _coin_sides(checks: Sequence[int], rng: random.Random) -> dict[int, bool]:
    """Exchange the sides of every other check, in random order."""
    first = rng.random() < 0.5
    return {number: (place % 2 == 0) == first for place, number in enumerate(rng.sample(checks, len(checks)))}


def _ordered_items(
    comparisons: Sequence[Comparison],
    own: Sequence[int],
    gold: Sequence[int],
    sides: Mapping[int, bool],
    repeats: int,
    rng: random.Random,
) -> list[Item]:
    if not 0 <= repeats <= most_repeats(len(own)):
        raise PolyReplyError(
            f"repeats: expected at most {most_repeats(len(own))} of an annotator's {len(own)} comparisons for each "
            f"question, found {repeats}; ask for fewer"
        )
    numbers, are_repeats = in_order(own, repeats, gold, rng)
    items = []
    for number, is_repeat in zip(numbers, are_repeats, strict=True):
        swapped = sides[number] != is_repeat
        sizes = [len(texts) for texts in comparisons[number].texts]
        one, two = (tuple(rng.sample(range(size), size)) for size in (sizes[::-1] if swapped else sizes))
        items.append(Item(secrets.token_urlsafe(12), number, swapped, (one, two), is_repeat))
    return items
