"""Whatever a client sends, the server answers below 500 in its one error shape, and lives."""

import json
import random
from copy import deepcopy

import httpx2
import hypothesis
import pytest
import schemathesis
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/replies")
VALID = (
    {"model": "tiny", "messages": [{"role": "user", "content": "How are you?"}], "n": 2, "max_tokens": 4},
    {"model": "tiny", "prompt": "How are you?", "n": 3, "stop": ["a"], "max_tokens": 4},
    {"contexts": ["How are you?", ["a", "b"]], "decode": "decoders", "k": 2, "max_tokens": 4},
)
STRANGE_TEXTS = (
    *("", " ", "\x00", "\x07\x1b[2J", "\u202eabc\u202c", "שלום עולם", "مرحبا", "\U0001f469\u200d\U0001f467" * 20),
    *("e\u0301" * 50, "\ufeff", "</s>", "<pad><turn>", "word " * 10_000, "a" * 60_000, "\ud800", "\uffff", "\u2028"),
    *("'\"\\", "<script>alert(1)</script>"),
)
FIELDS = ("temperature", "top_p", "seed", "stop", "n", "logprobs", "decoders", "m", "k", "x\x00", "stream")
STRANGE_VALUES = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**64), 10**400, 0.5, 1e308, -0.0, float("nan"), float("inf")),
    *([], [[]], {}, {"a": {}}, [None], "1", ["a"] * 2000, [{"role": "user"}], {"type": "text"}),
    *STRANGE_TEXTS,
)


def deep(draw):
    depth = draw.choice((10, 1000, 100_000))
    opening, closing = draw.choice((("[", "]"), ('{"a":', "}"), ('{"messages":[', "]}")))
    return (opening * depth + "1" + closing * depth).encode()


def changed(draw):
    """A valid body with some fields exchanged, added or removed, at any depth."""
    body = deepcopy(draw.choice(VALID))
    for _ in range(draw.randint(1, 3)):
        place = body
        while draw.random() < 0.4:
            values = place.values() if isinstance(place, dict) else place
            inner = [value for value in values if value and isinstance(value, dict | list)]
            if not inner:
                break
            place = draw.choice(inner)
        if isinstance(place, dict):
            place[draw.choice([*place, *FIELDS])] = deepcopy(draw.choice(STRANGE_VALUES))
        elif place:
            place[draw.randrange(len(place))] = deepcopy(draw.choice(STRANGE_VALUES))
    return json.dumps(body, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")


def broken(draw):
    """A valid body with bytes cut off, exchanged or inserted."""
    body = bytearray(json.dumps(draw.choice(VALID)).encode())
    for _ in range(draw.randint(1, 8)):
        place = draw.randrange(len(body))
        kind = draw.randrange(3)
        if kind == 0:
            body[place] = draw.randrange(256)
        elif kind == 1:
            body[place:place] = draw.randbytes(draw.randint(1, 4))
        else:
            del body[place : place + draw.choice((1, 2, 1000))]
        if not body:
            break
    return bytes(body)


def noise(draw):
    return draw.randbytes(draw.choice((0, 1, 100, 5000)))


def huge(draw):
    return b'{"prompt": "' + b"a" * draw.choice((1 << 20, 3 << 20)) + b'"}'


def request(draw):
    make = draw.choices((changed, broken, noise, deep, huge), (60, 25, 8, 5, 2))[0]
    kind = draw.choice(["application/json"] * 12 + ["text/plain", "application/x-www-form-urlencoded", "\x80", ""])
    method = draw.choice(["POST"] * 20 + ["PUT", "DELETE", "GET", "OPTIONS"])
    path = draw.choice([*PATHS * 10, "/v1/models/%00", "/static/../app.py", "/static/%2e%2e/app.py", "/" + "a" * 5000])
    return method, path, make(draw), {"content-type": kind, "authorization": draw.choice(("", "Bearer \xff", "x"))}


def fuzz(server, seeds):
    counts = {}
    with httpx2.Client(base_url=server.url, timeout=120) as client:
        for seed in seeds:
            method, path, content, headers = request(random.Random(seed))
            raw = {name: value.encode("latin-1") for name, value in headers.items()}
            answer = client.request(method, path, content=content, headers=raw)
            assert answer.status_code < 500, (seed, answer.status_code, answer.text)
            if answer.status_code >= 400:
                error = answer.json()["error"]
                assert error["message"] and error["type"], seed
            counts[answer.status_code] = counts.get(answer.status_code, 0) + 1
        assert client.get("/health").json() == {"status": "ok"}
    assert server.process.poll() is None
    assert counts[200] > 0 and counts[400] > counts[200] / 2 and 413 in counts  # it was not all refused at the door
    return counts


def test_a_body_depends_on_its_seed_alone():
    made = {seed: changed(random.Random(seed)) for seed in range(500)}
    assert all(changed(random.Random(seed)) == made[seed] for seed in made)


def test_malformed_requests(server):
    fuzz(server, range(500))


@pytest.mark.slow
def test_ten_thousand_malformed_requests(server):
    fuzz(server, range(500, 10_500))


def test_answers_are_those_of_the_schema(server):
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    checks = [status_code_conformance, content_type_conformance, response_schema_conformance]
    statuses = set()
    for found in schema.get_all_operations():

        @hypothesis.settings(max_examples=10, derandomize=True, suppress_health_check=list(hypothesis.HealthCheck))
        @hypothesis.given(case=found.ok().as_strategy())
        def check(case):
            answer = case.call(timeout=120)
            assert answer.status_code < 500
            case.validate_response(answer, checks=checks)
            statuses.add((case.path, answer.status_code))

        check()
    assert {path for path, _ in statuses} >= {*PATHS, "/v1/models", "/health", "/ready", "/metrics"}
    assert {status for _, status in statuses} >= {200, 400}
