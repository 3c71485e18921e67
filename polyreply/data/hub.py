"""Hugging Face datasets by name, `hf:NAME` or `hf:NAME:CONFIG`, from the hub or, offline, from its local cache."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from polyreply.data.read import Progress
from polyreply.data.records import BadRows, Record, check_record
from polyreply.errors import DataError

_NAME = re.compile(r"hf:[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")
_FIELDS = {
    "context": ("context", "input", "question", "prompt", "source"),
    "responses": ("responses", "references", "answers"),
    "response": ("response", "output", "answer", "target", "reply"),
    "turns": ("turns", "dialog", "dialogue", "utterances", "conversation", "conversations", "messages"),
}
"""The column names understood for each field of a row, the first that is there counts."""


def looks_like_name(name: str) -> bool:
    """Whether an INPUT that is no path can be the name of a dataset."""
    return bool(_NAME.fullmatch(name))


def load(name: str) -> dict[str, Iterable[Mapping[str, Any]]]:
    """The splits of a dataset; a DataError says what stood in the way."""
    import datasets

    dataset, _, config = name.removeprefix("hf:").partition(":")
    try:
        loaded = datasets.load_dataset(dataset, config or None)
    except Exception as error:  # the library raises a dozen unrelated types here, network errors among them
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"{name}: could not be loaded as a Hugging Face dataset: {reason}") from None
    return dict(loaded)


def reader(
    name: str, split: str, rows: Iterable[Mapping[str, Any]]
) -> Callable[[BadRows, Progress | None], Iterator[Record]]:
    """A source's `records` function over the rows of one split."""

    def records(bad_rows: BadRows, progress: Progress | None) -> Iterator[Record]:
        good = 0
        for line, row in enumerate(rows, start=1):
            try:
                record = _record(line, row)
            except DataError as error:
                bad_rows.add(f"{name}[{split}]", line, str(error))
            else:
                good += 1
                yield record
        if not good:
            raise DataError(f"{name}[{split}]: expected dialogue rows, found none; {_columns_found(rows)}")

    return records


def _columns_found(rows: Iterable[Mapping[str, Any]]) -> str:
    columns = getattr(rows, "column_names", None)
    known = "; ".join(f"{field}: {', '.join(names)}" for field, names in _FIELDS.items())
    return f"its columns are {columns}, and those understood are {known}"


def _record(line: int, row: Mapping[str, Any]) -> Record:
    found = {field: _first(row, names) for field, names in _FIELDS.items()}
    context, turns = _texts(found["context"]), _texts(found["turns"])
    responses = _texts(found["response"]) or _texts(found["responses"])
    if context is None and turns is not None:
        return check_record(line, None, None, turns)
    return check_record(line, context, responses, None)


def _first(row: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _texts(value: Any) -> list[str] | None:
    """A text, a list of texts, or a list of chat messages ({"role", "content"}), as a list of texts."""
    if value is None:
        return None
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):  # a column of structs, read by columns: {"text": [...]}
        value = value.get("text") or value.get("content") or value.get("value")
    if not isinstance(value, list):
        raise DataError(f"wrong type: expected text or a list of texts, found {type(value).__name__}")
    return [_text(item) for item in value]


def _text(item: Any) -> str:
    if isinstance(item, Mapping):
        item = next((item[name] for name in ("content", "text", "value", "utterance") if name in item), None)
    if not isinstance(item, str):
        raise DataError(f"wrong type: expected text, found {type(item).__name__}")
    return item
