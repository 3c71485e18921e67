"""table-cases: all responses of each EM variant to a few contexts."""

import re
from collections.abc import Sequence
from pathlib import Path

from polyreply.errors import PolyReplyError
from polyreply.experiments.cache import Task
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.result import Findings
from polyreply.experiments.score_table import training_notes
from polyreply.experiments.systems import Systems
from polyreply.experiments.variants import BEAM, EQHARD, HARD, HARD_AUTHORS, SOFT
from polyreply.tables import Table

ROWS = (BEAM, SOFT, HARD, HARD_AUTHORS, EQHARD)
_REPEATED = re.compile(
    r"(?<!\S)(?P<word>\S+)(?P<gap>\s+)(?P=word)(?:(?P=gap)(?P=word)){2,}(?!\S)|(?P<sign>[^\w\s]|[\u4e00-\u9fff])(?P=sign){3,}"
)
"""Four equal words or more in a row, or four equal punctuation marks or Chinese characters without spaces."""
_PRIVATE = "This result holds texts of the data: do not publish it unless their licence allows it."
_MARKS = "[repeat]: further repetitions are omitted; [eos]: an empty reply. Rows of beam search are ranks in the beam."


def _tasks(systems: Systems) -> Sequence[Task]:
    variants = systems.distinct(ROWS)
    return [systems.responses(variant, systems.seeds(variant)[0]) for variant in variants]


def _report(systems: Systems, folder: Path) -> Findings:
    systems = systems.with_seeds(systems.preset.seeds[:1])
    shown, diverged = systems.trained(systems.distinct(ROWS))
    replies = {variant.name: systems.replies(variant, systems.seeds(variant)[0]) for variant in shown}
    contexts = [context for context, _ in next(iter(replies.values()))]
    wrong = [row for row in systems.preset.cases if not 0 <= row < len(contexts)]
    if wrong:
        raise PolyReplyError(f"cases: expected rows from 0 to {len(contexts) - 1}, found {wrong[0]}; name others")
    tables, numbers, notes = [], {}, training_notes(systems, shown)
    for row in systems.preset.cases:
        texts = {name: rows[row][1] for name, rows in replies.items()}
        cells = enumerate(zip(*texts.values(), strict=True))
        rows = [[str(decoder), *map(shorten, own)] for decoder, own in cells]
        tables.append(Table(f"Context: {' / '.join(contexts[row])}", ["decoder", *texts], rows, notes))
        numbers[str(row)] = {"context": list(contexts[row]), "responses": texts}
    remarks = [_MARKS, *(f"Diverged: {message}." for message in diverged)]
    if not systems.data.may_be_published:
        remarks.insert(0, _PRIVATE)
    return Findings(tables, remarks=remarks, numbers=numbers)


def shorten(text: str) -> str:
    """A reply as the paper shows it: three of many equal words and [repeat], [eos] for an empty one."""
    if not text.strip():
        return "[eos]"
    return _REPEATED.sub(
        lambda match: (match["gap"] or "").join([match["word"] or match["sign"]] * 3) + " [repeat]", text
    )


EXPERIMENT = Experiment(
    _tasks, _report, shows_texts=True, origin=lambda systems: systems.origin(systems.preset.seeds[:1])
)
