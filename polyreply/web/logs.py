"""Structured logs: one JSON object per line on standard error, one line per request, each with the request's id.

A line holds what a request asked for and cost, never what people wrote: handlers add fields with `note`.
"""

import json
import logging
import re
import sys
import time
import uuid
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyreply.web.errors import ApiError

LOGGER = "polyreply.web"
REQUEST_ID = "x-request-id"
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_MOST_PATH = 200
_notes: ContextVar[dict[str, Any] | None] = ContextVar("notes", default=None)


def log(event: str, *, level: int = logging.INFO, exception: BaseException | None = None, **fields: Any) -> None:
    """Write a line."""
    logging.getLogger(LOGGER).log(level, event, extra={"fields": fields}, exc_info=exception)


def note(**fields: Any) -> None:
    """Add fields to the line of the current request."""
    notes = _notes.get()
    if notes is not None:
        notes.update(fields)


class JsonLines(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The time, the level, the event and its fields."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": moment, "level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def start_logging() -> None:
    """Send the lines of the web program, and uvicorn's warnings, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name, level in ((LOGGER, logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


class RequestLog:
    """Middleware that gives each request an id, logs it, and answers 500 if its handler fails.

    A client's own `X-Request-ID` is kept if it is short and harmless; the answer repeats the id.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        notes: dict[str, Any] = {}
        token = _notes.set(notes)

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (REQUEST_ID.encode(), request_id.encode())]
            await send(message)

        failure: Exception | None = None
        try:
            await self.app(scope, receive, send_with_id)
        except Exception as error:
            failure = error
            if not status:
                await ApiError(500, "the server failed; its log has the reason").answer()(scope, receive, send_with_id)
        finally:
            _notes.reset(token)
            seconds = round(time.perf_counter() - start, 6)
            about = {"method": scope["method"], "path": scope["path"][:_MOST_PATH], "status": status}
            level = logging.INFO if failure is None else logging.ERROR
            log("request", level=level, exception=failure, request_id=request_id, **about, seconds=seconds, **notes)


def _request_id(scope: Scope) -> str:
    given = next((value.decode("latin-1") for name, value in scope["headers"] if name == REQUEST_ID.encode()), "")
    return given if _ID.fullmatch(given) else uuid.uuid4().hex
