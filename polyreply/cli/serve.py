"""`polyreply serve`."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyreply.errors import MissingExtraError, PolyReplyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from polyreply.reply import PolyReply


def serve(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model folder, a name on the Hugging Face hub, or shipped.")
    ] = "shipped",
    host: Annotated[str, typer.Option(help="The address to listen on; by default only this machine's.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 means any free one.")] = 8000,
    name: Annotated[str, typer.Option(help="What the API calls the model; by default the end of its path.")] = "",
    keys: Annotated[Path | None, typer.Option(help="A file of API keys; without one, no key is needed.")] = None,
    new_key: Annotated[
        str, typer.Option(metavar="NAME", help="Add a key of that name to the file of --keys, print it, and exit.")
    ] = "",
    max_batch: Annotated[int, typer.Option(min=1, help="Most contexts decoded together; 1: no batching.")] = 64,
    max_queue: Annotated[int, typer.Option(min=1, help="Most contexts that wait; above it requests get 429.")] = 256,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a request: n times max_tokens.")] = 4096,
    max_characters: Annotated[int, typer.Option(min=1, help="Most characters of a context.")] = 50_000,
    max_body: Annotated[int, typer.Option(min=1024, help="Most bytes of a request.")] = 1 << 20,
    seconds: Annotated[float, typer.Option(min=0.001, help="Most seconds for a request.")] = 60.0,
    grace: Annotated[int, typer.Option(min=0, help="Seconds that running requests have after SIGTERM.")] = 60,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="A site whose pages may use the API; may be repeated. None by default.")
    ] = None,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="A further name by which clients call this server; may be repeated.")
    ] = None,
    log_texts: Annotated[bool, typer.Option("--log-texts", help="Write messages and replies to the log.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, …")] = "auto",
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16, the fastest of these on this device, float64, or int8 on a CPU.")
    ] = "fastest",
) -> None:
    """Serve a model: an API that OpenAI's clients understand, and a page to talk to, at http://127.0.0.1:8000.

    n choices of a request come from n decoders in one pass, and requests that arrive together are decoded together.
    The log, one JSON object per line, goes to standard error and has no message texts. SIGTERM finishes what runs.

    \b
    Examples:
      polyreply serve
      polyreply serve runs/demo/model --port 9000
      polyreply serve --keys keys.txt --new-key ann
      polyreply serve --keys keys.txt --host 0.0.0.0 --allowed-host chat.example.org
    """
    if new_key:
        _print_new_key(keys, new_key)
        return
    settings_given = {
        "max_batch": max_batch,
        "max_queue": max_queue,
        "max_tokens": max_tokens,
        "max_characters": max_characters,
        "max_body_bytes": max_body,
        "seconds": seconds,
        "log_texts": log_texts,
        "cors_origins": tuple(cors_origin or ()),
        "allowed_hosts": tuple(allowed_host or ()),
    }
    try:
        from polyreply.serve.app import serve_app
        from polyreply.web import server
        from polyreply.web.keys import Keys
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "fastapi", "serve", "polyreply serve") from error
    from polyreply.cli.reply import load_model
    from polyreply.models.shipped import SHIPPED, shipped_model
    from polyreply.serve.settings import ServeSettings

    known = None if keys is None else Keys.read(keys)
    bound = server.bind(host, port)
    loaded = _in_a_thread(lambda: _warm(load_model(model, device, dtype)))
    own_name = name or (shipped_model() if model == SHIPPED else Path(model).name)
    settings = ServeSettings(name=own_name, **settings_given)  # type: ignore[arg-type]
    is_open = not server.is_local(host) and not allowed_host
    server.serve(serve_app(loaded, settings, keys=known, any_host=is_open), bound, grace_seconds=grace)


def _warm(model: "PolyReply") -> "PolyReply":
    """The model after one reply, so that no client waits for what is prepared in the first step."""
    model.reply("Hello!", max_new_tokens=2)
    return model


def _in_a_thread(work: "Callable[[], PolyReply]") -> "PolyReply":
    """The result of work that is done in a thread of its own, which has ended then.

    Each thread that multiplies has OpenMP helpers for as long as it lives. With more of them than cores in a process,
    libgomp puts them to sleep after each product, and the engine's thread decodes at half its speed.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def _print_new_key(keys: Path | None, name: str) -> None:
    from polyreply.web.keys import add_key

    if keys is None:
        raise PolyReplyError("--new-key expected --keys FILE, found none; name the file to add the key to")
    typer.echo(add_key(keys, name))
