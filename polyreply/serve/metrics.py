"""What `/metrics` reports, for Prometheus."""

import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def made(kind: Any, name: str, text: str, labels: tuple[str, ...] = (), **options: Any) -> Any:
            return kind(f"polyreply_{name}", text, labels, registry=self.registry, **options)

        self.requests: Counter = made(Counter, "requests", "Answered requests.", ("path", "status"))
        self.seconds: Histogram = made(
            Histogram, "request_seconds", "Seconds to the last byte of an answer.", ("path",), buckets=_SECONDS
        )
        self.queue_length: Gauge = made(Gauge, "queue_length", "Contexts that wait.")
        self.running: Gauge = made(Gauge, "running_contexts", "Contexts that are being decoded.")
        self.batch_contexts: Histogram = made(
            Histogram, "batch_contexts", "Contexts of a decoding step.", buckets=_SIZES
        )
        self.batch_rows: Histogram = made(
            Histogram, "batch_rows", "Rows (context, decoder) of a decoding step.", buckets=_SIZES
        )
        self.prompt_tokens: Counter = made(Counter, "prompt_tokens", "Context tokens of accepted requests.")
        self.generated_tokens: Counter = made(Counter, "generated_tokens", "Tokens that were generated.")
        self.dropped: Counter = made(Counter, "dropped_requests", "Requests whose client went away.")

    def text(self) -> bytes:
        """All metrics in Prometheus' format."""
        return generate_latest(self.registry)


class CountRequests:
    """Middleware that counts requests and their time by the path of their route."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_counted)
        finally:
            path = getattr(scope.get("route"), "path", "other")
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - start)
