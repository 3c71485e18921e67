"""The data of the experiments: what is trained on, what choices are made by, and what final numbers come from.

Choices (validation during training, learning rates, our own recipes) see the selection half of valid, drawn by context.
Final numbers come from test if there is one, otherwise from the other half of valid. The folder that trainings get
holds neither test nor that other half, so that no choice can depend on them.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from polyreply.config import to_tree
from polyreply.data.chitchat import SCREENED
from polyreply.data.clean import Language
from polyreply.data.corpora import EMBEDDED
from polyreply.data.detokenize import detokenize, is_tokenized
from polyreply.data.dialogue import Dialogue
from polyreply.data.folder import split_files, write_dialogues
from polyreply.data.prepare import PrepareRecipe, prepare
from polyreply.data.read import read_dialogues
from polyreply.errors import DataError
from polyreply.experiments.cache import Cache, Task
from polyreply.experiments.presets import Preset
from polyreply.files import digest, write_file
from polyreply.metrics.tokenize import TokenizerName

_SEED = 5
_LANGUAGE_ROWS = 200
"""Rows by which the language is recognised."""
_CHINESE = re.compile(r"[\u4e00-\u9fff]")
_CONTEXTS, _ABOUT, _VALID, _TRAIN = "contexts.jsonl", "about.json", "valid.jsonl", "train.jsonl"


@dataclass(frozen=True)
class ExperimentData:
    """A dialogue corpus as the experiments use it."""

    name: str
    language: Literal["en", "zh"]
    splits: Task
    """What trainings get: train, and as valid the selection half."""
    selection: Task
    """Contexts of the selection half, in the form of `final`."""
    final: Task
    """The contexts of the final numbers with their references, and what is known about them."""
    may_be_published: bool = False
    """Whether its texts may be published. True for embedded corpora only; the licence of others is not known."""
    preparation: str = ""
    """What a reader should know about its preparation."""

    @property
    def tokenizer(self) -> TokenizerName:
        """How metrics split its text into words."""
        return "characters" if self.language == "zh" else "wordpunct"

    @property
    def final_file(self) -> Path:
        """The dialogue file with the contexts and references of the final numbers."""
        return self.final.path / _CONTEXTS

    def about(self) -> dict[str, Any]:
        """Of the final contexts: their split, number, mean number of references, and how many rows were merged."""
        about: dict[str, Any] = json.loads((self.final.path / _ABOUT).read_text(encoding="utf-8"))
        return about


@dataclass(frozen=True)
class _Source:
    """A folder with train, valid and perhaps test."""

    folder: Path
    detokenized: Language | None = None
    """The language by whose rules its texts are detokenized; None: they stay as they are."""

    def read(self, split: str) -> list[Dialogue]:
        """The rows of a split as they are in the file."""
        return list(read_dialogues(_split_files(self.folder)[split]))

    def finish(self, dialogues: Iterable[Dialogue]) -> Iterable[Dialogue]:
        """Rows as experiments use them."""
        return dialogues if self.detokenized is None else detokenize(dialogues, self.detokenized)


def find_data(cache: Cache, source: str, preset: Preset) -> ExperimentData:
    """The data at a folder with train and valid, or what `prepare` makes of another kind of source."""
    path, name, language = Path(source), Path(source).name, _language_of(Path(source), preset)
    if path.is_dir():
        digests = {split: digest(file)[:16] for split, file in _split_files(path).items()}
        rows, needs = _Source(path, language if _is_to_be_detokenized(path, preset) else None), list[Task]()
        preparation = "texts that had been split into tokens were detokenized" if rows.detokenized else ""
    else:
        recipe, preparation = _preparation(source, language)
        prepared = prepare_task(cache, source, recipe)
        rows, needs, digests = _Source(prepared.path), [prepared], {"prepared": prepared.name}
    inputs: dict[str, Any] = {"seed": _SEED, "selection_share": preset.selection_share}
    inputs["origin"] = {split: text for split, text in digests.items() if split != "test"}
    inputs["detokenized"] = rows.detokenized
    splits = cache.task("splits", name, inputs, partial(_write_splits, rows, preset), needs)
    splits = replace(splits, repair=partial(_write_train, rows))
    inputs = {"splits": splits.name, "contexts": preset.contexts}
    selection = cache.task("selection", name, inputs, partial(_write_selection, splits, preset), [splits])
    inputs = {**inputs, "test": digests.get("test")}
    final = cache.task("final", name, inputs, partial(_write_final, rows, preset), needs)
    return ExperimentData(name, language, splits, selection, final, is_embedded(source), preparation)


def is_embedded(source: str) -> bool:
    """Whether it is the name of an embedded corpus, and not of a file or folder here."""
    return source in EMBEDDED and not Path(source).exists()


def prepare_task(cache: Cache, source: str, recipe: PrepareRecipe) -> Task:
    """The task that prepares a source into train and valid."""

    def compute(out: Path) -> None:
        prepare([source], out, recipe, overwrite=True, notify=cache.notify)

    path = Path(source)
    inputs = {"source": source, "recipe": to_tree(recipe), "content": digest(path)[:16] if path.is_file() else ""}
    return cache.task("data", path.name, inputs, compute)


def _preparation(source: str, language: Literal["en", "zh"]) -> tuple[PrepareRecipe, str]:
    """How a source is prepared, and what a reader should know about it."""
    recipe = PrepareRecipe(language=language)
    if source != "chitchat" or not is_embedded(source):
        return recipe, ""
    length = f"{SCREENED.min_words} to {SCREENED.max_words} words"
    remark = f"screened: {length}, without personal data and abuse as far as patterns find them"
    return replace(recipe, clean=SCREENED), remark


def _language_of(path: Path, preset: Preset) -> Literal["en", "zh"]:
    """The preset's, or what the data looks like; a source that is not on this disk counts as English."""
    if preset.language != "auto":
        return preset.language
    file = _split_files(path)["valid"] if path.is_dir() else path
    if not file.is_file():
        return "en"
    rows = islice(read_dialogues(file), _LANGUAGE_ROWS)
    text = "".join("".join((*row.context, *row.responses)) for row in rows)
    return "zh" if len(_CHINESE.findall(text)) > 0.3 * sum(char.isalpha() for char in text) else "en"


