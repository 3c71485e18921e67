"""The raw judgements for other programs: CSV, JSON, and what Label Studio and Argilla import.

Each judgement is a record of its own, with the texts as its annotator saw them. Which system was on which side is in
the metadata, and so is whether the annotators were scripted.
"""

import csv
import io
import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from polyreply.study.folder import Study
from polyreply.study.results import Judgement

_SIDES = ("1", "2", "tie")


def judgement_rows(study: Study, judgements: Sequence[Judgement]) -> list[dict[str, Any]]:
    """One plain row for each judgement."""
    return [_row(study, one) for one in judgements]


def _row(study: Study, one: Judgement) -> dict[str, Any]:
    systems = one.comparison.systems or (None, None)
    shown = systems[::-1] if one.item.swapped else systems
    winner = None if one.outcome == "tie" else systems[0 if one.outcome == "win" else 1]
    side_1, side_2 = study.shown(one.item)
    return {
        "study": study.id,
        "annotators": "people" if study.simulated is None else "simulated",
        "annotator": one.annotator,
        "question": one.comparison.question,
        "kind": "gold" if one.comparison.is_gold else "repeat" if one.item.is_repeat else "judgement",
        "row": one.comparison.row or None,
        "system_1": shown[0],
        "system_2": shown[1],
        "choice": one.choice,
        "winner": winner,
        "gold_right": one.outcome == "win" if one.comparison.is_gold else None,
        "seconds": one.seconds,
        "at": one.at,
        "item": one.item.id,
        "context": list(one.comparison.context),
        "side_1": list(side_1),
        "side_2": list(side_2),
    }


def to_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as CSV; turns of a context and responses of a side are lines of one cell."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    if rows:
        writer.writerow(rows[0])
    for row in rows:
        writer.writerow(["\n".join(value) if isinstance(value, list) else value for value in row.values()])
    return stream.getvalue()


def to_json(value: Any) -> str:
    """A value as indented JSON."""
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def export_files(study: Study, judgements: Sequence[Judgement]) -> dict[Path, str]:
    """All exports by their path in the folder of the export."""
    rows = judgement_rows(study, judgements)
    return {
        Path("judgements.csv"): to_csv(rows),
        Path("judgements.json"): to_json(rows),
        Path("label-studio", "config.xml"): label_studio_config(study),
        Path("label-studio", "tasks.json"): to_json([_label_studio_task(study, row) for row in rows]),
        Path("argilla", ".argilla", "dataset.json"): to_json(_argilla_dataset(study)),
        Path("argilla", ".argilla", "settings.json"): to_json(_argilla_settings(study)),
        Path("argilla", "records.json"): to_json([_argilla_record(study, row) for row in rows]),
    }


def _texts(study: Study, row: dict[str, Any]) -> dict[str, str]:
    """What an annotator read, one text for each place on the page."""
    sides = {side: [text or study.wording.empty for text in row[side]] for side in ("side_1", "side_2")}
    return {
        "question": study.wording.questions[row["question"]].ask,
        "context": "\n".join(row["context"]) or study.wording.empty,
        **{side: "\n".join(texts) for side, texts in sides.items()},
    }


def _labels(study: Study) -> dict[str, str]:
    return dict(zip(_SIDES, (study.wording.first, study.wording.second, study.wording.tie), strict=True))


def _metadata(row: dict[str, Any]) -> dict[str, Any]:
    left_out = ("context", "side_1", "side_2", "choice", "item")
    return {name: value for name, value in row.items() if name not in left_out and value is not None}


# --- Label Studio: a labelling interface, and tasks that carry their annotation
#
# Annotators here are no users there. An import refuses `completed_by` of a user it does not know and otherwise fills in
# the user who imports, so the annotator is in the task's `meta`.


def label_studio_config(study: Study) -> str:
    """The labelling interface for a Label Studio project."""
    view = ElementTree.Element("View")
    ElementTree.SubElement(view, "Header", value="$question")
    ElementTree.SubElement(view, "Text", name="context", value="$context")
    for side in ("1", "2"):
        ElementTree.SubElement(view, "Header", value=f"{study.wording.response} {side}")
        ElementTree.SubElement(view, "Text", name=f"side_{side}", value=f"$side_{side}")
    choices = ElementTree.SubElement(view, "Choices", name="choice", toName="context", choice="single")
    for value, label in _labels(study).items():
        ElementTree.SubElement(choices, "Choice", value=value, alias=value, hint=label)
    ElementTree.indent(view)
    return ElementTree.tostring(view, encoding="unicode") + "\n"


def _label_studio_task(study: Study, row: dict[str, Any]) -> dict[str, Any]:
    region = {
        "id": row["item"],
        "from_name": "choice",
        "to_name": "context",
        "type": "choices",
        "value": {"choices": [row["choice"]]},
    }
    annotation = {
        "result": [region],
        "lead_time": row["seconds"],
        "created_at": row["at"],
        "was_cancelled": False,
    }
    return {"data": _texts(study, row), "meta": _metadata(row), "annotations": [annotation]}


# --- Argilla: a folder as `Dataset.to_disk` writes it


def _argilla_dataset(study: Study) -> dict[str, Any]:
    return {"name": f"study-{study.id}", "guidelines": study.wording.welcome, "allow_extra_metadata": True}


def _argilla_settings(study: Study) -> dict[str, Any]:
    options = [{"value": value, "text": text} for value, text in _labels(study).items()]
    question = {
        "name": "choice",
        "title": study.wording.title,
        "required": True,
        "settings": {"type": "label_selection", "options": options, "visible_options": len(options)},
    }
    fields = [
        {"name": name, "title": name, "required": True, "settings": {"type": "text", "use_markdown": False}}
        for name in ("question", "context", "side_1", "side_2")
    ]
    return {
        "guidelines": study.wording.welcome,
        "questions": [question],
        "fields": fields,
        "vectors": [],
        "metadata": [],
        "allow_extra_metadata": True,
        "distribution": {"strategy": "overlap", "min_submitted": 1},
        "mapping": None,
    }


def _argilla_record(study: Study, row: dict[str, Any]) -> dict[str, Any]:
    """A record with one response; Argilla knows users by UUID, so each annotator has one that follows from the name."""
    user = uuid.uuid5(uuid.UUID(study.id.ljust(32, "0")), row["annotator"])
    return {
        "id": row["item"],
        "fields": _texts(study, row),
        "metadata": _metadata(row),
        "suggestions": {},
        "responses": {"choice": [{"value": row["choice"], "user_id": str(user)}]},
        "vectors": {},
    }
