"""What the judgements say: wins, ties and losses of each pair, tests, agreement, annotators, and a ranking.

Repeats and gold checks tell how reliable annotators are; they never count as judgements of a system.
"""

import statistics as averages
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from polyreply.arrays import Floats
from polyreply.errors import PolyReplyError
from polyreply.metrics.significance import resample_counts
from polyreply.study.answers import Answers, answered
from polyreply.study.folder import Choice, Comparison, Item, Outcome, Study
from polyreply.study.statistics import are_linked, binomial_tests, bradley_terry, fleiss_kappa, krippendorff_alpha
from polyreply.tables import Cell, Column, Row, Table

SAMPLES = 1000
"""Resamples of an interval."""
SIMULATED = "SIMULATED: scripted annotators, not people"
_OUTCOMES: tuple[Outcome, ...] = ("win", "tie", "loss")
_INTERVAL = (0.025, 0.975)


@dataclass(frozen=True)
class Judgement:
    """An answer that was not undone, with all that is known about it."""

    annotator: str
    item: Item
    comparison: Comparison
    choice: Choice
    outcome: Outcome
    seconds: float | None
    at: str

    @property
    def counts(self) -> bool:
        """Whether it is a judgement of two systems, neither a repeat nor a gold check."""
        return not self.item.is_repeat and not self.comparison.is_gold


def read_judgements(study: Study, answers: Answers) -> list[Judgement]:
    """All judgements, annotator by annotator, in the order in which they were given."""
    judgements = []
    for annotator in study.annotators:
        items = {item.id: item for item in annotator.items}
        for event in answered(answers.events(annotator.name)):
            item = items[event.item]
            choice: Choice = "tie" if event.action == "tie" else "1" if event.action == "1" else "2"
            comparison, outcome = study.comparisons[item.comparison], item.outcome(choice)
            judgements.append(Judgement(annotator.name, item, comparison, choice, outcome, event.seconds, event.at))
    return judgements


@dataclass(frozen=True)
class PairResult:
    """One question about two systems, from the view of the first."""

    question: str
    systems: tuple[str, str]
    wins: int
    ties: int
    losses: int
    contexts: int
    one_sided: float
    """p-value of the hypothesis that the first system is better; ties are left out."""
    two_sided: float
    net: float | None = None
    """Wins less losses, in percent of all judgements."""
    net_interval: tuple[float, float] | None = None
    """95 % bootstrap interval of that, over contexts; None for a single context."""

    @property
    def judgements(self) -> int:
        """All judgements, ties included."""
        return self.wins + self.ties + self.losses


@dataclass(frozen=True)
class Agreement:
    """How far annotators agree about one question beyond chance: 1 is perfect, 0 is chance."""

    question: str
    comparisons: int
    """Comparisons with two answers or more."""
    complete: int
    """Comparisons with all their answers, which Fleiss' kappa is computed from."""
    fleiss_kappa: float | None
    krippendorff_alpha: float | None
    krippendorff_alpha_ordinal: float | None
    """With a win farther from a loss than from a tie."""


@dataclass(frozen=True)
class AnnotatorResult:
    """How far one annotator has come, and how consistent the answers are."""

    annotator: str
    answered: int
    items: int
    repeats: int = 0
    same: int = 0
    """Repeats with the same answer as the first time."""
    gold: int = 0
    right: int = 0
    """Gold checks with the known answer."""
    shared: int = 0
    agreed: int = 0
    """Pairs of an own answer and another annotator's about the same comparison, and how many of them are equal."""
    ties: int = 0
    side_1: int = 0
    side_2: int = 0
    """Answers of each kind, by the side on the screen: far more of one side is a bias."""
    median_seconds: float | None = None


@dataclass(frozen=True)
class Ranked:
    """A system's place by Bradley–Terry."""

    system: str
    strength: float
    """Log-odds against an average system."""
    interval: tuple[float, float] | None
    """95 % bootstrap interval over contexts."""