def _split_files(folder: Path) -> dict[str, Path]:
    files = split_files(folder)
    missing = [split for split in ("train", "valid") if split not in files]
    if missing:
        raise DataError(
            f"{folder}: expected train and valid, found no {' and no '.join(missing)}; split the data with "
            "`polyreply prepare`"
        )
    return files


def _is_to_be_detokenized(folder: Path, preset: Preset) -> bool:
    if preset.detokenize == "auto":
        return any(map(is_tokenized, _split_files(folder).values()))
    return preset.detokenize == "always"


def _write_splits(source: _Source, preset: Preset, out: Path) -> None:
    """Write what trainings get."""
    _write_train(source, out)
    selected, _ = split_by_context(source.read("valid"), preset.selection_share)
    write_dialogues(out / _VALID, source.finish(selected))


def _write_train(source: _Source, out: Path) -> None:
    """Put the training data into the folder: as a link, because it may be large, unless its texts are detokenized."""
    file = _split_files(source.folder)["train"]
    if source.detokenized:
        if not (out / _TRAIN).exists():
            write_dialogues(out / _TRAIN, source.finish(read_dialogues(file)))
        return
    link = out / f"train{''.join(file.suffixes)}"
    if not link.is_symlink() or link.readlink() != file.resolve():
        out.mkdir(parents=True, exist_ok=True)
        new = link.with_name(f"{link.name}.{os.getpid()}")  # several processes may repair it at once
        new.symlink_to(file.resolve())
        new.replace(link)


def _write_final(source: _Source, preset: Preset, out: Path) -> None:
    """Write the final contexts: those of test, or of the half of valid by which nothing is chosen."""
    split = "test" if "test" in _split_files(source.folder) else "valid"
    rows = source.read(split)
    rows = rows if split == "test" else split_by_context(rows, preset.selection_share)[1]
    _write_contexts(out, list(source.finish(rows)), split, preset)


def _write_selection(splits: Task, preset: Preset, out: Path) -> None:
    """Write contexts of the selection half."""
    _write_contexts(out, list(read_dialogues(splits.path / _VALID)), "valid", preset)


def _write_contexts(out: Path, rows: Sequence[Dialogue], split: str, preset: Preset) -> None:
    """Write at most `preset.contexts` contexts with all their references, and what is known about them."""
    merged = merge_contexts(rows)
    sampled = sample(merged, preset.contexts)
    write_dialogues(out / _CONTEXTS, sampled)
    about = {
        "final_split": split,
        "contexts": len(sampled),
        "references": float(np.mean([len(dialogue.responses) for dialogue in sampled])),
        "merged": len(rows) - len(merged),
    }
    write_file(out / _ABOUT, json.dumps(about, indent=2), overwrite=True)


def split_by_context(dialogues: Sequence[Dialogue], share: float) -> tuple[list[Dialogue], list[Dialogue]]:
    """Two parts without a common context, each in the order of the input.

    A context's place depends on nothing but its text, so the parts are the same in every run and on every machine.
    """

    def shuffled(context: tuple[str, ...]) -> bytes:
        return hashlib.sha256("\x1f".join((str(_SEED), *context)).encode("utf-8", "surrogatepass")).digest()

    contexts = sorted({dialogue.context for dialogue in dialogues}, key=shuffled)
    if len(contexts) < 2:
        raise DataError(f"valid: expected two contexts or more, to split them, found {len(contexts)}; add some")
    number = min(max(1, round(share * len(contexts))), len(contexts) - 1)
    first = set(contexts[:number])
    return [one for one in dialogues if one.context in first], [one for one in dialogues if one.context not in first]


def merge_contexts(dialogues: Iterable[Dialogue]) -> list[Dialogue]:
    """One row for each context with all distinct responses to it, both in the order of the input."""
    act_of: dict[tuple[str, ...], dict[str, str]] = {}
    for dialogue in dialogues:
        acts = dialogue.acts or ("",) * len(dialogue.responses)
        for response, act in zip(dialogue.responses, acts, strict=True):
            act_of.setdefault(dialogue.context, {}).setdefault(response, act)
    return [
        Dialogue(context, tuple(acts), tuple(acts.values()) if all(acts.values()) else ())
        for context, acts in act_of.items()
    ]


def sample(dialogues: Sequence[Dialogue], most: int) -> list[Dialogue]:
    """At most `most` dialogues in their order, the same ones in every run."""
    chosen = np.random.default_rng(_SEED).permutation(len(dialogues))[:most]
    return [dialogues[place] for place in np.sort(chosen)]
