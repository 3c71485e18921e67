"""`polyreply bench serve`: throughput and latency of a real server at 1, 8 and 64 clients.

Three servers, each a process of its own with the same model (t5-mini-10, which is on every machine) and the same
number of threads: ours with batching, ours that decodes one context at a time, and a plain FastAPI handler around
Transformers' beam search with 10 beams. The clients ask for ten replies to a message, and ask again when they have
them. They are threads of this process and share the processors with the server, as in any test on one machine.
"""

import json
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from itertools import cycle, product
from typing import Any
from urllib.parse import urlsplit

from polyreply.errors import PolyReplyError
from polyreply.models.shipped import T5_MINI_10
from polyreply.progress import Notify

CLIENTS = (1, 8, 64)
K = 10
_SUBJECTS = ("my sister", "our neighbour", "the new boss", "a friend of mine", "my old teacher", "the doctor")
_DEEDS = ("passed the test", "lost the keys", "moved to the coast", "started to paint", "bought a boat", "has a cold")
_PLACES = ("yesterday", "this morning", "last week", "on Sunday", "again")

BEAM_SERVER = """
import torch
from fastapi import FastAPI
from pydantic import BaseModel
from polyreply.reply import PolyReply
from polyreply.web.server import bind, serve

polyreply = PolyReply.from_pretrained("t5-mini-10")
backbone, tokenizer = polyreply.model.plain_backbone().eval(), polyreply.tokenizer
app = FastAPI()

class Body(BaseModel):
    text: str

@app.post("/beam")
async def beam(body: Body):  # one at a time: threads that generate at once would only slow each other down
    inputs = tokenizer([body.text], return_tensors="pt")
    with torch.no_grad():
        found = backbone.generate(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"],
            num_beams=10, num_return_sequences=10, max_new_tokens=32,
        )
    return {"replies": tokenizer.batch_decode(found, skip_special_tokens=True)}

serve(app, bind("127.0.0.1", 0))
"""


@dataclass(frozen=True)
class Load:
    """What some clients measured."""

    per_second: float
    latencies: Sequence[float]

    def figures(self, name: str) -> dict[str, float]:
        """Throughput and quantiles of latency under a name."""
        quantiles = statistics.quantiles(self.latencies, n=100, method="inclusive") if len(self.latencies) > 1 else []
        shown = {f"{name}_p{q}_seconds": quantiles[q - 1] for q in (50, 95, 99) if quantiles}
        return {f"{name}_per_second": self.per_second, **shown}


def bench_serve(seconds: float, notify: Notify) -> dict[str, Any]:
    """Throughput and latency under stable names, `serve.batching_gain` and `serve.vs_beam` at 64 clients."""
    ours = [sys.executable, "-m", "polyreply", "serve", T5_MINI_10, "--port", "0", "--seconds", "600"]
    servers: dict[str, tuple[list[str], Ask]] = {
        "ours": (ours, _chat),
        "one_by_one": ([*ours, "--max-batch", "1"], _chat),
        "beam": ([sys.executable, "-c", BEAM_SERVER], _beam),
    }
    figures: dict[str, Any] = {}
    for place, (name, (command, ask)) in enumerate(servers.items()):
        with running(command) as url:
            for number, clients in enumerate(CLIENTS):
                notify(f"{name}, {clients} clients", (place + number / len(CLIENTS)) / len(servers))
                figures |= measure(url, ask, clients, seconds).figures(f"serve.{name}_c{clients}")
    most = CLIENTS[-1]
    own = figures[f"serve.ours_c{most}_per_second"]
    figures["serve.batching_gain"] = own / figures[f"serve.one_by_one_c{most}_per_second"]
    figures["serve.vs_beam"] = own / figures[f"serve.beam_c{most}_per_second"]
    return figures


@contextmanager
def running(command: Sequence[str]) -> Iterator[str]:
    """A server process; the URL that it announces."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        announced = next((line for line in process.stdout if line.startswith("listening on ")), None)
        if announced is None:
            raise PolyReplyError(f"a server did not start inside the benchmark: {' '.join(command)[:200]}")
        yield announced.split()[-1]
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


Ask = Callable[[HTTPConnection, str], None]


def _post(connection: HTTPConnection, path: str, body: dict[str, Any]) -> dict[str, Any]:
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200:
        raise PolyReplyError(f"expected status 200 inside the benchmark, found {answer.status}: {content[:200]!r}")
    found: dict[str, Any] = json.loads(content)
    return found


def _chat(connection: HTTPConnection, text: str) -> None:
    body = {"model": T5_MINI_10, "messages": [{"role": "user", "content": text}], "n": K}
    assert len(_post(connection, "/v1/chat/completions", body)["choices"]) == K


def _beam(connection: HTTPConnection, text: str) -> None:
    assert len(_post(connection, "/beam", {"text": text})["replies"]) == K


def measure(url: str, ask: Ask, clients: int, seconds: float) -> Load:
    """Let clients ask for a while; the time ends with the last answer."""
    messages = _messages()
    lock, latencies, failures = threading.Lock(), list[float](), list[Exception]()
    address = urlsplit(url)
    ends: list[float] = []

    def client() -> None:
        connection = HTTPConnection(address.hostname or "", address.port, timeout=600)
        try:
            while time.perf_counter() - begin < seconds:
                with lock:
                    text = next(messages)
                start = time.perf_counter()
                ask(connection, text)
                end = time.perf_counter()
                latencies.append(end - start)
                ends.append(end)
        except Exception as error:
            failures.append(error)
        finally:
            connection.close()

    _warm_up(url, ask)
    begin = time.perf_counter()
    threads = [threading.Thread(target=client, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return Load(len(latencies) / (max(ends) - begin), latencies)


def _messages() -> Iterator[str]:
    """Messages without end, many of them different."""
    for subject, deed, when in cycle(product(_SUBJECTS, _DEEDS, _PLACES)):
        yield f"Guess what, {subject} {deed} {when}!"


def _warm_up(url: str, ask: Ask) -> None:
    address = urlsplit(url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=600)
    ask(connection, "Hello there!")
    connection.close()
