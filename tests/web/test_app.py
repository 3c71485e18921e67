"""What web programs share, in a real server process with a small app."""

import socket
import sys
import threading

import httpx2
import pytest
from servers import browsing, page_of, serving

from polyreply.web.server import bind

PROGRAM = """
import asyncio
from pydantic import BaseModel, ConfigDict
from polyreply.web.app import add_page, create_app, SHARED_ASSETS
from polyreply.web.errors import Text
from polyreply.web.logs import note
from polyreply.web.server import bind, serve

app = create_app("small", assets=SHARED_ASSETS, max_body_bytes=1000)
add_page(app, "/", SHARED_ASSETS / "docs.html")

class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")
    text: Text
    seconds: float = 0.0

@app.post("/echo")
async def echo(body: Body) -> int:
    note(words=len(body.text.split()))
    print("started", flush=True)
    await asyncio.sleep(body.seconds)
    return len(body.text)

@app.post("/break")
async def fail() -> None:
    raise RuntimeError("broken on purpose")

serve(app, bind("127.0.0.1", 0))
"""


@pytest.fixture(scope="module")
def server():
    with serving(program=(sys.executable, "-c", PROGRAM)) as started:
        yield started


def test_every_answer_has_strict_headers_and_an_id(server):
    for path in ("/", "/static/base.css", "/openapi.json", "/nothing"):
        headers = httpx2.get(server.url + path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
        assert headers["x-request-id"] and "access-control-allow-origin" not in headers and "server" not in headers
    own = httpx2.get(server.url, headers={"x-request-id": "mine-1"}).headers["x-request-id"]
    replaced = httpx2.get(server.url, headers={"x-request-id": 'no "good"'}).headers["x-request-id"]
    assert own == "mine-1" and replaced.isalnum()


@pytest.mark.parametrize(
    ("content", "status", "fact"),
    [
        (b"{", 400, "JSON"),
        (b'{"text": "a"', 400, "character 12"),
        (b"", 400, "JSON object"),
        (b"[]", 400, "JSON object"),
        (b'{"text": 1}', 400, "text"),
        (b'{"text": "a", "more": 1}', 400, "not supported"),
        (b'{"text": "' + b"a" * 1000 + b'"}', 413, "1000"),
        (b'{"text": "' + b"a" * 20_000_000 + b'"}', 413, "1000"),
        (b'{"text": "\xff"}', 400, ""),
        (b'{"text": "\\ud800"}', 400, "text"),
        (b'{"text": "a", "\\ud800": 1}', 400, ""),
        (b"[" * 900, 400, ""),
    ],
)
def test_bad_bodies_are_errors_of_one_shape(server, content, status, fact):
    answer = httpx2.post(server.url + "/echo", content=content, headers={"content-type": "application/json"})
    error = answer.json()["error"]
    assert answer.status_code == status and error["type"] == "invalid_request_error" and fact in error["message"]
    assert error["param"] in (None, "text", "more", "\ufffd")  # a field of the body, if any


def test_a_body_that_is_not_sent_as_json_is_told_how_to(server):
    answer = httpx2.post(server.url + "/echo", data={"text": "a"})  # as curl sends without a header
    assert answer.status_code == 400 and "Content-Type: application/json" in answer.json()["error"]["message"]


def test_other_hosts_other_methods_and_failures(server):
    assert httpx2.get(server.url, headers={"host": "attacker.example"}).status_code == 421
    assert httpx2.get(server.url, headers={"host": "localhost:99"}).status_code == 200
    assert httpx2.get(server.url + "/echo").status_code == 405
    answer = httpx2.post(server.url + "/break")
    assert answer.status_code == 500 and answer.json()["error"]["type"] == "server_error"
    assert "purpose" not in answer.text


def test_the_log_has_a_line_for_each_request_without_its_text(server):
    httpx2.post(server.url + "/echo", json={"text": "a secret word"}, headers={"x-request-id": "logged"})
    httpx2.post(server.url + "/break", headers={"x-request-id": "failed"})
    httpx2.get(server.url)  # the lines of the requests before it are there when it is answered
    lines = {line.get("request_id"): line for line in server.log()}
    assert lines["logged"] | {"path": "/echo", "status": 200, "words": 3} == lines["logged"]
    assert "broken on purpose" in lines["failed"]["exception"] and lines["failed"]["level"] == "error"
    assert "secret" not in "".join(server.lines)


def test_sigterm_finishes_what_runs_and_refuses_what_is_new():
    with serving(program=(sys.executable, "-c", PROGRAM)) as server:
        answers = []

        def ask():
            answers.append(httpx2.post(server.url + "/echo", json={"text": "abc", "seconds": 1.0}))

        asking = threading.Thread(target=ask)
        asking.start()
        assert server.process.stdout.readline() == "started\n"
        with httpx2.Client() as kept:
            assert kept.get(server.url).status_code == 200
            server.signal()
            refused = None
            while refused is None:
                try:
                    status = kept.post(server.url + "/echo", json={"text": ""}).status_code
                    refused = status if status != 200 else None
                except httpx2.TransportError:
                    refused = "no connection"
            assert refused in (503, "no connection")
        asking.join()
        assert answers[0].status_code == 200 and answers[0].json() == 3
        assert server.wait() == 0
        assert [line["event"] for line in server.log()][-1] == "stopped"


def test_the_reference_page_lists_operations_from_the_package_alone(server):
    with browsing() as browser, page_of(browser, server.url + "/docs") as page:
        page.wait_for_selector("section")
        assert "/echo" in page.inner_text("#operations") and "seconds" in page.inner_text("#operations")


def test_answers_are_sent_at_once():
    """asyncio sets TCP_NODELAY on sockets that say they are TCP; without it a body waits for an ACK of the headers."""
    with bind("127.0.0.1", 0) as bound:
        assert bound.proto == socket.IPPROTO_TCP