@dataclass(frozen=True)
class Results:
    """Everything that a study has found so far."""

    study: str
    simulated: dict[str, Any] | None
    pairs: list[PairResult]
    agreement: list[Agreement]
    annotators: list[AnnotatorResult]
    rankings: dict[str, list[Ranked]] = field(default_factory=dict)
    """By question, the best system first; for three systems and more."""
    without: tuple[str, ...] = ()
    """Annotators whose answers were left out."""

    @property
    def judgements(self) -> int:
        """How many judgements of systems there are."""
        return sum(pair.judgements for pair in self.pairs)

    def tree(self) -> dict[str, Any]:
        """All of it as plain data, with percentages beside counts."""
        tree = asdict(self)
        for pair, own in zip(self.pairs, tree["pairs"], strict=True):
            own |= {"judgements": pair.judgements, "percent": dict(zip(_OUTCOMES, _percent(pair), strict=True))}
        return {"simulated": tree.pop("simulated"), **tree}

    def tables(self) -> list[Table]:
        """The table like the paper's, then agreement, annotators and rankings."""
        rankings = [_ranking_table(question, ranked) for question, ranked in self.rankings.items()]
        tables = [self.table(), *rankings, _agreement_table(self.agreement), _annotator_table(self.annotators)]
        return [self._marked(table) for table in tables]

    def render(self, form: str) -> str:
        """All tables as text in one of the formats; CSV has no titles, so there a column marks scripted annotators."""
        tables = self.tables()
        if form == "csv" and self.simulated is not None:
            tables = [_with_column(table, "annotators", "simulated") for table in tables]
        return "\n".join(table.render(form) for table in tables)

    def table(self) -> Table:
        """The table like the paper's."""
        return _pair_table(self.pairs, self._notes())

    def _notes(self) -> list[str]:
        notes = [
            "p: exact binomial test without ties, one-sided for the first system of a pair; not corrected for several "
            "pairs.",
            "Wins − losses: 95 % interval from a bootstrap over contexts.",
        ]
        if self.without:
            notes.append(f"Left out: the answers of {', '.join(self.without)}.")
        return notes

    def _marked(self, table: Table) -> Table:
        if self.simulated is None:
            return table
        return Table(f"{table.title} – {SIMULATED}", table.columns, table.rows, table.notes, table.provenance)


def study_results(
    study: Study, judgements: Sequence[Judgement], *, without: Sequence[str] = (), samples: int = SAMPLES, seed: int = 0
) -> Results:
    """Count, test and rank; `without` names annotators to leave out."""
    unknown = sorted(set(without) - {one.name for one in study.annotators})
    if unknown:
        names = ", ".join(one.name for one in study.annotators)
        raise PolyReplyError(f"--without: expected annotators among {names}, found {unknown[0]}; check the name")
    used = [one for one in judgements if one.annotator not in without]
    counted = [one for one in used if one.counts]
    full = min(study.settings["votes"], len(study.annotators) - len(set(without)))
    rankings = {}
    if len(study.systems) > 2:
        ranked = {name: _rank(study, _of_question(counted, name), samples, seed) for name in study.questions}
        rankings = {name: systems for name, systems in ranked.items() if systems}
    return Results(
        study.id,
        study.simulated,
        [_pair_result(question, pair, counted, samples, seed) for question in study.questions for pair in study.pairs],
        [_agreement(question, _of_question(counted, question), full) for question in study.questions],
        [_annotator_result(study, one.name, judgements) for one in study.annotators if one.name not in without],
        rankings,
        tuple(without),
    )


def _of_question(judgements: Sequence[Judgement], question: str) -> list[Judgement]:
    return [one for one in judgements if one.comparison.question == question]


# --- pairs


def _pair_result(
    question: str, pair: tuple[str, str], judgements: Sequence[Judgement], samples: int, seed: int
) -> PairResult:
    own = [one for one in _of_question(judgements, question) if one.comparison.systems == pair]
    contexts = list(dict.fromkeys(one.comparison.row for one in own))
    counts_CO = np.zeros((len(contexts), len(_OUTCOMES)))
    for one in own:
        counts_CO[contexts.index(one.comparison.row), _OUTCOMES.index(one.outcome)] += 1
    wins, ties, losses = (int(count) for count in counts_CO.sum(0))
    tests = binomial_tests(wins, losses)
    net, interval = _net(counts_CO, samples, seed) if own else (None, None)
    return PairResult(question, pair, wins, ties, losses, len(contexts), *tests, net, interval)


