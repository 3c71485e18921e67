"""`polyreply prepare`."""

from pathlib import Path
from typing import Annotated, Any

import typer


def prepare(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT",
            help="A folder with train/valid/test files, whose splits are kept; or dialogue files, which are split by "
            "dialogue; or a corpus: chitchat, messages, smalltalk-explicit, smalltalk-implicit; or a Hugging Face "
            "dataset, hf:NAME.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write; it appears only when it is complete.")],
    recipe: Annotated[
        str | None, typer.Option(help="YAML file with settings, or the name of a shipped recipe; see docs/recipes.md.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting; wins over the recipe. Repeatable."),
    ] = None,
    language: Annotated[str | None, typer.Option(help="en, zh or any.")] = None,
    context_turns: Annotated[int | None, typer.Option(help="Most turns of context taken from a conversation.")] = None,
    group: Annotated[bool | None, typer.Option("--group/--no-group", help="One row for each distinct context.")] = None,
    overlap: Annotated[
        str | None, typer.Option(help="drop, resplit or report what occurs in more than one split.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Decides which dialogues go to which split.")] = None,
    strict: Annotated[
        bool | None,
        typer.Option("--strict/--no-strict", help="Stop at the first bad row instead of counting it."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output folder if it exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Read, clean, split and remove overlap; write clean splits and a report.

    Writes train/valid/test.jsonl.gz, report.json (what every rule dropped, with examples) and recipe.yaml.

    \b
    Examples:
      polyreply prepare chitchat --out data/chitchat --recipe prepare-chitchat
      polyreply prepare my_dialogues.jsonl.gz more.csv --out data/mine
      polyreply prepare folder_with_splits --out data/clean --overlap resplit
      polyreply prepare weibo.csv --out data/weibo --language zh --group
      polyreply prepare raw.jsonl --out data/raw --set clean.max_words=40 --set clean.urls=false
    """
    from polyreply.cli.display import print_json
    from polyreply.config import load_recipe
    from polyreply.data.prepare import PrepareRecipe
    from polyreply.data.prepare import prepare as run
    from polyreply.progress import progress_bar

    flags = {
        "language": language,
        "context_turns": context_turns,
        "group": group,
        "overlap.mode": overlap,
        "seed": seed,
        "strict": strict,
    }
    given = [f"{key}={value}" for key, value in flags.items() if value is not None]
    resolved = load_recipe(PrepareRecipe, recipe, [*given, *(settings or [])])
    with progress_bar() as notify:
        report = run(inputs, out, resolved, overwrite=overwrite, notify=notify)
    if as_json:
        print_json(report)
    else:
        print_report(report, out)


def print_report(report: dict[str, Any], out: Path) -> None:
    """Print the report of `prepare` as tables."""
    from polyreply.cli.display import print_table

    if rules := _rule_rows(report):
        print_table("Cleaning", ("rule", "effect", "utterances", "pairs lost", "example"), rules)
    bad_rows = report["bad_rows"]
    if bad_rows["count"]:
        typer.echo(f"{bad_rows['count']} bad rows were left out; the first:")
        for row in bad_rows["first"][:5]:
            typer.echo(f"  {row['source']}, line {row['line']}: {row['reason']}")
        typer.echo("")
    _print_overlap(report["overlap"])
    names = ("rows", "pairs", "contexts", "dialogues", "mean_context_chars", "mean_response_chars")
    splits = [[split, *(numbers[name] for name in names)] for split, numbers in report["splits"].items()]
    print_table(f"Written to {out}", ("split", *(name.replace("_", " ") for name in names)), splits)


def _rule_rows(report: dict[str, Any]) -> list[list[Any]]:
    """A row for each rule that changed or dropped something."""
    rows = [
        [name, "rewrites" if tally["rewrites"] else "drops", tally["utterances"], tally["pairs"], _example(tally)]
        for name, tally in report["rules"].items()
        if tally["utterances"]
    ]
    for name, dropped in {"duplicates": report["duplicates"], **report["limits"]}.items():
        if dropped["pairs"]:
            example = _shorten(" → ".join(dropped["examples"][0])) if dropped.get("examples") else ""
            rows.append([name, "drops", "", dropped["pairs"], example])
    return rows


def _example(tally: dict[str, Any]) -> str:
    """The first example of a rule; of a rewritten text, the part around the first change."""
    if not tally["examples"]:
        return ""  # a rule that quotes nothing
    example = tally["examples"][0]
    if not isinstance(example, list):
        return _shorten(example)
    before, after = example
    differs = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0)
    start = max(0, differs - 12)
    return f"{_shorten(before[start:], 24)} → {_shorten(after[start:], 24)}"


def _shorten(text: str, most: int = 52) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _print_overlap(overlap: dict[str, Any]) -> None:
    """What overlap was found between splits, and what was dropped for it."""
    from polyreply.cli.display import print_table

    shares = []
    for name, before in overlap["before"].items():
        counts = [when[what]["share"] for when in (before, overlap["after"][name]) for what in ("pairs", "contexts")]
        shares.append([name.replace("_", " "), before["of_pairs"], *(100 * share for share in counts)])
    if shares:
        columns = ("split", "of pairs", "pairs", "contexts", "pairs left", "contexts left")
        print_table("Overlap between splits, in % of the pairs", columns, shares)
    dropped = []
    for split, found in overlap["dropped"].items():
        pairs = [found.get(kind, {}).get("pairs", 0) for kind in ("near", "pairs", "contexts")]
        dropped.append([split, found.get("near", {}).get("dialogues", 0), *pairs])
    if any(any(row[1:]) for row in dropped):
        kinds = ("split", "near-duplicate dialogues", "their pairs", "equal pairs", "equal contexts")
        action = "Found (and kept)" if overlap["mode"] == "report" else "Dropped"
        print_table(f"{action} because another split has it too", kinds, dropped)
