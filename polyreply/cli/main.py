"""The command line: one file per subcommand, none of which imports torch at the top, so that help is instant.

To add a subcommand, write `polyreply/cli/NAME.py` with a function NAME and add the name to COMMANDS. A command of
another package is an entry point in the group `polyreply.commands` (docs/extending.md).
"""

import os
import signal
import sys
from importlib import import_module
from importlib.metadata import entry_points
from typing import Annotated

import typer

from polyreply import __version__, progress
from polyreply.allocator import keep_freed_memory
from polyreply.errors import PolyReplyError

COMMANDS = (
    "bench",
    "compare",
    "demo",
    "evaluate",
    "export",
    "import-peft",
    "prepare",
    "reply",
    "reproduce",
    "serve",
    "study",
    "tokenize",
    "train",
)
"""Modules of polyreply.cli (import_peft for import-peft); each defines a function of the same name, or a Typer app of
subcommands."""

app = typer.Typer(
    name="polyreply",
    help="One message in, K different replies out: train, use and evaluate dialogue models with K decoders.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_INTERRUPTED = 130
_stopped_by: list[int] = []
"""The exit status that SIGTERM asked for, once it has come."""


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"polyreply {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


def _register_commands() -> None:
    for name in COMMANDS:
        module = name.replace("-", "_")
        command = getattr(import_module(f"polyreply.cli.{module}"), module)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    for entry in entry_points(group="polyreply.commands"):
        try:
            app.command(entry.name)(entry.load())
        except ImportError as error:  # a broken plugin must not disable the other commands
            typer.echo(f"warning: the command {entry.name} cannot be loaded from {entry.value}: {error}", err=True)


_register_commands()


def run() -> None:
    """Run the command line; a user's mistake becomes one line on standard error and exit status 2."""
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGINT, progress.interrupt)
    keep_freed_memory()
    try:
        app()
    except SystemExit as end:
        if end.code == _INTERRUPTED:  # Typer's answer to Ctrl-C
            if _stopped_by:  # DuckDB reports any exception of a signal's handler as an interrupt
                sys.exit(_stopped_by[0])
            typer.echo("interrupted", err=True)
        raise
    except PolyReplyError as error:
        sys.exit(_fail(str(error)))
    except BrokenPipeError:  # the reader of our output has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        sys.exit(_fail(f"{place}{error.strerror or error}"))


def _terminate(number: int, frame: object) -> None:
    """Exit on SIGTERM by an exception, so that temporary files are removed."""
    _stopped_by.append(128 + number)
    sys.exit(128 + number)


def _fail(message: str) -> int:
    typer.echo(f"error: {message}", err=True)
    return 2
