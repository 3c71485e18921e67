"""`polyreply evaluate`."""

from pathlib import Path
from typing import Annotated, cast

import typer


def evaluate(
    responses: Annotated[
        Path, typer.Argument(metavar="RESPONSES", help="A responses file, as `polyreply reply --output` writes it.")
    ],
    references: Annotated[
        Path, typer.Option("--references", "-r", help="The dialogue file that was replied to, row by row.")
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
    relevance: Annotated[
        bool,
        typer.Option("--relevance", help="Also how often a reply's own context ranks first of 50; copied words."),
    ] = False,
    context_turns: Annotated[int, typer.Option(min=1, help="Most turns of context from a conversation.")] = 1,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad row of the references.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier score file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
) -> None:
    """Score a file of responses: BLEU-P/R/F, Dist-n, Pairwise-BLEU and more.

    \b
    Examples:
      polyreply evaluate responses.jsonl --references data/valid.jsonl.gz
      polyreply evaluate responses.jsonl -r data/valid.jsonl.gz -o scores/eqhard.json --name EqHard-EM
      polyreply evaluate responses.jsonl -r weibo.jsonl --tokenizer characters --json
      polyreply evaluate responses.jsonl -r data/valid.jsonl.gz --relevance
    """
    from polyreply import metrics
    from polyreply.cli.display import print_json
    from polyreply.files import check_new_file
    from polyreply.metrics.response_files import join_files
    from polyreply.metrics.tokenize import CaseName, TokenizerName, tokenizer_named
    from polyreply.progress import progress_bar

    tokenizer_named(tokenizer, case)  # fails before the files are read
    if output is not None:
        check_new_file(output, overwrite)
    with progress_bar() as notify:
        notify("reading", 0.0)
        joined = join_files(responses, references, context_turns=context_turns, variable_k=variable_k, strict=strict)
        scores = metrics.evaluate(
            joined.responses,
            joined.references,
            tokenizer=cast(TokenizerName, tokenizer),
            case=cast(CaseName, case),
            variable_k=variable_k,
            embeddings=embeddings,
            contexts=joined.contexts if relevance else None,
            system=name or "",
            notify=notify,
        )
    if joined.left_out:
        typer.echo(f"warning: {joined.left_out}", err=True)
    if output is not None:
        scores.save(output, overwrite=overwrite)
    if as_json:
        print_json(scores.summary())
        return
    scores.table(f"{name or responses.name}: {scores.num_contexts:,} contexts").print()
    others = [score for score, value in scores.numbers.items() if value is not None and score not in scores.shown]
    scores.table("Other scores", others).print()
    for line in (*(f"note: {note}" for note in scores.notes), f"signature {scores.signature}"):
        typer.echo(line)
    if output is not None:
        typer.echo(f"written to {output}")
