"""`prepare`: read, clean, split, remove overlap, limit, write. The output folder is complete or absent, never half."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
from pydantic import Field

from polyreply.config import check_recipe, save_recipe, to_tree
from polyreply.data.clean import CleanSettings, Language
from polyreply.data.dialogue import BadRows, Split
from polyreply.data.overlap import NearDuplicateIndex, draw_together
from polyreply.data.pairs import DIALOGUE_SCHEMA, PairDatabase, PairMaker
from polyreply.data.sources import Source, find_sources
from polyreply.errors import DataError
from polyreply.files import check_new_folder, new_folder
from polyreply.progress import Notify, silent

SCHEMA_VERSION = 1
_INTERRUPTED_QUERY = "Query interrupted"
"""What DuckDB raises in place of the exception of a signal handler that ran during a query, such as Ctrl-C's."""
_COUPLES: tuple[tuple[Split, Split], ...] = (("test", "train"), ("valid", "train"), ("test", "valid"))
"""Whose overlap is counted: the pairs of the first split that are in the second too."""
_DROPPED_FROM: dict[Split, tuple[Split, ...]] = {"valid": ("test",), "train": ("valid", "test")}
"""From which split overlap is dropped, and in which others it is looked for. Test is kept as it is."""


@dataclass(frozen=True)
class OverlapSettings:
    """What counts as overlap between splits, and what happens to it."""

    mode: Literal["drop", "resplit", "report"] = "drop"
    """drop: from train what is in valid or test, from valid what is in test. resplit: first draw new splits that keep
    near-duplicate dialogues together, then drop what overlap remains. report: only count."""
    pairs: bool = True
    """Equal (context, response) pairs after lower-casing and removing punctuation."""
    contexts: bool = True
    """Equal contexts after lower-casing and removing punctuation."""
    near: bool = True
    """Near-duplicate dialogues by unigram overlap (not searched in templated corpora such as smalltalk)."""
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.75
    """Dialogues are near-duplicates when 2·|A∩B| / (|A|+|B|) on their token multisets is above this."""


@dataclass(frozen=True)
class SplitSettings:
    """How dialogues are split where the input has no splits, or with overlap.mode=resplit."""

    valid: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of the dialogues for validation."""
    test: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of the dialogues for test."""
    most: Annotated[int, Field(ge=1)] = 10_000
    """Most dialogues in each of the two, however large the corpus."""

    def problems(self) -> Iterator[str]:
        """Shares that leave nothing to train on."""
        if self.valid + self.test >= 1:
            yield f"valid {self.valid} and test {self.test} leave no dialogue for train; lower them"


@dataclass(frozen=True)
class PrepareRecipe:
    """The recipe of `polyreply prepare`."""

    language: Language = "en"
    """en, zh or any: decides what counts as a word and which script is expected."""
    context_turns: Annotated[int, Field(ge=1)] = 1
    """Most turns of a conversation that make the context of its next turn."""
    group: bool = False
    """Put the responses to equal contexts into one row."""
    train_pairs: Annotated[int, Field(ge=1)] | None = None
    """Most pairs of train, drawn at random, all responses of a row or none; None means all."""
    seed: int = 0
    """Decides which dialogues go to which split, and what `train_pairs` and `clean.max_uses` keep."""
    strict: bool = False
    """Stop at the first bad row instead of counting it."""
    clean: CleanSettings = field(default_factory=CleanSettings)
    """Cleaning rules."""
    overlap: OverlapSettings = field(default_factory=OverlapSettings)
    """Overlap between splits."""
    split: SplitSettings = field(default_factory=SplitSettings)
    """Sizes of new splits."""