def _net(counts_CO: Floats, samples: int, seed: int) -> tuple[float, tuple[float, float] | None]:
    """Wins less losses in percent, and its interval; contexts are resampled with all their judgements."""
    gains_C, totals_C = counts_CO[:, 0] - counts_CO[:, 2], counts_CO.sum(1)
    net = 100 * float(gains_C.sum() / totals_C.sum())
    if len(counts_CO) < 2:
        return net, None
    drawn = [100 * (counts @ gains_C) / (counts @ totals_C) for counts in resample_counts(len(gains_C), samples, seed)]
    low, high = np.quantile(np.concatenate(drawn), _INTERVAL)
    return net, (float(low), float(high))


# --- ranking


def _rank(study: Study, judgements: Sequence[Judgement], samples: int, seed: int) -> list[Ranked]:
    """Systems by strength; empty as long as comparisons do not link all of them."""
    names = [one.name for one in study.systems]
    contexts = list(dict.fromkeys(one.comparison.row for one in judgements))
    wins_CSS = np.zeros((len(contexts), len(names), len(names)))
    for one in judgements:
        assert one.comparison.systems is not None
        first, second = (names.index(name) for name in one.comparison.systems)
        gain = {"win": 1.0, "tie": 0.5, "loss": 0.0}[one.outcome]
        wins_CSS[contexts.index(one.comparison.row), first, second] += gain
        wins_CSS[contexts.index(one.comparison.row), second, first] += 1 - gain
    if not contexts or not are_linked(wins_CSS.sum(0)):
        return []
    [strengths_S] = bradley_terry(wins_CSS.sum(0, keepdims=True))
    intervals: list[tuple[float, float] | None] = [None] * len(names)
    if len(contexts) > 1:
        flat = wins_CSS.reshape(len(contexts), -1)
        drawn = np.concatenate([counts @ flat for counts in resample_counts(len(flat), samples, seed)])
        low_S, high_S = np.quantile(bradley_terry(drawn.reshape(-1, *wins_CSS.shape[1:])), _INTERVAL, axis=0)
        intervals = [(float(low), float(high)) for low, high in zip(low_S, high_S, strict=True)]
    ranked = [Ranked(name, float(strengths_S[n]), intervals[n]) for n, name in enumerate(names)]
    return sorted(ranked, key=lambda one: -one.strength)


# --- annotators


def _agreement(question: str, judgements: Sequence[Judgement], full: int) -> Agreement:
    """Agreement about one question; `full` is how many answers a complete comparison has."""
    counts: dict[int, list[int]] = {}
    for one in judgements:
        counts.setdefault(one.item.comparison, [0] * len(_OUTCOMES))[_OUTCOMES.index(one.outcome)] += 1
    counts_UC = np.array(list(counts.values()), np.float64).reshape(-1, len(_OUTCOMES))
    complete_UC = counts_UC[counts_UC.sum(1) == full]
    return Agreement(
        question,
        int((counts_UC.sum(1) > 1).sum()),
        len(complete_UC),
        fleiss_kappa(complete_UC),
        krippendorff_alpha(counts_UC),
        krippendorff_alpha(counts_UC, "ordinal"),
    )


def _annotator_result(study: Study, name: str, judgements: Sequence[Judgement]) -> AnnotatorResult:
    [items] = [one.items for one in study.annotators if one.name == name]
    own = [one for one in judgements if one.annotator == name]
    first = {one.item.comparison: one.outcome for one in own if one.counts}
    again = [one for one in own if one.item.is_repeat]
    gold = [one for one in own if one.comparison.is_gold]
    theirs = [one for one in judgements if one.annotator != name and one.counts and one.item.comparison in first]
    seconds = [one.seconds for one in own if one.seconds is not None]
    choices = Counter(one.choice for one in own)
    return AnnotatorResult(
        annotator=name,
        answered=len(own),
        items=len(items),
        repeats=len(again),
        same=sum(first[one.item.comparison] == one.outcome for one in again),
        gold=len(gold),
        right=sum(one.outcome == "win" for one in gold),
        shared=len(theirs),
        agreed=sum(first[one.item.comparison] == one.outcome for one in theirs),
        ties=choices["tie"],
        side_1=choices["1"],
        side_2=choices["2"],
        median_seconds=averages.median(seconds) if seconds else None,
    )


