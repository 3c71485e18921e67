"""What the handlers of the API share: the model, the engine, and how a request is run to its end."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import Request

from polyreply import __version__
from polyreply.errors import PolyReplyError
from polyreply.reply import PolyReply
from polyreply.serve.engine import Ask, Engine, QueueFullError, StoppedError, TimeLimitError, Update
from polyreply.serve.metrics import Metrics
from polyreply.serve.prompts import Prompts
from polyreply.serve.schema import Usage
from polyreply.serve.settings import ServeSettings
from polyreply.web.errors import ApiError, printable, retry_later
from polyreply.web.logs import note


class Service:
    """A model that answers requests."""

    def __init__(self, polyreply: PolyReply, settings: ServeSettings) -> None:
        self.polyreply, self.settings, self.metrics = polyreply, settings, Metrics()
        self.engine = Engine(polyreply, settings, self.metrics)
        self.prompts = Prompts(polyreply, settings)
        self.created, self.fingerprint = int(time.time()), f"polyreply-{__version__}"

    def check_model(self, name: str | None) -> None:
        """Raise unless a request names this model, or none."""
        if name is not None and name != self.settings.name:
            message = f"the model {printable(name[:100])!r} does not exist here; this server has {self.settings.name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def manner(self, decoder: int) -> str | None:
        """What a decoder tends to do, if that is known."""
        manners = self.polyreply.manners
        return manners[decoder] if manners else None

    def submit(self, ask: Ask) -> None:
        """Put a request into the queue; its prompt tokens are counted from here on."""
        try:
            self.engine.submit(ask)
        except Exception as error:
            raise api_error(error) from error
        self.metrics.prompt_tokens.inc(sum(len(job.context_S) for job in ask.jobs))

    async def updates(self, ask: Ask) -> AsyncGenerator[list[Update]]:
        """What the replies of a submitted request gain, with failures as errors of the API."""
        async with aclosing(self.engine.updates(ask)) as updates:
            try:
                async for some in updates:
                    yield some
            except Exception as error:
                raise api_error(error) from error

    async def finish(self, request: Request, ask: Ask) -> None:
        """Run a request to its end; it is dropped as soon as its client goes away."""
        self.submit(ask)
        running = asyncio.create_task(self._run(ask))
        leaving = asyncio.create_task(_disconnected(request))
        await asyncio.wait({running, leaving}, return_when=asyncio.FIRST_COMPLETED)
        is_done = running.done()
        for task in (running, leaving):
            task.cancel()
        await asyncio.gather(running, leaving, return_exceptions=True)
        if not is_done:
            raise ApiError(499, "the client went away")
        running.result()

    async def _run(self, ask: Ask) -> None:
        async for _ in self.updates(ask):
            pass

    def usage(self, prompt_tokens: int, returned: int, generated: int) -> Usage:
        """The tokens of a request, which also go to its line in the log."""
        note(prompt_tokens=prompt_tokens, completion_tokens=returned, generated_tokens=generated)
        total = prompt_tokens + returned
        return Usage(
            prompt_tokens=prompt_tokens, completion_tokens=returned, total_tokens=total, generated_tokens=generated
        )


def api_error(error: Exception) -> Exception:
    """A failure of the engine as an error of the API; others as they are."""
    match error:
        case QueueFullError():
            return retry_later(429, "too many requests wait; try again", error.seconds, code="queue_full")
        case StoppedError():
            return retry_later(503, "the server is stopping; try again", 5, code="stopping")
        case TimeLimitError():
            return retry_later(503, "the request took too long; try again, or ask for less", 5, code="time_limit")
        case PolyReplyError():
            return ApiError(400, printable(str(error)))
    return error


async def _disconnected(request: Request) -> None:
    """Return when the client has gone away; its body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
