"""The benchmark of the server, with a stand-in server whose speed is known to be the same for all."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from polyreply.bench import serve
from polyreply.errors import PolyReplyError
from polyreply.progress import silent


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    status = 200

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps({"choices": [0] * 10, "replies": [0] * 10}).encode()
        self.send_response(self.status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 128  # all clients connect at once


@contextmanager
def stand_in(command):
    with Server(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_every_figure_is_reported_and_ratios_are_those_of_the_figures(monkeypatch):
    commands = []

    @contextmanager
    def running(command):
        commands.append(command)
        with stand_in(command) as url:
            yield url

    monkeypatch.setattr(serve, "running", running)
    figures = serve.bench_serve(0.1, silent)
    kinds = ("per_second", "p50_seconds", "p95_seconds", "p99_seconds")
    names = {f"serve.{way}_c{c}_{kind}" for way in ("ours", "one_by_one", "beam") for c in (1, 8, 64) for kind in kinds}
    assert set(figures) == {*names, "serve.batching_gain", "serve.vs_beam"}
    own, alone, beam = (figures[f"serve.{way}_c64_per_second"] for way in ("ours", "one_by_one", "beam"))
    assert figures["serve.batching_gain"] == own / alone and figures["serve.vs_beam"] == own / beam
    assert commands[1] == [*commands[0], "--max-batch", "1"]


def test_quantiles_of_latency():
    figures = serve.Load(2.0, [number / 100 for number in range(101)]).figures("a")
    expected = {"a_per_second": 2.0, "a_p50_seconds": 0.5, "a_p95_seconds": 0.95, "a_p99_seconds": 0.99}
    assert figures == pytest.approx(expected)


def test_a_refused_request_is_an_error_and_no_fast_answer(monkeypatch):
    monkeypatch.setattr(Answer, "status", 429)
    with stand_in([]) as url, pytest.raises(PolyReplyError, match="429"):
        serve.measure(url, serve._chat, 2, 0.1)


def test_a_server_that_does_not_start_is_an_error():
    with pytest.raises(PolyReplyError, match="did not start"), serve.running(["false"]):
        pass
