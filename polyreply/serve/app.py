"""The app of `polyreply serve`: the API, the page, health, metrics, and keys."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Response

from polyreply.reply import PolyReply
from polyreply.serve.metrics import CountRequests
from polyreply.serve.openai_api import openai_routes
from polyreply.serve.replies_api import replies_routes
from polyreply.serve.schema import Status
from polyreply.serve.service import Service
from polyreply.serve.settings import ServeSettings
from polyreply.web.app import LOCAL_HOSTS, add_page, create_app
from polyreply.web.errors import ApiError, ErrorAnswer
from polyreply.web.keys import Keys
from polyreply.web.logs import note

ASSETS = Path(__file__).parent / "static"
_DESCRIPTION = """Replies of a dialogue model with K decoders: n choices from n decoders in one pass.
The endpoints of OpenAI's API accept its requests; decoder, manner and log-probability are further fields of a choice.
Parameters that are not listed here are refused, unless their value changes nothing."""


def serve_app(
    polyreply: PolyReply, settings: ServeSettings, *, keys: Keys | None = None, any_host: bool = False
) -> FastAPI:
    """The app for a loaded model. With `any_host`, clients may call the server by any name, as on a public address."""
    service = Service(polyreply, settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.engine.start()
        yield
        service.engine.close()

    app = create_app(
        "polyreply",
        description=_DESCRIPTION,
        assets=ASSETS,
        lifespan=lifespan,
        max_body_bytes=settings.max_body_bytes,
        allowed_hosts=("*",) if any_host else (*LOCAL_HOSTS, *settings.allowed_hosts),
        cors_origins=settings.cors_origins,
    )
    app.add_middleware(CountRequests, metrics=service.metrics)
    add_page(app, "/", ASSETS / "index.html")
    for routes in (openai_routes(service), replies_routes(service)):
        app.include_router(routes, dependencies=[Depends(_key_check(keys))])
    _add_status(app, service)
    return app


def _key_check(keys: Keys | None) -> Callable[..., Any]:
    """A dependency that lets only owners of keys pass."""

    async def anybody() -> None:
        pass

    async def owner_only(authorization: Annotated[str | None, Header()] = None) -> None:
        assert keys is not None
        scheme, _, presented = (authorization or "").partition(" ")
        owner = keys.owner(presented.strip()) if scheme.lower() == "bearer" else None
        if owner is None:
            headers = {"WWW-Authenticate": "Bearer"}
            message = "expected the header Authorization: Bearer KEY with a key that this server knows"
            raise ApiError(401, message, code="invalid_api_key", headers=headers)
        note(key=owner)

    return anybody if keys is None else owner_only


def _add_status(app: FastAPI, service: Service) -> None:
    unavailable: dict[int | str, dict[str, object]] = {503: {"model": ErrorAnswer, "description": "It is not."}}

    @app.get("/health", responses=unavailable)
    async def health() -> Status:
        """Whether the process works; if not, restart it."""
        if not service.engine.is_alive:
            raise ApiError(503, "the engine has stopped", code="engine_stopped")
        return Status(status="ok")

    @app.get("/ready", responses=unavailable)
    async def ready() -> Status:
        """Whether a request would be accepted now; if not, send it elsewhere."""
        if app.state.stopping:
            raise ApiError(503, "the server is stopping", code="stopping")
        if not service.engine.is_alive or not service.engine.has_room:
            raise ApiError(503, "the queue is full", code="queue_full")
        return Status(status="ready")

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
