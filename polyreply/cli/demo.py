"""`polyreply demo`."""

from pathlib import Path
from typing import Annotated, Any

import typer


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for everything the demo writes.")] = Path(
        "runs/demo"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the reports as JSON.")] = False,
) -> None:
    """The data half of the flow, end to end, on the two embedded corpora.

    Prepares real human conversations (chitchat) and generated ones with known reply acts (smalltalk), trains a
    tokenizer, and shows lengths, truncations and padding of the batches a model would be trained on.

    \b
    Examples:
      polyreply demo
      polyreply demo --out runs/first
    """
    from polyreply.cli.display import print_json, print_table, progress_bar
    from polyreply.cli.prepare import print_report
    from polyreply.cli.tokenize import token_table
    from polyreply.data.context_format import ContextFormat
    from polyreply.data.prepare import prepare
    from polyreply.data.token_report import texts_of, token_report
    from polyreply.data.tokenizer import save_tokenizer, train_tokenizer

    corpora = {"chitchat": out / "chitchat", "smalltalk-explicit": out / "smalltalk"}
    with progress_bar() as notify:
        reports = {name: prepare([name], folder, overwrite=True, notify=notify) for name, folder in corpora.items()}
        notify("training a tokenizer", 0.0)
        tokenizer = train_tokenizer(texts_of(out / "chitchat/train.jsonl.gz"), vocab_size=8000)
        save_tokenizer(tokenizer, out / "tokenizer", overwrite=True)
        notify("tokenising", 0.0)
        tokens = token_report(out / "chitchat", tokenizer, ContextFormat())
    if as_json:
        print_json({"prepare": reports, "tokens": tokens})
        return
    print_report(reports["chitchat"], out / "chitchat")
    _print_one_to_many(out / "smalltalk/valid.jsonl.gz")
    print_table("Tokens of chitchat: contexts in, responses out, batches of 64 rows", *token_table(tokens))
    typer.echo(f"\nEverything is in {out}. What to try next:")
    typer.echo("  polyreply prepare your_dialogues.jsonl --out data/yours")
    typer.echo(f"  polyreply tokenize data/yours --tokenizer {out}/tokenizer")


def _print_one_to_many(path: Path, contexts: int = 2) -> None:
    """A few contexts with their different replies and the hidden act of each."""
    from itertools import islice

    from polyreply.cli.display import print_table
    from polyreply.data.read import read_dialogues

    rows: list[list[Any]] = []
    for dialogue in islice(read_dialogues(path), contexts):
        for number, (response, act) in enumerate(zip(dialogue.responses, dialogue.acts, strict=True)):
            rows.append([dialogue.context[0] if number == 0 else "", response, act])
    print_table("smalltalk: one message, several replies", ("context", "reply", "hidden act"), rows)