# --- tables


def p_value(value: float) -> str:
    """A p-value as the paper writes it: four decimals, or below which it is."""
    return "<0.0001" if value < 0.0001 else f"{value:.4f}"


def _percent(pair: PairResult) -> list[float]:
    total = max(1, pair.judgements)
    return [100 * count / total for count in (pair.wins, pair.ties, pair.losses)]


def _pair_table(pairs: Sequence[PairResult], notes: Sequence[str]) -> Table:
    """Two rows for each pair, as in the paper: the same counts from either side."""
    rows = []
    for pair in pairs:
        shares, (one, two) = _percent(pair), pair.systems
        judged = pair.judgements > 0
        interval = pair.net_interval and "{:+.1f}…{:+.1f}".format(*pair.net_interval)
        tests = [p_value(pair.one_sided), p_value(pair.two_sided)] if judged else [None, None]
        facts: list[Any] = [pair.judgements, *tests, interval]
        rows.append(Row([pair.question, one, *_shares(shares, judged), *facts]))
        rows.append(Row(["", two, *_shares(shares[::-1], judged), *([""] * len(facts))]))
    columns: list[str | Column] = [
        "question",
        "system",
        *(Column(heading, digits=1) for heading in ("wins %", "ties %", "losses %")),
        "judgements",
        Column("p one-sided", narrow="p one-\nsided"),
        Column("p two-sided", narrow="p two-\nsided"),
        Column("wins − losses, 95 % interval", narrow="wins − losses,\n95 % interval"),
    ]
    return Table("Human evaluation", columns, rows, notes)


def _shares(shares: Sequence[float], judged: bool) -> list[Cell]:
    ahead = judged and shares[0] > shares[2]
    return [Cell(share if judged else None, bold=ahead and place != 1) for place, share in enumerate(shares)]


def _ranking_table(question: str, ranked: Sequence[Ranked]) -> Table:
    rows = [
        [place, one.system, one.strength, "{:+.2f}…{:+.2f}".format(*one.interval) if one.interval else None]
        for place, one in enumerate(ranked, 1)
    ]
    notes = ["Log-odds against an average system; ties are half wins, and one tie is added to each pair."]
    return Table(f"Bradley–Terry ranking, {question}", ["place", "system", "strength", "95 % interval"], rows, notes)


def _agreement_table(agreement: Sequence[Agreement]) -> Table:
    columns = ["question", "comparisons", "Fleiss' kappa", "Krippendorff's alpha", "alpha, ordinal"]
    rows = [
        [one.question, one.comparisons, one.fleiss_kappa, one.krippendorff_alpha, one.krippendorff_alpha_ordinal]
        for one in agreement
    ]
    return Table("Agreement between annotators", columns, rows, ["1 is perfect agreement, 0 is chance."])


def _annotator_table(annotators: Sequence[AnnotatorResult]) -> Table:
    columns = ["annotator", "answered", "repeats", "gold", "agrees", "side 1", "ties"]
    rows = []
    for one in annotators:
        shares = (
            _share(one.answered, one.items),
            _share(one.same, one.repeats),
            _share(one.right, one.gold),
            _share(one.agreed, one.shared),
            _share(one.side_1, one.side_1 + one.side_2),
            _share(one.ties, one.answered),
        )
        rows.append([one.annotator, *shares, one.median_seconds])
    note = (
        "Repeats: the same answer with sides exchanged. Gold: the known answer. Agrees: with other annotators. Side 1: "
        "of the answers that are no ties. Seconds: the median."
    )
    return Table("Annotators", [*columns, Column("seconds", digits=1)], rows, [note])


def _with_column(table: Table, heading: str, value: str) -> Table:
    rows = [[*(row.cells if isinstance(row, Row) else row), value] for row in table.rows]
    return Table(table.title, [*table.columns, heading], rows, table.notes, table.provenance)


def _share(part: int, whole: int) -> str | None:
    return f"{part}/{whole}" if whole else None
