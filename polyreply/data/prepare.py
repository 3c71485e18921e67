"""`prepare`: read, clean, split, remove overlap, write. The output folder is complete or absent, never half."""

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
from polyreply.data.clean import CleanConfig, Language
from polyreply.data.ingest import Ingest
from polyreply.data.overlap import NearDuplicateIndex
from polyreply.data.records import BadRows
from polyreply.data.resplit import draw_together
from polyreply.data.sources import SPLITS, Source, Split, find_sources
from polyreply.data.workspace import Workspace
from polyreply.errors import DataError
from polyreply.files import check_new_folder, new_folder
from polyreply.progress import Notify, silent

SCHEMA = 1


@dataclass(frozen=True)
class OverlapConfig:
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
class SplitConfig:
    """How dialogues are split where the input does not say, or with overlap.mode=resplit."""

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
class PrepareConfig:
    """The recipe of `polyreply prepare`."""

    language: Language = "en"
    """en, zh or any: decides what counts as a word and which script is expected."""
    context_turns: Annotated[int, Field(ge=1)] = 1
    """Most turns of a conversation that make the context of its next turn."""
    group: bool = False
    """Put the responses to equal contexts into one row."""
    seed: int = 0
    """Decides which dialogues go to which split."""
    strict: bool = False
    """Stop at the first bad row instead of counting it."""
    clean: CleanConfig = field(default_factory=CleanConfig)
    """Cleaning rules."""
    overlap: OverlapConfig = field(default_factory=OverlapConfig)
    """Overlap between splits."""
    split: SplitConfig = field(default_factory=SplitConfig)
    """Sizes of new splits."""