def prepare(
    inputs: str | Sequence[str],
    out: str | Path,
    recipe: PrepareRecipe | None = None,
    *,
    overwrite: bool = False,
    notify: Notify = silent,
) -> dict[str, Any]:
    """Prepare a corpus into `out` (train/valid/test.jsonl.gz, report.json, recipe.yaml) and return the report.

    Each input is a folder with train/valid/test files, a dialogue file, the name of a corpus in
    `polyreply.data.corpora`, or `hf:NAME`. `overwrite` replaces a folder that an earlier run wrote, and no other.
    """
    inputs, out = [inputs] if isinstance(inputs, str) else list(inputs), Path(out)
    recipe = check_recipe(recipe or PrepareRecipe())
    check_new_folder(out, overwrite, made_by_us=lambda folder: (folder / "report.json").is_file())
    sources = find_sources(inputs, recipe.seed)
    with new_folder(out, overwrite) as scratch:
        finished = scratch / "out"
        finished.mkdir()
        try:
            with contextlib.closing(PairDatabase(scratch)) as database:
                report = _prepare(database, sources, finished, recipe, notify)
        except RuntimeError as error:
            if str(error) == _INTERRUPTED_QUERY:
                raise KeyboardInterrupt from error
            raise
        except duckdb.Error as error:
            raise DataError(f"the database behind prepare failed: {' '.join(str(error).split())[:300]}") from error
        names = [os.fsencode(name).decode(errors="backslashreplace") for name in inputs]
        report = {"schema": SCHEMA_VERSION, "inputs": names, **report, "recipe": to_tree(recipe)}
        (finished / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
        save_recipe(recipe, finished / "recipe.yaml")
    return report


def _prepare(
    database: PairDatabase, sources: list[Source], out: Path, recipe: PrepareRecipe, notify: Notify
) -> dict[str, Any]:
    """The steps, in order; what each of them did goes into the report."""
    near = recipe.overlap.near and not all(source.templated for source in sources)
    is_split = sources[0].split is not None and recipe.overlap.mode != "resplit"
    templated = next((source.name for source in sources if source.templated), None)
    if templated and not is_split:
        raise DataError(f"the splits of {templated} are fixed, because they differ by template; omit resplit")
    read = _read(database, sources, recipe, notify)
    notify("splitting", 0.0)
    if not is_split:
        if recipe.group and read["read"]["conversations"] == 0:
            database.merge_contexts()
        _split(database, recipe, near, notify)
    splits = {source.split for source in sources if source.split} | set(database.splits())
    dropped, examples = database.drop_duplicates() if recipe.clean.duplicates else (0, [])
    overlap = _remove_overlap(database, recipe.overlap, near, notify)
    limits = _limit(database, recipe)
    notify("writing", 0.0)
    written = {split: database.write(split, out / f"{split}.jsonl.gz", recipe.group) for split in database.splits()}
    for split in sorted(splits - set(written)):
        raise DataError(
            f"nothing is left of {split} after cleaning, removing overlap and limits; relax the rules, raise "
            "train_pairs, or only count overlap, with overlap.mode=report"
        )
    duplicates = {"pairs": dropped, "examples": examples}
    return {**read, "duplicates": duplicates, "overlap": overlap, "limits": limits, "splits": written}


def _read(database: PairDatabase, sources: list[Source], recipe: PrepareRecipe, notify: Notify) -> dict[str, Any]:
    """Fill the database with clean pairs; return what was read and what the rules did."""
    bad_rows = BadRows(recipe.strict)
    maker = PairMaker(recipe.clean, recipe.language, recipe.context_turns)
    total = sum(source.size for source in sources)
    done = 0

    def progress(position: int) -> None:
        notify("reading and cleaning", (done + position) / total if total else 0.0)

    for source in sources:
        for dialogues, pairs in maker.batches(source.records(bad_rows, progress), source.split):
            database.add(dialogues, pairs)
        done += source.size
    if not maker.kept_pairs:
        raise DataError(f"all {maker.pairs} pairs were dropped by the cleaning rules; see `language` and `clean`")
    return {
        "read": {
            "rows": maker.rows,
            "conversations": maker.conversations,
            "pairs": maker.pairs,
            "pairs_after_cleaning": maker.kept_pairs,
        },
        "bad_rows": {"count": bad_rows.count, "first": bad_rows.first},
        "rules": {name: asdict(tally) for name, tally in maker.rules.items()},
    }


def _split(database: PairDatabase, recipe: PrepareRecipe, near: bool, notify: Notify) -> None:
    """Draw valid and test by dialogue; with `resplit`, near-duplicate dialogues stay together."""
    total = database.count("SELECT count(*) FROM dialogues")
    shares: dict[Split, float] = {"valid": recipe.split.valid, "test": recipe.split.test}
    sizes = {
        split: min(max(round(share * total), 1), recipe.split.most) if share else 0 for split, share in shares.items()
    }
    if sum(sizes.values()) >= total:
        raise DataError(f"{total} dialogues are too few to split; expected at least {sum(sizes.values()) + 1}")
    drawn = database.draw(sum(sizes.values()), recipe.seed)
    if recipe.overlap.mode == "resplit" and near:
        database.assign_splits(draw_together(drawn, sizes, database.dialogues_of, recipe.overlap.threshold, notify))
    else:
        test, valid = np.split(drawn, [sizes["test"]])
        database.assign_splits({"test": test, "valid": valid})


def _remove_overlap(database: PairDatabase, settings: OverlapSettings, near: bool, notify: Notify) -> dict[str, Any]:
    """Count the overlap between splits, drop it (or not, as `mode` says), and count again."""
    notify("removing overlap", 0.0)
    present = database.splits()
    couples = [(a, b) for a, b in _COUPLES if a in present and b in present]
    before = {f"{a}_in_{b}": _count_overlap(database, a, b) for a, b in couples}
    dropped: dict[str, Any] = {}
    for lower, upper in _DROPPED_FROM.items():
        others = [split for split in upper if split in present]
        if lower in present and others:
            dropped[lower] = _drop_from(database, lower, others, settings, near, notify)
    after = {f"{a}_in_{b}": _count_overlap(database, a, b) for a, b in couples}
    return {"mode": settings.mode, "before": before, "dropped": dropped, "after": after}


def _limit(database: PairDatabase, recipe: PrepareRecipe) -> dict[str, Any]:
    """Cap how often one response occurs, then the size of train; return what that dropped."""
    dropped: dict[str, Any] = {}
    if (most := recipe.clean.max_uses) is not None:
        number, examples = database.cap_responses(most, recipe.seed)
        dropped["max_uses"] = {"pairs": number, "examples": examples}
    if (most := recipe.train_pairs) is not None:
        dropped["train_pairs"] = {"pairs": database.limit_train(most, recipe.seed, recipe.group)}
    return dropped


def _count_overlap(database: PairDatabase, split: Split, other: Split) -> dict[str, Any]:
    pairs = database.count("SELECT count(*) FROM pairs WHERE split = ?", split)
    counts = {what: database.count_overlap(split, [other], what) for what in ("pairs", "contexts")}
    shares = {what: {"found": count, "share": count / max(pairs, 1)} for what, count in counts.items()}
    return {"of_pairs": pairs, **shares}


def _drop_from(
    database: PairDatabase, split: Split, others: list[Split], settings: OverlapSettings, near: bool, notify: Notify
) -> dict[str, Any]:
    """Drop from one split what is in the others too; with mode `report`, only count it."""
    dropped: dict[str, Any] = {}
    if near:
        held_out = pa.Table.from_batches(list(database.dialogues_of(others)), DIALOGUE_SCHEMA)
        index = NearDuplicateIndex(held_out["text"].combine_chunks(), settings.threshold)
        resembling = _resembling(database, split, index, notify)
        dropped["near"] = {"dialogues": len(resembling), "held_out_dialogues": int(index.hit.sum())}
        if settings.mode != "report":
            dropped["near"]["pairs"], dropped["near"]["examples"] = database.drop_dialogues(resembling)
    for what, wanted in (("pairs", settings.pairs), ("contexts", settings.contexts)):
        if wanted and settings.mode == "report":
            dropped[what] = {"pairs": database.count_overlap(split, others, what)}
        elif wanted:
            number, examples = database.drop_overlap(split, others, what)
            dropped[what] = {"pairs": number, "examples": examples}
    return dropped


def _resembling(database: PairDatabase, split: Split, index: NearDuplicateIndex, notify: Notify) -> pa.Array:
    """The dialogues of a split that are near-duplicates of an indexed one."""
    total = database.count("SELECT count(*) FROM dialogues WHERE split = ?", split)
    parts, seen = [np.zeros(0, np.int64)], 0
    for batch in database.dialogues_of([split]):
        parts.append(batch["dialogue"].to_numpy()[index.find(batch["text"]).probe])
        seen += len(batch)
        notify("searching near-duplicates", seen / max(total, 1))
    return pa.array(np.concatenate(parts))
