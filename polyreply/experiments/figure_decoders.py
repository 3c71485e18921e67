"""figure-decoders: each decoder against each rank of a beam, and the words most typical of each decoder."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from polyreply.analysis.decoder_profiles import DecoderProfile, profile_decoders
from polyreply.data.read import read_dialogues
from polyreply.experiments.cache import Task
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.claims import Claim, check, over
from polyreply.experiments.pictures import Bars, draw_bars
from polyreply.experiments.result import Findings, Picture
from polyreply.experiments.score_table import training_notes
from polyreply.experiments.systems import Systems
from polyreply.experiments.variants import BEAM, EQHARD
from polyreply.metrics.tokenize import tokenizer_named
from polyreply.plots import COLOURS, missing_letters
from polyreply.tables import Column, Row, Table

_FILE, _LETTERS = "decoders.png", 4
_SPREADS = {"length": "length", "questions": "their share of questions", "with_word": "their use of the word"}
CLAIMS = tuple(
    Claim(
        f"Decoders differ more in {what} than the ranks of a beam do (standard deviation over decoders)",
        "Figure 3",
        over(EQHARD.name, BEAM.name, number),
    )
    for number, what in _SPREADS.items()
)


def _tasks(systems: Systems) -> Sequence[Task]:
    return [systems.responses(BEAM), systems.responses(EQHARD, systems.preset.seeds[0])]


def _report(systems: Systems, folder: Path) -> Findings:
    word, profiles = _word(systems), dict[str, list[DecoderProfile]]()
    for variant in (BEAM, EQHARD):
        texts = [replies for _, replies in systems.replies(variant, systems.seeds(variant)[0])]
        profiles[variant.name] = profile_decoders(texts, systems.data.tokenizer, word)
    _draw(profiles, word, folder / _FILE)
    spreads = {
        name: {number: float(np.std([getattr(one, number) for one in own])) for number in _SPREADS}
        for name, own in profiles.items()
    }
    rows = [Row([str(one.decoder), one.length, one.questions, one.line]) for one in profiles[EQHARD.name]]
    columns: list[str | Column] = ["decoder", Column("tokens", digits=1), Column("questions, %", digits=1), "profile"]
    note = (
        "Typical words: log-odds against all other decoders with an informative Dirichlet prior, above 1.96 deviations."
    )
    notes = [note, *training_notes(systems.with_seeds(systems.preset.seeds[:1]), [EQHARD])]
    caption = f"Replies of beam search (by rank) and of EqHard-EM (by decoder): length, questions, “{word}”."
    return Findings(
        [Table("The decoders of EqHard-EM", columns, rows, notes)],
        [Picture(_FILE, caption)],
        check(CLAIMS, spreads),
        ["The values of the paper's bars are not in its text; the claims are those of its section on decoders."],
        {**{name: [asdict(one) for one in own] for name, own in profiles.items()}, "spread": spreads},
    )


def _word(systems: Systems) -> str:
    """The word that is counted."""
    if systems.preset.word or systems.data.language == "zh":
        return systems.preset.word or "喜欢"
    systems.cache.get(systems.data.final)
    return common_word(text for dialogue in read_dialogues(systems.data.final_file) for text in dialogue.responses)


def common_word(texts: Iterable[str]) -> str:
    """The word of four letters or more that is in most texts."""
    tokenize = tokenizer_named("wordpunct", "lower")
    counts = Counter(word for text in texts for word in set(tokenize(text)) if len(word) >= _LETTERS and word.isalpha())
    return min(counts, key=lambda word: (-counts[word], word), default="like")


def _draw(profiles: dict[str, list[DecoderProfile]], word: str, path: Path) -> None:
    shown = "the chosen word" if missing_letters([word]) else f"“{word}”"
    titles = ("tokens per reply", "questions, %", f"replies with {shown}, %")
    rows = []
    for (name, own), axis, colour in zip(profiles.items(), ("rank in the beam", "decoder"), COLOURS, strict=False):
        values = ([one.length for one in own], [one.questions for one in own], [one.with_word or 0.0 for one in own])
        rows.append([Bars(f"{name}: {title}", bars, axis, colour) for title, bars in zip(titles, values, strict=True)])
    draw_bars(rows, path)


EXPERIMENT = Experiment(_tasks, _report, origin=lambda systems: systems.origin(systems.preset.seeds[:1]))
