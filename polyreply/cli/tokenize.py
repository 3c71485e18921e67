"""`polyreply tokenize`."""

from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer


def tokenize(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="A folder made by `polyreply prepare`, or one dialogue file.")
    ],
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Name or folder of a Hugging Face tokenizer; without it, one is trained."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for the trained tokenizer.")] = None,
    kind: Annotated[str, typer.Option(help="unigram or bpe, for a new tokenizer.")] = "unigram",
    vocab_size: Annotated[int, typer.Option(help="Pieces of a new tokenizer.")] = 8000,
    rows: Annotated[int, typer.Option(min=1, help="Rows of a batch.")] = 64,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Token budget of a batch, instead of --rows.")] = None,
    max_context_tokens: Annotated[int, typer.Option(min=1, help="Longer contexts lose their oldest turns.")] = 256,
    max_response_tokens: Annotated[int, typer.Option(min=1, help="Longer responses are cut.")] = 128,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier tokenizer in that folder.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Train or load a tokenizer, tokenise a corpus into the cache, and report lengths, truncations and padding.

    \b
    Examples:
      polyreply tokenize data/chitchat --out runs/tokenizer --vocab-size 8000
      polyreply tokenize data/chitchat --tokenizer google-t5/t5-small
      polyreply tokenize data/chitchat --tokenizer runs/tokenizer --max-tokens 8192 --json
    """
    from polyreply.cli.display import print_json, print_table
    from polyreply.data.context_format import ContextFormat
    from polyreply.data.token_corpus import token_report
    from polyreply.progress import progress_bar

    format = ContextFormat(max_context_tokens=max_context_tokens, max_response_tokens=max_response_tokens)
    with progress_bar() as notify:
        notify("training the tokenizer" if tokenizer is None else "loading the tokenizer", 0.0)
        chosen = _tokenizer(data, tokenizer, out, kind, vocab_size, overwrite)
        notify("tokenising", 0.5)
        report = token_report(data, chosen, format, rows=rows, max_tokens=max_tokens)
    if as_json:
        print_json(report)
    else:
        print_table("Tokens: contexts in, responses out", *token_table(report))


def token_table(report: dict[str, Any]) -> tuple[tuple[str, ...], list[list[Any]]]:
    """Headings and rows of a token report."""
    names = ("samples", "mean_context_tokens", "mean_response_tokens")
    cuts = ("contexts_lost_turns", "contexts_cut_inside_turn", "responses_cut")
    headings = ("split", "samples", "tokens in", "tokens out", "lost turns", "cut in", "cut out", "padding %")
    rows = [
        [split, *(numbers[name] for name in (*names, *cuts)), 100 * numbers["padding_share"]]
        for split, numbers in report.items()
    ]
    return headings, rows


def _tokenizer(data: Path, name: str | None, out: Path | None, kind: str, vocab_size: int, overwrite: bool) -> Any:
    from polyreply.data.folder import split_files
    from polyreply.data.tokenizer import (
        check_tokenizer_target,
        load_tokenizer,
        save_tokenizer,
        texts_of,
        train_tokenizer,
    )
    from polyreply.errors import PolyReplyError

    if name is not None:
        return load_tokenizer(name)
    if out is None:
        raise PolyReplyError("a new tokenizer needs a folder: add --out DIR, or name one with --tokenizer")
    check_tokenizer_target(out, overwrite)
    files = split_files(data)
    if "train" not in files:
        raise PolyReplyError(f"{data}: expected train.jsonl.gz to train a tokenizer on")
    texts = texts_of(files["train"])
    trained = train_tokenizer(texts, kind=cast(Literal["unigram", "bpe"], kind), vocab_size=vocab_size)
    save_tokenizer(trained, out, overwrite=overwrite)
    return trained
