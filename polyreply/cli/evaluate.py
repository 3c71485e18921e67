"""`polyreply evaluate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

if TYPE_CHECKING:
    from polyreply.metrics.scores import Scores


def evaluate(
    responses: Annotated[
        Path, typer.Argument(metavar="RESPONSES", help="A responses file, as `polyreply reply --output` writes it.")
    ],
    references: Annotated[
        Path, typer.Option("--references", "-r", help="The dialogue file the responses answer, row by row.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The score file to write; .gz compresses it.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The system's name in tables; several files of one name are its seeds.")
    ] = None,
    tokenizer: Annotated[
        str, typer.Option(help="wordpunct, characters (for Chinese), 13a or zh (sacreBLEU's).")
    ] = "wordpunct",
    case: Annotated[str, typer.Option(help="lower or mixed.")] = "lower",
    variable_k: Annotated[
        bool, typer.Option("--variable-k", help="Allow rows with different numbers of responses.")
    ] = False,
    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="Also P, R and diversity by sentence embeddings (slower; English).")
    ] = False,
    context_turns: Annotated[int, typer.Option(min=1, help="Most turns of context from a conversation.")] = 1,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad row of the references.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier score file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """The paper's nine numbers and more for a file of responses: BLEU-P/R/F, Dist-n, Pairwise-BLEU.

    \b
    Examples:
      polyreply evaluate responses.jsonl --references data/valid.jsonl.gz
      polyreply evaluate responses.jsonl -r data/valid.jsonl.gz -o scores/eqhard.json --name EqHard-EM
      polyreply evaluate responses.jsonl -r weibo.jsonl --tokenizer characters --json
    """
    from polyreply.cli.display import print_json, progress_bar
    from polyreply.files import check_new_file
    from polyreply.metrics import evaluation, response_files, tokenize

    tokenize.tokenizer_named(tokenizer, case)
    if output is not None:
        check_new_file(output, overwrite)
    with progress_bar() as notify:
        notify("reading", 0.0)
        joined = response_files.join_files(
            responses, references, context_turns=context_turns, variable_k=variable_k, strict=strict
        )
        found = evaluation.evaluate(
            joined.responses,
            joined.references,
            tokenizer=cast(tokenize.TokenizerName, tokenizer),
            case=cast(tokenize.CaseName, case),
            variable_k=variable_k,
            embeddings=embeddings,
            system=name or "",
            notify=notify,
        )
    if joined.left_out:
        typer.echo(f"warning: {joined.left_out}", err=True)
    if output is not None:
        found.save(output, overwrite=overwrite)
    if as_json:
        print_json(found.summary())
    else:
        _print(found, name or responses.name)
        if output is not None:
            typer.echo(f"written to {output}")


def _print(scores: "Scores", title: str) -> None:
    """The paper's numbers with their intervals, then the others."""
    from polyreply.cli.display import print_table
    from polyreply.metrics.comparison import SHOWN
    from polyreply.metrics.labels import label
    from polyreply.metrics.significance import intervals

    sure = intervals(scores.per_context, SHOWN)
    rows: list[list[Any]] = []
    for number in SHOWN:
        value = scores[number]
        low, high = sure.get(number, (None, None))
        interval = "" if low is None or high is None else f"{low:.2f} to {high:.2f}"
        rows.append([label(number).full, "–" if value is None else f"{value:.2f}", interval, _MEANINGS[number]])
    note = f"{scores.num_contexts:,} contexts; intervals by bootstrap over contexts"
    print_table(title, ("number", "value", "95 % interval", "says"), rows, note=note)
    known = {name: value for name, value in scores.numbers.items() if name not in SHOWN and value is not None}
    others = [(label(name).full, f"{value:.2f}") for name, value in known.items()]
    half = (len(others) + 1) // 2
    pairs = [[*left, *right] for left, right in zip(others[:half], [*others[half:], ("", "")], strict=False)]
    print_table("Others", ("number", "value", "number", "value"), pairs)
    for line in scores.notes:
        typer.echo(f"note: {line}")
    typer.echo(f"signature {scores.signature}")


_MEANINGS = {
    **{f"bleu{order}_f": "harmonic mean of P and R" for order in (1, 2)},
    **{f"bleu{order}_p": "how good the responses are" for order in (1, 2)},
    **{f"bleu{order}_r": "how many references are met" for order in (1, 2)},
    "dist1": "different words, of all",
    "dist2": "different word pairs, of all",
    "pairwise_bleu": "how alike the responses are",
    "identical": "responses that are the same",
}
