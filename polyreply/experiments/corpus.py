"""The data of the experiments: what is trained on, what choices are made by, and what the final numbers come from.

Choices (validation in training, learning rates) see one half of valid, drawn by context. Final numbers come from test
where there is one, else from the other half of valid, by which nothing was chosen. The folder that trainings are given
holds neither.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from polyreply.data.chitchat import SCREENED
from polyreply.data.clean import Language
from polyreply.data.corpora import EMBEDDED
from polyreply.data.detokenize import detokenize, is_tokenized
from polyreply.data.dialogue import Dialogue
from polyreply.data.folder import split_files
from polyreply.data.prepare import PrepareRecipe
from polyreply.data.read import read_dialogues
from polyreply.errors import DataError
from polyreply.experiments.cache import Workshop, digest_of
from polyreply.experiments.presets import Preset
from polyreply.experiments.stage import Stage, revision
from polyreply.files import write_file
from polyreply.metrics.tokenize import TokenizerName

_SEED = 5
_LOOKED_AT = 200
"""Rows by which the language is recognised."""
_CHINESE = re.compile(r"[\u4e00-\u9fff]")
_FINAL, _ABOUT, _CHOICES, _TRAIN = "final.jsonl", "about.json", "valid.jsonl", "train.jsonl"
_TOGETHER = "texts that a tokenizer took apart were put together again"


@dataclass(frozen=True)
class Corpus:
    """A data folder as the experiments use it."""

    name: str
    language: Literal["en", "zh"]
    splits: Stage
    """What trainings are given: train, and as valid the half for choices."""
    asked: Stage
    """The final contexts with their references, and what is known about them."""
    for_choices: Stage
    """Contexts of the half of valid that choices are made by, in the same form."""
    may_be_shown: bool = False
    """Whether its texts may be published: those of embedded corpora; of others the licence is not known."""
    preparation: str = ""
    """What is special about how it was prepared."""

    @property
    def tokenizer(self) -> TokenizerName:
        """How metrics cut its text into words."""
        return "characters" if self.language == "zh" else "wordpunct"

    @property
    def final(self) -> Path:
        """The contexts and references of the final numbers."""
        return self.asked.path / _FINAL

    def about(self) -> dict[str, Any]:
        """`final_split` (test or valid), its contexts, their references on average, and how many rows were merged."""
        found: dict[str, Any] = json.loads((self.asked.path / _ABOUT).read_text(encoding="utf-8"))
        return found


@dataclass(frozen=True)
class _Source:
    """A folder with train, valid and perhaps test, and what is done with the texts in it."""

    folder: Path
    together: Language | None = None
    """The language in which they are put together again; None: they stay as they are."""

    def read(self, split: str) -> list[Dialogue]:
        """The rows of a split as they are."""
        return list(read_dialogues(_checked(self.folder)[split]))

    def finish(self, dialogues: Iterable[Dialogue]) -> Iterable[Dialogue]:
        """Rows as experiments use them."""
        return dialogues if self.together is None else detokenize(dialogues, self.together)


def find_corpus(workshop: Workshop, data: str, preset: Preset) -> Corpus:
    """The corpus behind a name: a folder with train and valid, else what `prepare` makes of that source."""
    folder, name, needs, preparation = Path(data), Path(data).name, list[Stage](), ""
    language = _language_of(folder, preset)
    if folder.is_dir():
        digests = {split: digest_of(path) for split, path in _checked(folder).items()}
        source = _Source(folder, language if _is_to_mend(folder, preset) else None)
        preparation = _TOGETHER if source.together else ""
    else:
        config, preparation = _preparation(data, language)
        prepared = workshop.preparing(data, config)
        source, needs, digests = _Source(prepared.path), [prepared], {"prepared": prepared.name}
    origin = {split: digest for split, digest in digests.items() if split != "test"}
    made_from = {"origin": origin, "seed": _SEED, "selection_share": preset.selection_share, **revision("splits")}
    made_from |= {"together": source.together} if source.together else {}
    splits = workshop.planned(f"splits-{name}", made_from, lambda path: _split(source, path, preset), needs)
    splits = replace(splits, mend=lambda path: _put_train(source, path))
    made_from = {"splits": splits.name, "test": digests.get("test"), "contexts": preset.contexts, "is_merged": True}
    made_from |= revision("final")
    asked = workshop.planned(f"final-{name}", made_from, lambda path: _ask(source, path, preset), needs)
    made_from = {"splits": splits.name, "contexts": preset.contexts, **revision("choices")}
    for_choices = workshop.planned(
        f"choices-{name}", made_from, lambda path: _ask_choices(splits, path, preset), [splits]
    )
    return Corpus(name, language, splits, asked, for_choices, may_be_shown=is_embedded(data), preparation=preparation)


def is_embedded(data: str) -> bool:
    """Whether it is the name of an embedded corpus; a folder that is called so is none."""
    return data in EMBEDDED and not Path(data).exists()


def _language_of(data: Path, preset: Preset) -> Literal["en", "zh"]:
    """As the preset says, else as the data looks; what is not on this disk is taken for English."""
    if preset.language != "auto":
        return preset.language
    if data.is_dir():
        return _language(_checked(data)["valid"])
    return _language(data) if data.is_file() else "en"


def _preparation(data: str, language: Literal["en", "zh"]) -> tuple[PrepareRecipe, str]:
    """How a source is prepared, and in words what is special about it."""
    if data == "chitchat" and is_embedded(data):
        told = (
            f"screened: {SCREENED.min_words} to {SCREENED.max_words} words, without personal data and abuse as far as "
            "patterns find them"
        )
        return PrepareRecipe(language=language, clean=SCREENED), told
    return PrepareRecipe(language=language), ""


def _checked(folder: Path) -> dict[str, Path]:
    files = split_files(folder)
    missing = [split for split in ("train", "valid") if split not in files]
    if missing:
        raise DataError(
            f"{folder}: expected train and valid, found no {' and no '.join(missing)}; split the data with "
            "`polyreply prepare`"
        )
    return files


def _language(path: Path) -> Literal["en", "zh"]:
    rows = islice(read_dialogues(path), _LOOKED_AT)
    text = "".join("".join((*row.context, *row.responses)) for row in rows)
    letters = sum(char.isalpha() for char in text)
    return "zh" if len(_CHINESE.findall(text)) > 0.3 * letters else "en"


def _is_to_mend(folder: Path, preset: Preset) -> bool:
    if preset.put_together == "auto":
        return any(map(is_tokenized, _checked(folder).values()))
    return preset.put_together == "always"


def _split(source: _Source, out: Path, preset: Preset) -> None:
    """Writes what trainings are given."""
    _put_train(source, out)
    chosen, _ = split_by_context(source.read("valid"), preset.selection_share)
    write_dialogues(out / _CHOICES, source.finish(chosen))


def _put_train(source: _Source, out: Path) -> None:
    """The training data: a link to where it lies now, because it may be large, or once its texts put together."""
    file = _checked(source.folder)["train"]
    if source.together:
        if not (out / _TRAIN).exists():
            write_dialogues(out / _TRAIN, source.finish(read_dialogues(file)))
        return
    link = out / f"train{''.join(file.suffixes)}"
    if not link.is_symlink() or link.readlink() != file.resolve():
        out.mkdir(parents=True, exist_ok=True)
        part = link.with_name(f"{link.name}.{os.getpid()}")  # several processes may mend it
        part.symlink_to(file.resolve())
        part.replace(link)


def _ask(source: _Source, out: Path, preset: Preset) -> None:
    """Writes the final contexts: of test, else of the half of valid that nothing is chosen by."""
    split = "test" if "test" in _checked(source.folder) else "valid"
    found = source.read(split)
    final = found if split == "test" else split_by_context(found, preset.selection_share)[1]
    _write_asked(out, list(source.finish(final)), split, preset)


def _ask_choices(splits: Stage, out: Path, preset: Preset) -> None:
    """Writes contexts of the half of valid that trainings are given."""
    _write_asked(out, list(read_dialogues(splits.path / _CHOICES)), "valid", preset)


def _write_asked(out: Path, found: Sequence[Dialogue], split: str, preset: Preset) -> None:
    """Writes as many contexts as are asked for, with all their references, and what is known about them."""
    merged = merge_contexts(found)
    asked = sample(merged, preset.contexts)
    write_dialogues(out / _FINAL, asked)
    references = float(np.mean([len(dialogue.responses) for dialogue in asked]))
    about = {"final_split": split, "contexts": len(asked), "references": references, "merged": len(found) - len(merged)}
    write_file(out / _ABOUT, json.dumps(about, indent=2).encode(), overwrite=True)


def split_by_context(dialogues: Sequence[Dialogue], share: float) -> tuple[list[Dialogue], list[Dialogue]]:
    """Two parts without a common context, always the same, each in the order of the input."""
    contexts = sorted({dialogue.context for dialogue in dialogues}, key=_mixed)
    if len(contexts) < 2:
        raise DataError(f"valid: expected two contexts or more, to split them, found {len(contexts)}; add some")
    number = min(max(1, round(share * len(contexts))), len(contexts) - 1)
    first = set(contexts[:number])
    return [one for one in dialogues if one.context in first], [one for one in dialogues if one.context not in first]


def merge_contexts(dialogues: Iterable[Dialogue]) -> list[Dialogue]:
    """One row for each context, with all distinct responses to it, both in the order they come in."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for dialogue in dialogues:
        acts = dialogue.acts or ("",) * len(dialogue.responses)
        for response, act in zip(dialogue.responses, acts, strict=True):
            found.setdefault(dialogue.context, {}).setdefault(response, act)
    return [
        Dialogue(context, tuple(acts), tuple(acts.values()) if all(acts.values()) else ())
        for context, acts in found.items()
    ]


def sample(dialogues: Sequence[Dialogue], most: int) -> list[Dialogue]:
    """At most so many dialogues, always the same, in their order."""
    chosen = np.random.default_rng(_SEED).permutation(len(dialogues))[:most]
    return [dialogues[place] for place in np.sort(chosen)]


def _mixed(context: tuple[str, ...]) -> bytes:
    """A random order that depends on nothing but the context."""
    return hashlib.sha256("\x1f".join((str(_SEED), *context)).encode("utf-8", "surrogatepass")).digest()


def write_dialogues(path: Path, dialogues: Iterable[Dialogue]) -> None:
    """Writes a dialogue file, with the acts of the responses where they are known."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(_row(dialogue), ensure_ascii=False) + "\n" for dialogue in dialogues)
    part.replace(path)


def _row(dialogue: Dialogue) -> dict[str, Any]:
    context = dialogue.context[0] if len(dialogue.context) == 1 else list(dialogue.context)
    acts = {"acts": list(dialogue.acts)} if dialogue.acts else {}
    return {"context": context, "responses": list(dialogue.responses), **acts}