def prepare(
    inputs: str | Sequence[str],
    out: str | Path,
    config: PrepareConfig | None = None,
    *,
    overwrite: bool = False,
    notify: Notify = silent,
) -> dict[str, Any]:
    """Prepares a corpus into `out` (train/valid/test.jsonl.gz, report.json, recipe.yaml) and returns the report.

    `overwrite` replaces a folder that an earlier run of this function wrote, and no other.
    """
    inputs, out = [inputs] if isinstance(inputs, str) else list(inputs), Path(out)
    config = check_recipe(config or PrepareConfig())
    check_new_folder(out, overwrite, made_by_us=lambda folder: (folder / "report.json").is_file())
    sources = find_sources(inputs, config.seed)
    with new_folder(out, overwrite) as scratch:
        finished = scratch / "out"
        finished.mkdir()
        try:
            with Workspace(scratch) as workspace:
                report = _run(workspace, sources, finished, config, notify)
        except duckdb.Error as error:
            raise DataError(f"the database behind prepare failed: {' '.join(str(error).split())[:300]}") from error
        names = [os.fsencode(name).decode(errors="backslashreplace") for name in inputs]
        report = {"schema": SCHEMA, "inputs": names, **report, "recipe": to_tree(config)}
        (finished / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
        save_recipe(config, finished / "recipe.yaml")
    return report


def _run(
    workspace: Workspace, sources: list[Source], out: Path, config: PrepareConfig, notify: Notify
) -> dict[str, Any]:
    read = _read(workspace, sources, config, notify)
    notify("splitting", 0.0)
    near = config.overlap.near and not all(source.templated for source in sources)
    if sources[0].split is None or config.overlap.mode == "resplit":
        _split(workspace, sources, config, near, read["read"]["conversations"] == 0, notify)
    splits = workspace.splits()
    duplicates = _drop_duplicates(workspace, config)
    overlap = _remove_overlap(workspace, config.overlap, near, notify)
    notify("writing", 0.0)
    written = {split: workspace.write(split, out / f"{split}.jsonl.gz", config.group) for split in workspace.splits()}
    read_splits = {source.split for source in sources if source.split} | set(splits)
    for split in sorted(read_splits - set(written)):
        raise DataError(
            f"nothing is left of {split} after cleaning and removing overlap; relax the rules, or count only, "
            "with overlap.mode=report"
        )
    return {**read, "duplicates": duplicates, "overlap": overlap, "splits": written}


def _split(
    workspace: Workspace, sources: list[Source], config: PrepareConfig, near: bool, merge: bool, notify: Notify
) -> None:
    """Draws valid and test. Rows to be grouped, and with `resplit` near-duplicate dialogues, stay together."""
    if any(source.templated for source in sources):
        raise DataError("the splits of smalltalk are fixed, because they differ by template; leave out resplit")
    if config.group and merge:
        workspace.merge_contexts()
    sizes = _split_sizes(workspace, config.split)
    if config.overlap.mode == "resplit" and near:
        workspace.assign_splits(draw_together(workspace, sizes, config.seed, config.overlap.threshold, notify))
    else:
        test, valid = np.split(workspace.draw(sum(sizes.values()), config.seed), [sizes["test"]])
        workspace.assign_splits({"test": test, "valid": valid})


def _read(workspace: Workspace, sources: list[Source], config: PrepareConfig, notify: Notify) -> dict[str, Any]:
    bad_rows = BadRows(config.strict)
    ingest = Ingest(config.clean, config.language, config.context_turns)
    total = sum(source.size for source in sources)
    done = 0

    def progress(position: int) -> None:
        notify("reading and cleaning", (done + position) / total if total else 0.0)

    for source in sources:
        for dialogues, pairs in ingest.batches(source.records(bad_rows, progress), source.split):
            workspace.add(dialogues, pairs)
        done += source.size
    if not ingest.kept_pairs:
        raise DataError(f"all {ingest.pairs} pairs were dropped by the cleaning rules; see `language` and `clean`")
    return {
        "read": {
            "rows": ingest.rows,
            "conversations": ingest.conversations,
            "pairs": ingest.pairs,
            "pairs_after_cleaning": ingest.kept_pairs,
        },
        "bad_rows": {"count": bad_rows.count, "first": bad_rows.first},
        "rules": {name: asdict(tally) for name, tally in ingest.rules.items()},
    }


def _split_sizes(workspace: Workspace, config: SplitConfig) -> dict[Split, int]:
    total = workspace.count("SELECT count(*) FROM dialogues")
    shares: dict[Split, float] = {"valid": config.valid, "test": config.test}
    sizes = {split: min(round(share * total), config.most) for split, share in shares.items()}
    for split, share in shares.items():
        if share and not sizes[split]:
            sizes[split] = 1
    if sum(sizes.values()) >= total:
        raise DataError(f"{total} dialogues are too few to split; expected at least {sum(sizes.values()) + 1}")
    return sizes


def _drop_duplicates(workspace: Workspace, config: PrepareConfig) -> dict[str, Any]:
    if not config.clean.duplicates:
        return {"pairs": 0, "examples": []}
    number, examples = workspace.drop_duplicates()
    return {"pairs": number, "examples": examples}


def _remove_overlap(workspace: Workspace, config: OverlapConfig, near: bool, notify: Notify) -> dict[str, Any]:
    """Counts the overlap of each held-out split with those below it, drops it (or not), and counts again."""
    notify("removing overlap", 0.0)
    couples: list[tuple[Split, Split]] = [("test", "train"), ("valid", "train"), ("test", "valid")]
    present = workspace.splits()
    couples = [couple for couple in couples if set(couple) <= set(present)]
    before = {f"{a}_in_{b}": _count_overlap(workspace, a, b) for a, b in couples}
    dropped: dict[str, Any] = {}
    for lower, upper in (("valid", ["test"]), ("train", ["valid", "test"])):
        others = [split for split in SPLITS if split in upper and split in present]
        if lower in present and others:
            dropped[lower] = _drop_from(workspace, lower, others, config, near, notify)
    after = {f"{a}_in_{b}": _count_overlap(workspace, a, b) for a, b in couples}
    return {"mode": config.mode, "before": before, "dropped": dropped, "after": after}


def _count_overlap(workspace: Workspace, split: Split, other: Split) -> dict[str, Any]:
    pairs = workspace.count("SELECT count(*) FROM pairs WHERE split = ?", split)
    found = {what: workspace.count_overlap(split, [other], what) for what in ("pairs", "contexts")}
    return {
        "of_pairs": pairs,
        **{name: {"found": n, "share": n / max(pairs, 1)} for name, n in found.items()},
    }


def _drop_from(
    workspace: Workspace,
    split: Split,
    others: list[Split],
    config: OverlapConfig,
    near: bool,
    notify: Notify,
) -> dict[str, Any]:
    dropped: dict[str, Any] = {}
    if near:
        held_out = _all_dialogues(workspace, others)
        index = NearDuplicateIndex(held_out["text"].combine_chunks(), config.threshold)
        unwanted = _near(workspace, index, [split], notify)
        dropped["near"] = {"dialogues": len(unwanted), "held_out_dialogues": int(index.hit.sum())}
        if config.mode != "report":
            dropped["near"]["pairs"], dropped["near"]["examples"] = workspace.drop_dialogues(unwanted)
    for what, wanted in (("pairs", config.pairs), ("contexts", config.contexts)):
        if wanted and config.mode == "report":
            dropped[what] = {"pairs": workspace.count_overlap(split, others, what)}
        elif wanted:
            number, examples = workspace.drop_overlap(split, others, what)
            dropped[what] = {"pairs": number, "examples": examples}
    return dropped


def _all_dialogues(workspace: Workspace, splits: list[Split]) -> pa.Table:
    schema = pa.schema([("dialogue", pa.int64()), ("text", pa.string())])
    return pa.Table.from_batches(list(workspace.dialogues_of(splits)), schema)


def _near(workspace: Workspace, index: NearDuplicateIndex, splits: list[Split], notify: Notify) -> pa.Array:
    """The dialogues of some splits that resemble an indexed one."""
    names = ", ".join(f"'{split}'" for split in splits)
    total = workspace.count(f"SELECT count(*) FROM dialogues WHERE split IN ({names})")
    found, seen = [np.zeros(0, np.int64)], 0
    for batch in workspace.dialogues_of(splits):
        found.append(batch["dialogue"].to_numpy()[index.find(batch["text"]).probe])
        seen += len(batch)
        notify("searching near-duplicates", seen / max(total, 1))
    return pa.array(np.concatenate(found))
