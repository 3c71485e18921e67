"""The command line: one thin file per verb, imported without torch so that help answers at once."""

import os
import signal
import sys
from typing import Annotated

import typer

from polyreply import __version__
from polyreply.cli import bench, compare, demo, display, evaluate, prepare, reply, reproduce, tokenize, train
from polyreply.errors import PolyReplyError

app = typer.Typer(
    name="polyreply",
    help="One message in, K different replies out: train, evaluate and serve dialogue models with K decoders.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


_INTERRUPTED = 130


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"polyreply {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave."),
    ] = False,
) -> None:
    pass


app.command(name="compare")(compare.compare)
app.command(name="demo")(demo.demo)
app.command(name="evaluate")(evaluate.evaluate)
app.command(name="prepare")(prepare.prepare)
app.command(name="reply")(reply.reply)
app.command(name="reproduce")(reproduce.reproduce)
app.command(name="tokenize")(tokenize.tokenize)
app.command(name="train")(train.train)
app.add_typer(bench.app, name="bench")


def run() -> None:
    """Runs the command line; a mistake of the user's becomes one clear line and exit status 2."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, display.interrupt)
    try:
        app()
    except SystemExit as end:
        if end.code == _INTERRUPTED:  # Typer's answer to Ctrl-C
            typer.echo("interrupted", err=True)
        raise
    except PolyReplyError as error:
        sys.exit(_fail(str(error)))
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        sys.exit(_fail(f"{place}{error.strerror or error}"))


def _stop(number: int, frame: object) -> None:
    """Ends on SIGTERM as on an error, so that temporary files are removed."""
    sys.exit(128 + number)


def _fail(message: str) -> int:
    typer.echo(f"error: {message}", err=True)
    return 2
