"""`polyreply reply`."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyreply.distributed import MainFailedError, ProcessError, connected, rank, world_size
from polyreply.errors import PolyReplyError
from polyreply.progress import Notify, silent

if TYPE_CHECKING:
    from polyreply.reply import PolyReply, Reply, ReplyOptions
    from polyreply.reply_file import Job

_KEPT = "finished batches are kept: start the same command again to resume"
_HELLO = """A chat: choose the reply that the conversation continues with by its number, or press Enter for the most
likely one. /new starts a new conversation, /quit leaves."""


def reply(
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT", help="Messages; without any, lines of standard input, or a chat when that is a terminal."
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(help="A model folder, a name on the Hugging Face hub, or shipped: the best that can be loaded."),
    ] = "shipped",
    decode: Annotated[
        str, typer.Option(help="decoders, mbr, beam, nucleus, top-k, min-p or diverse-beam.")
    ] = "decoders",
    k: Annotated[int | None, typer.Option("-k", help="Replies for each message: all decoders, or 10.")] = None,
    m: Annotated[int | None, typer.Option("-m", help="Show only this many of them, the most diverse.")] = None,
    input: Annotated[Path | None, typer.Option("--input", "-i", help="A dialogue file to reply to.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The responses file to write; .gz compresses it.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output, partial or complete.")] = False,
    context_turns: Annotated[int, typer.Option(min=1, help="Most turns of context from a conversation.")] = 1,
    max_new_tokens: Annotated[int | None, typer.Option(help="Most tokens of a reply.")] = None,
    no_repeat_ngram_size: Annotated[int | None, typer.Option(help="No sequence of this many tokens twice.")] = None,
    guidance_scale: Annotated[
        float | None, typer.Option(help="Above 1: replies move away from what would be said to an empty message.")
    ] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Sample from each decoder, instead of greedy.")] = False,
    temperature: Annotated[float | None, typer.Option(help="With --sample: below 1 is safer, above 1 wilder.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="With --sample, nucleus or mbr: the share of likely tokens.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="With --sample or top-k: the number of likely tokens.")] = None,
    min_p: Annotated[
        float | None,
        typer.Option(help="With --sample or min-p: the least probability of a token, relative to the likeliest."),
    ] = None,
    samples: Annotated[int | None, typer.Option(help="With mbr: samples of each decoder, by default 8.")] = None,
    seed: Annotated[int, typer.Option(help="Decides what sampling draws.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Messages decoded together.")] = 16,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, …")] = "auto",
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16, the fastest of these on this device, or int8, faster on a CPU.")
    ] = "fastest",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one row of a responses file per line.")] = False,
) -> None:
    """K different replies to each message, one from each decoder.

    With --input and --output it replies to a whole dialogue file; an interrupted run resumes when it is started again.
    Several processes share the work under torchrun or accelerate launch.

    \b
    Examples:
      polyreply reply "I finally passed my driving test!"
      polyreply reply
      cat messages.txt | polyreply reply --model runs/demo/model --json
      polyreply reply -i data/valid.jsonl.gz -o responses.jsonl --model runs/demo/model
      torchrun --nproc-per-node 2 -m polyreply reply -i data/valid.jsonl.gz -o responses.jsonl --model runs/demo/model
      polyreply reply "How are you?" --model runs/demo/model --decode nucleus -k 5
    """
    options: ReplyOptions = {
        "decode": decode,
        "k": k,
        "m": m,
        "seed": seed,
        "max_new_tokens": max_new_tokens,
        "no_repeat_ngram_size": no_repeat_ngram_size,
        "guidance_scale": guidance_scale,
        "do_sample": sample or None,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "samples": samples,
    }
    job = _job(texts, input, output, options, context_turns, batch_size, overwrite, dtype)
    if job is not None:
        _run_job(job, model, device, as_json)
        return
    loaded = load_model(model, device, dtype)
    if not texts and sys.stdin.isatty():
        chat(loaded, options)
    else:
        _print_replies(loaded, texts or _lines(sys.stdin), options, batch_size, as_json)


def chat(
    model: "PolyReply", options: "ReplyOptions", ask: Callable[[str], str] = input, say: Callable[[str], None] = print
) -> list[str]:
    """Talk until /quit or the end of the input; returns the turns of the last conversation."""
    turns: list[str] = []
    replies: list[Reply] = []  # to choose from; empty when it is the user's turn
    say(_HELLO)
    while True:
        best = max(replies, key=lambda one: one.logprob, default=None)
        if best is not None and len(replies) == 1:
            say(f"bot> {best.text}")
            turns, replies = [*turns, best.text], []
            continue
        try:
            typed = ask("you> " if best is None else f"continue with [{best.decoder}]> ").strip()
        except EOFError:
            say("")
            return turns
        if typed == "/quit":
            return turns
        if typed == "/new":
            turns, replies = [], []
        elif best is not None:
            numbered = {str(one.decoder): one for one in replies}
            if (chosen := numbered.get(typed or str(best.decoder))) is None:
                say(f"expected one of {', '.join(numbered)}, or Enter, found {typed!r}")
                continue
            say(f"bot> {chosen.text}")
            turns, replies = [*turns, chosen.text], []
        elif typed:
            replies = _candidates(model, (*turns, typed), options, say)
            turns = [*turns, typed] if replies else turns


def _candidates(
    model: "PolyReply", turns: tuple[str, ...], options: "ReplyOptions", say: Callable[[str], None]
) -> "list[Reply]":
    """Show all replies; those that are not empty."""
    own: ReplyOptions = {**options, "seed": options.get("seed", 0) + len(turns)}
    replies = model.reply(turns, **own)
    print_replies("", replies, options.get("decode", "decoders"), model.manners)
    candidates = [one for one in replies if one.text]
    if not candidates:
        say("(all replies are empty)")
    return candidates


def print_replies(
    title: str, replies: "Sequence[Reply]", decode: str = "decoders", manners: Sequence[str] = ()
) -> None:
    """Print a table for people, with the decoders' manners if they are known."""
    from polyreply.cli.display import print_table
    from polyreply.decoding.generate import way_of

    of_decoders = way_of(decode).of_decoders
    headings = ["decoder" if of_decoders else "place", "log-probability", "reply"]
    rows = [[one.decoder, one.logprob, one.text] for one in replies]
    if of_decoders and manners:
        headings.insert(1, "manner")
        rows = [[row[0], manners[one.decoder], *row[1:]] for row, one in zip(rows, replies, strict=True)]
    print_table(title, headings, rows)


