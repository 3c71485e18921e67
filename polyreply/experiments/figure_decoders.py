"""figure-decoders: each decoder against each place of a beam, and the words most typical of each decoder."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from polyreply.analysis.decoder_profiles import DecoderProfile, profile_decoders
from polyreply.data.read import read_dialogues
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.claims import Claim, check, over
from polyreply.experiments.pictures import COLOURS, Bars, draw_bars
from polyreply.experiments.result import Findings, Number, Picture, Row, Table
from polyreply.experiments.score_table import training_notes
from polyreply.experiments.stage import Stage
from polyreply.experiments.systems import Lab, Variant
from polyreply.experiments.variants import BEAM, EQHARD
from polyreply.metrics.tokenize import tokenizer_named
from polyreply.plots import missing_letters

_FILE, _LETTERS = "decoders.png", 4
_SPREADS = ("length", "questions", "with_word")
CLAIMS = tuple(
    Claim(
        f"Decoders differ more in {what} than the places of a beam do (standard deviation over decoders)",
        "Figure 3",
        over(EQHARD.name, BEAM.name, number),
    )
    for what, number in zip(("length", "their share of questions", "their use of the word"), _SPREADS, strict=True)
)


def _needs(lab: Lab) -> Sequence[Stage]:
    return [lab.responses(BEAM), lab.responses(EQHARD, lab.preset.seeds[0])]


def _word(lab: Lab) -> str:
    if lab.preset.word or lab.corpus.language == "zh":
        return lab.preset.word or "喜欢"
    lab.workshop.make(lab.corpus.asked)
    return common_word(text for dialogue in read_dialogues(lab.corpus.final) for text in dialogue.responses)


def common_word(texts: Iterable[str]) -> str:
    """The word of four letters or more that is in most texts."""
    tokenize = tokenizer_named("wordpunct", "lower")
    counts = Counter(word for text in texts for word in set(tokenize(text)) if len(word) >= _LETTERS and word.isalpha())
    return min(counts, key=lambda word: (-counts[word], word), default="like")


def _profiles(lab: Lab, variant: Variant) -> list[DecoderProfile]:
    said = [texts for _, texts in lab.said(variant, lab.seeds(variant)[0])]
    return profile_decoders(said, lab.corpus.tokenizer, _word(lab))


def _report(lab: Lab, folder: Path) -> Findings:
    word, found = _word(lab), {variant.name: _profiles(lab, variant) for variant in (BEAM, EQHARD)}
    _draw(found, word, folder / _FILE)
    spreads = {
        name: {number: float(np.std([getattr(one, number) for one in profiles])) for number in _SPREADS}
        for name, profiles in found.items()
    }
    rows = [
        Row([str(one.decoder), Number(one.length, digits=1), Number(one.questions, digits=1), one.line])
        for one in found[EQHARD.name]
    ]
    headings = ["decoder", "tokens", "questions, %", "profile"]
    note = (
        "Typical words: log-odds against all other decoders with an informative Dirichlet prior, above 1.96 deviations."
    )
    first = lab.with_seeds(lab.preset.seeds[:1])
    numbers = {name: [asdict(one) for one in profiles] for name, profiles in found.items()}
    return Findings(
        [Table("The decoders of EqHard-EM", headings, rows, [note, *training_notes(first, [EQHARD])])],
        [
            Picture(
                _FILE, f"Replies of beam search (by place) and of EqHard-EM (by decoder): length, questions, “{word}”."
            )
        ],
        check(CLAIMS, spreads),
        ["The values of the paper's bars are not in its text; the claims are those of its section on decoders."],
        {**numbers, "spread": spreads},
    )


def _draw(found: dict[str, list[DecoderProfile]], word: str, path: Path) -> None:
    told = "the chosen word" if missing_letters([word]) else f"“{word}”"
    titles = ("tokens per reply", "questions, %", f"replies with {told}, %")
    rows = []
    for (name, profiles), axis, colour in zip(found.items(), ("place in the beam", "decoder"), COLOURS, strict=False):
        values = ([one.length for one in profiles], [one.questions for one in profiles])
        words = [one.with_word or 0.0 for one in profiles]
        panels = zip(titles, (*values, words), strict=True)
        rows.append([Bars(f"{name}: {title}", shown, axis, colour) for title, shown in panels])
    draw_bars(rows, path)


EXPERIMENT = Experiment(_needs, _report, origin=lambda lab: lab.origin(lab.preset.seeds[:1]))
