"""An app with the defences that every web program here has: strict headers, closed CORS, limited bodies, known hosts.

Assets are files of the package. A page may load its own scripts and styles and talk to its own server, nothing else:
inline scripts, inline styles and other sites are forbidden by the Content-Security-Policy.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import FileResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyreply import __version__
from polyreply.web.errors import ApiError, add_error_answers, retry_later
from polyreply.web.logs import RequestLog

SHARED_ASSETS = Path(__file__).parent / "static"
"""Served at /web: what pages of several programs use."""
LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")
MAX_BODY_BYTES, MOST_DISCARDED_BYTES, BODY_SECONDS = 1 << 20, 64 << 20, 30
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def _nothing(_: FastAPI) -> AsyncIterator[None]:
    yield


def create_app(
    title: str,
    *,
    assets: Path,
    description: str = "",
    lifespan: Lifespan = _nothing,
    max_body_bytes: int = MAX_BODY_BYTES,
    allowed_hosts: Sequence[str] = LOCAL_HOSTS,
    cors_origins: Sequence[str] = (),
) -> FastAPI:
    """A FastAPI app that serves `assets` at /static and the API's reference at /docs; errors have one shape.

    `app.state.stopping` becomes true when the server is asked to stop: from then on requests are refused with 503.
    `allowed_hosts` are the names a client may call this server by, which keeps other sites from reaching a local server
    through their own DNS; `*` allows any. `cors_origins` are the other sites whose pages may read answers.
    """
    app = FastAPI(
        title=title,
        description=description,
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.stopping = False
    add_error_answers(app)
    app.mount("/static", StaticFiles(directory=assets))
    app.mount("/web", StaticFiles(directory=SHARED_ASSETS))
    app.add_api_route("/docs", _page(SHARED_ASSETS / "docs.html"), include_in_schema=False)
    if cors_origins:
        app.add_middleware(CORSMiddleware, allow_origins=list(cors_origins), allow_methods=["*"], allow_headers=["*"])
    app.add_middleware(Guard, allowed_hosts=allowed_hosts, max_body_bytes=max_body_bytes)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(RequestLog)
    return app


def add_page(app: FastAPI, path: str, file: Path) -> None:
    """Serve a file of the package as a page."""
    app.add_api_route(path, _page(file), include_in_schema=False)


def _page(file: Path) -> Callable[[], Any]:
    async def page() -> FileResponse:
        return FileResponse(file, headers={"Cache-Control": "no-cache"})

    return page


class SecurityHeaders:
    """Middleware that adds the security headers to every answer; what an API answers is never stored."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                cached = scope["path"].startswith(("/static/", "/web/"))
                headers.setdefault("Cache-Control", "no-cache" if cached else "no-store")
            await send(message)

        await self.app(scope, receive, send_with_headers)


class Guard:
    """Middleware that refuses other hosts, bodies that are too large or too slow, and new work once we stop.

    It reads the whole body before the request's handler starts, so that a slow client holds nothing else.
    """

    def __init__(self, app: ASGIApp, *, allowed_hosts: Sequence[str], max_body_bytes: int) -> None:
        self.app, self.max_body_bytes = app, max_body_bytes
        self.allowed_hosts = None if "*" in allowed_hosts else {host.lower() for host in allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            self._check(scope)
            async with asyncio.timeout(BODY_SECONDS):
                body = await self._read(receive)
        except TimeoutError:
            await ApiError(408, f"expected the whole body within {BODY_SECONDS} seconds").answer()(scope, receive, send)
        except ApiError as error:
            await error.answer()(scope, receive, send)
        else:
            await self.app(scope, _replay(body, receive), send)

    def _check(self, scope: Scope) -> None:
        host = Headers(scope=scope).get("host", "")
        if self.allowed_hosts is not None and _without_port(host).lower() not in self.allowed_hosts:
            raise ApiError(
                421, "this server does not answer to that host name; see --allowed-host", code="unknown_host"
            )
        if scope["app"].state.stopping and scope["method"] not in ("GET", "HEAD"):
            raise retry_later(503, "the server is stopping; try again", 5, code="stopping")

    async def _read(self, receive: Receive) -> bytes:
        """The body; one that is too large is read to its end within reason, so that the client sees the answer."""
        chunks, size, more = list[bytes](), 0, True
        while more and size <= MOST_DISCARDED_BYTES:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ApiError(400, "the client went away")
            chunk, more = message.get("body", b""), message.get("more_body", False)
            size += len(chunk)
            if size <= self.max_body_bytes:
                chunks.append(chunk)
        if size > self.max_body_bytes:
            raise ApiError(413, f"expected a body of at most {self.max_body_bytes} bytes", code="body_too_large")
        return b"".join(chunks)


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body as one message, then what comes after it: that the client goes away."""
    sent = False

    async def replay() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
