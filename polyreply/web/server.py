"""A server process: binds first, announces its address, and on SIGTERM finishes what runs and refuses what is new."""

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from polyreply.errors import PolyReplyError
from polyreply.web.logs import log, start_logging

LOCALHOST = "127.0.0.1"
_BACKLOG = 2048


def is_local(host: str) -> bool:
    """Whether only programs on this machine reach a server that is bound to this address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bind(host: str, port: int) -> socket.socket:
    """A socket that is bound but does not listen yet; port 0 is any free one."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio sends at once (TCP_NODELAY) only on sockets that say they are TCP; else a body waits 40 ms for an ACK.
        bound = socket.socket(family, kind, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise PolyReplyError(f"cannot listen on {host} port {port}: {error.strerror}; choose another") from error
    return bound


def address_of(bound: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(app: FastAPI, bound: socket.socket, *, grace_seconds: int = 60) -> None:
    """Serve until SIGTERM or Ctrl-C; requests that run then have `grace_seconds` to finish. A second signal forces it.

    When requests are accepted, the line `listening on URL` goes to standard output, for people and for programs that
    wait for it.
    """
    start_logging()
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=grace_seconds,
        ws="none",
    )
    _Server(config, app, address_of(bound)).run([bound])


class _Server(uvicorn.Server):
    """Uvicorn's server, which tells the app at once that it is to stop, and exits with status 0 after that."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, address: str) -> None:
        super().__init__(config)
        self.app, self.address = app, address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            log("listening", address=self.address)
            print(f"listening on {self.address}", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log("stopping", connections=len(self.server_state.connections))
        await super().shutdown(sockets)
        log("stopped")

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before: dict[Any, Any] = {number: signal.signal(number, self._stop) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True
        self.should_exit = self.app.state.stopping = True


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