def load_model(name: str, device: str, dtype: str, *, show: bool = True) -> "PolyReply":
    """Load a model with a progress bar; if that is the shipped one, say which."""
    with _progress(show) as notify:
        notify("loading the model", 0.0)
        from transformers.utils import logging

        from polyreply.models.shipped import SHIPPED, SMOLLM2_10, better_model, shipped_model
        from polyreply.reply import PolyReply

        logging.disable_progress_bar()
        loaded = PolyReply.from_pretrained(name, device=device, dtype=dtype)
    if show and name == SHIPPED:
        install = better_model()
        more = f"; {SMOLLM2_10} replies better, to get it run: {install}" if install else ""
        typer.echo(f"model: {shipped_model()}{more}", err=True)
    return loaded


def _progress(show: bool) -> AbstractContextManager[Notify]:
    """A progress bar; of several processes only the main one shows it."""
    from polyreply.progress import progress_bar

    return progress_bar() if show else nullcontext(silent)


def _print_replies(
    model: "PolyReply", texts: Iterable[str], options: "ReplyOptions", batch_size: int, as_json: bool
) -> None:
    """Reply batch by batch, as the messages come."""
    messages, done = iter(texts), 0
    while batch := list(islice(messages, batch_size)):
        own: ReplyOptions = {**options, "seed": options["seed"] + done}
        done += len(batch)
        for text, replies in zip(batch, model.reply(batch, **own), strict=True):
            if as_json:
                import json

                from polyreply.reply_file import response_row

                typer.echo(json.dumps(response_row((text,), replies), ensure_ascii=False))
            else:
                print_replies(text, replies, options["decode"], model.manners)
    if not done:
        raise PolyReplyError("expected a message as an argument or lines on standard input, found none")


def _lines(stream: Iterable[str]) -> Iterator[str]:
    """The messages of a stream, one on each line that is not empty."""
    return (line.strip() for line in stream if line.strip())


# Files.


def _job(
    texts: list[str] | None,
    input: Path | None,
    output: Path | None,
    options: "ReplyOptions",
    context_turns: int,
    batch_size: int,
    overwrite: bool,
    dtype: str,
) -> "Job | None":
    """The work on files, if files are given."""
    if input is None and output is None:
        if world_size() > 1:
            raise PolyReplyError(
                f"expected --input and --output, the work that {world_size()} processes can share, found neither; name "
                "the files, or start one process"
            )
        return None
    if input is None or output is None:
        raise PolyReplyError("--input and --output go together: name the dialogue file and the file to write")
    if texts:
        raise PolyReplyError("expected messages or --input, found both; leave out one of them")
    from polyreply.reply_file import Job

    given: ReplyOptions = {name: value for name, value in options.items() if value is not None}  # type: ignore[assignment]
    return Job(input, output, given, context_turns, batch_size, overwrite, dtype)


def _run_job(job: "Job", model_name: str, device: str, as_json: bool) -> None:
    """Reply to a file, with all processes that a launcher has started."""
    from polyreply.cli.display import one_voice, print_json
    from polyreply.data.dialogue import BadRows
    from polyreply.reply_file import reply_to_file

    bad_rows = BadRows()
    with one_voice(_is_common), _resume_hint():
        job.check()
        with connected(_KEPT) as processes:
            model = load_model(model_name, processes.own_device(device), job.dtype, show=processes.is_main)
            with _progress(processes.is_main) as notify:
                report = reply_to_file(
                    model, job, model_name=model_name, bad_rows=bad_rows, notify=notify, processes=processes
                )
    if not processes.is_main:
        return
    if bad_rows.count:
        first = bad_rows.first[0]
        typer.echo(f"{bad_rows.count} bad rows skipped; the first: line {first['line']}, {first['reason']}", err=True)
    if as_json:
        print_json(report)
    else:
        resumed = f", {report['resumed_after']:,} of them by an earlier run" if report["resumed_after"] else ""
        typer.echo(f"{report['rows']:,} rows written to {report['output']}{resumed}")


def _is_common(error: Exception) -> bool:
    """Whether every process meets this error, or the main one reports it; not the loss of another process."""
    return isinstance(error, MainFailedError) or not isinstance(error, ProcessError)


@contextmanager
def _resume_hint() -> Iterator[None]:
    """On Ctrl-C the main process tells that no finished batch is lost."""
    try:
        yield
    except KeyboardInterrupt:
        if rank() == 0:
            typer.echo(_KEPT, err=True)
        raise
