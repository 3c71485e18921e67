"""table-cases: all responses of each EM variant to a few contexts."""

import re
from collections.abc import Sequence
from pathlib import Path

from polyreply.errors import PolyReplyError
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.result import Findings, Row, Table
from polyreply.experiments.score_table import training_notes
from polyreply.experiments.stage import Stage
from polyreply.experiments.systems import Lab, Variant
from polyreply.experiments.variants import BEAM, EQHARD, HARD, HARD_AUTHORS, SOFT, without_twins

ROWS = (BEAM, SOFT, HARD, HARD_AUTHORS, EQHARD)
_REPEATED = re.compile(
    r"(?<!\S)(?P<word>\S+)(?P<gap>\s+)(?P=word)(?:(?P=gap)(?P=word)){2,}(?!\S)|(?P<sign>[^\w\s]|[\u4e00-\u9fff])(?P=sign){3,}"
)
"""Four equal words or more in a row; without spaces, four equal signs or Chinese characters."""


_PRIVATE = "This result holds texts of the data: not for publication unless their licence allows it."


def _variants(lab: Lab) -> list[Variant]:
    return without_twins(lab, ROWS)


def _needs(lab: Lab) -> Sequence[Stage]:
    return [lab.responses(variant, _seed(lab, variant)) for variant in _variants(lab)]


def _seed(lab: Lab, variant: Variant) -> int:
    return lab.seeds(variant)[0]


def _report(lab: Lab, folder: Path) -> Findings:
    lab = lab.with_seeds(lab.preset.seeds[:1])
    diverged = lab.diverged(_variants(lab))
    shown = [variant for variant in _variants(lab) if variant.name not in diverged]
    said = {variant.name: lab.said(variant, _seed(lab, variant)) for variant in shown}
    contexts = [context for context, _ in next(iter(said.values()))]
    wrong = [place for place in lab.preset.cases if not 0 <= place < len(contexts)]
    if wrong:
        raise PolyReplyError(f"cases: expected rows from 0 to {len(contexts) - 1}, found {wrong[0]}; name others")
    cases = {place: {name: rows[place][1] for name, rows in said.items()} for place in lab.preset.cases}
    notes = training_notes(lab, shown)
    tables = [_table(contexts[place], replies, notes) for place, replies in cases.items()]
    numbers = {str(place): {"context": list(contexts[place]), "responses": said} for place, said in cases.items()}
    remark = (
        "[repeat]: further repetitions are left out; [eos]: an empty reply. Beam search's rows are places in the beam."
    )
    remarks = [remark, *(f"Diverged: {told}." for told in diverged.values())]
    return Findings(tables, remarks=[*([] if lab.corpus.may_be_shown else [_PRIVATE]), *remarks], numbers=numbers)


def _table(context: Sequence[str], replies: dict[str, tuple[str, ...]], notes: list[str]) -> Table:
    lines = zip(*replies.values(), strict=True)
    rows = [Row([str(place), *(shorten(text) for text in texts)]) for place, texts in enumerate(lines)]
    return Table(f"Context: {' / '.join(context)}", ["decoder", *replies], rows, notes)


def shorten(text: str) -> str:
    """A reply as the paper shows it: three of many equal words and [repeat], [eos] for nothing."""
    if not text.strip():
        return "[eos]"
    return _REPEATED.sub(
        lambda found: (found["gap"] or "").join([found["word"] or found["sign"]] * 3) + " [repeat]", text
    )


EXPERIMENT = Experiment(_needs, _report, shows_texts=True, origin=lambda lab: lab.origin(lab.preset.seeds[:1]))
