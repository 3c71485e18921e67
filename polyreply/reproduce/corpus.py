"""The data of the experiments: what is trained on, what choices are made by, and what the final numbers come from.

Choices (validation in training, learning rates) see one half of valid, drawn by context. Final numbers come from test
where there is one, else from the other half of valid, by which nothing was chosen. The folder that trainings are given
holds neither.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from polyreply.data.chitchat import SCREENED
from polyreply.data.dialogue import Dialogue
from polyreply.data.prepare import PrepareConfig
from polyreply.data.read import read_dialogues
from polyreply.data.sources import EMBEDDED
from polyreply.data.token_report import split_files
from polyreply.errors import DataError
from polyreply.metrics.scores import write_atomically
from polyreply.metrics.tokenize import TokenizerName
from polyreply.reproduce.presets import Preset
from polyreply.reproduce.stage import Stage, revision
from polyreply.reproduce.workshop import Workshop, digest_of

_SEED = 5
_LOOKED_AT = 200
"""Rows by which the language is recognised."""
_CHINESE = re.compile(r"[\u4e00-\u9fff]")
_FINAL, _ABOUT, _CHOICES = "final.jsonl", "about.json", "valid.jsonl"


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


def find_corpus(workshop: Workshop, data: str, preset: Preset) -> Corpus:
    """The corpus behind a name: a folder with train and valid as it is, else what `prepare` makes of that source."""
    folder, name, needs, preparation = Path(data), Path(data).name, list[Stage](), ""
    language = _language_of(folder, preset)
    if folder.is_dir():
        digests = {split: digest_of(path) for split, path in _checked(folder).items()}
    else:
        config, preparation = _preparation(data, language)
        prepared = workshop.preparing(data, config)
        folder, needs, digests = prepared.path, [prepared], {"prepared": prepared.name}
    origin = {split: digest for split, digest in digests.items() if split != "test"}
    made_from = {"origin": origin, "seed": _SEED, "selection_share": preset.selection_share, **revision("splits")}
    splits = workshop.planned(f"splits-{name}", made_from, lambda path: _split(folder, path, preset), needs)
    splits = replace(splits, mend=lambda path: _link_train(folder, path))
    made_from = {"splits": splits.name, "test": digests.get("test"), "contexts": preset.contexts, "is_merged": True}
    made_from |= revision("final")
    asked = workshop.planned(f"final-{name}", made_from, lambda path: _ask(folder, path, preset), needs)
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


def _preparation(data: str, language: Literal["en", "zh"]) -> tuple[PrepareConfig, str]:
    """How a source is prepared, and in words what is special about it."""
    if data == "chitchat" and is_embedded(data):
        told = (
            f"screened: {SCREENED.min_words} to {SCREENED.max_words} words, without personal data and abuse as far as "
            "patterns find them"
        )
        return PrepareConfig(language=language, clean=SCREENED), told
    return PrepareConfig(language=language), ""


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


def _split(folder: Path, out: Path, preset: Preset) -> None:
    """Writes what trainings are given; train is a link, because it may be large."""
    out.mkdir(parents=True, exist_ok=True)
    _link_train(folder, out)
    chosen, _ = split_by_context(list(read_dialogues(_checked(folder)["valid"])), preset.selection_share)
    write_dialogues(out / _CHOICES, chosen)


def _link_train(folder: Path, out: Path) -> None:
    """Has the link lead to the training data, wherever that lies now."""
    file = _checked(folder)["train"]
    link = out / f"train{''.join(file.suffixes)}"
    if not link.is_symlink() or link.readlink() != file.resolve():
        link.unlink(missing_ok=True)
        link.symlink_to(file.resolve())


def _ask(folder: Path, out: Path, preset: Preset) -> None:
    """Writes the final contexts: of test, else of the half of valid that nothing is chosen by."""
    files = _checked(folder)
    split = "test" if "test" in files else "valid"
    found = list(read_dialogues(files[split]))
    _write_asked(out, found if split == "test" else split_by_context(found, preset.selection_share)[1], split, preset)


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
    write_atomically(out / _ABOUT, json.dumps(about, indent=2).encode(), overwrite=True)


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
    lines = "".join(json.dumps(_row(dialogue), ensure_ascii=False) + "\n" for dialogue in dialogues)
    write_atomically(path, lines.encode(), overwrite=True)


def _row(dialogue: Dialogue) -> dict[str, Any]:
    context = dialogue.context[0] if len(dialogue.context) == 1 else list(dialogue.context)
    acts = {"acts": list(dialogue.acts)} if dialogue.acts else {}
    return {"context": context, "responses": list(dialogue.responses), **acts}
