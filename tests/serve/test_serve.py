"""The command: addresses, keys, limits, logs, shutdown."""

import signal
import socket

import httpx2
import pytest
from pair import SENTENCES
from servers import browsing, serving

from polyreply.decoding.generate import WAYS
from polyreply.reply import PolyReply
from polyreply.web.keys import Keys, add_key

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": SENTENCES[1]}], "n": 3}


def test_replies_of_every_way_are_those_of_the_library(server, folder):
    model = PolyReply.from_pretrained(folder, dtype="float64")
    contexts = [SENTENCES[0], [SENTENCES[1], SENTENCES[2]]]
    ways = httpx2.get(f"{server.url}/v1/models/tiny").json()["decode"]
    assert set(ways) == set(WAYS)
    for decode in ways:
        answer = httpx2.post(
            f"{server.url}/v1/replies", json={"contexts": contexts, "decode": decode, "k": 2, "seed": 3}, timeout=120
        ).json()
        for context, result in zip(contexts, answer["results"], strict=True):
            turns = (context,) if isinstance(context, str) else tuple(context)
            expected = model.reply(turns, decode=decode, k=2, seed=3)
            assert [reply["text"] for reply in result["replies"]] == [reply.text for reply in expected]
            assert [reply["logprob"] for reply in result["replies"]] == pytest.approx([r.logprob for r in expected])
            decoders = [reply.decoder if decode in ("decoders", "mbr") else None for reply in expected]
            assert [reply["decoder"] for reply in result["replies"]] == decoders


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"k": 11}, "k"),
        ({"k": 2, "decoders": [0]}, "k"),
        ({"decode": "beam", "decoders": [0]}, "decoders"),
        ({"decode": "beam", "temperature": 1.0}, "temperature"),
        ({"decode": "beam", "top_p": 0.5}, None),
        ({"decode": "beam", "guidance_scale": 2.0}, None),
        ({"guidance_scale": 0.5}, "guidance_scale"),
        ({"decode": "nucleus", "top_k": 5}, None),
        ({"top_k": 5}, "top_k"),
        ({"decode": "decoders", "samples": 3}, "samples"),
        ({"decode": "unheard"}, "decode"),
        ({"decode": "nucleus", "k": 4000}, "k"),
        ({"contexts": []}, "contexts"),
        ({"contexts": ["a"] * 65}, "contexts"),
        ({"contexts": ["a", " "]}, "contexts.1"),
        ({"model": "other"}, "model"),
    ],
)
def test_replies_that_cannot_be_given(server, change, param):
    answer = httpx2.post(f"{server.url}/v1/replies", json={"contexts": ["Hello"], **change})
    assert answer.status_code in (400, 404) and answer.json()["error"]["param"] == param


def test_top_k_limits_what_is_sampled_from(server, folder):
    model = PolyReply.from_pretrained(folder, dtype="float64")
    sampled = {"decode": "decoders", "seed": 3, "temperature": 1.5, "top_k": 2}
    for options, given in ((sampled, {"do_sample": True}), ({"decode": "top-k", "seed": 3, "top_k": 2}, {})):
        body = {"contexts": [SENTENCES[0]], "k": 4, **options}
        replies = httpx2.post(f"{server.url}/v1/replies", json=body).json()["results"][0]["replies"]
        expected = model.reply(SENTENCES[0], k=4, **options, **given)
        assert [reply["text"] for reply in replies] == [reply.text for reply in expected]


@pytest.mark.parametrize("decode", ["decoders", "mbr"])
def test_guided_replies(server, folder, decode):
    model = PolyReply.from_pretrained(folder, dtype="float64")
    body = {"contexts": [SENTENCES[0]], "k": 3, "decode": decode, "guidance_scale": 4.0}
    replies = httpx2.post(f"{server.url}/v1/replies", json=body, timeout=120).json()["results"][0]["replies"]
    guided, plain = (model.reply(SENTENCES[0], k=3, decode=decode, guidance_scale=scale) for scale in (4.0, None))
    assert [reply["text"] for reply in replies] == [reply.text for reply in guided]
    assert [reply["logprob"] for reply in replies] == pytest.approx([reply.logprob for reply in guided])
    assert guided != plain


def test_choice_of_decoders_and_of_the_most_different(server, folder):
    model = PolyReply.from_pretrained(folder, dtype="float64")
    body = {"contexts": [SENTENCES[0]], "decoders": [8, 1]}
    replies = httpx2.post(f"{server.url}/v1/replies", json=body).json()["results"][0]["replies"]
    assert [reply["decoder"] for reply in replies] == [1, 8]
    body = {"contexts": [SENTENCES[0]], "m": 2}
    replies = httpx2.post(f"{server.url}/v1/replies", json=body).json()["results"][0]["replies"]
    assert [reply["decoder"] for reply in replies] == [reply.decoder for reply in model.reply(SENTENCES[0], m=2)]


@pytest.fixture(scope="module")
def guarded(folder, tmp_path_factory):
    """A server with a key, which logs texts and answers to another site and another name; and the key."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    key = add_key(keys, "ann")
    options = ("--keys", keys, "--log-texts", "--cors-origin", "https://a.example", "--allowed-host", "chat.example")
    with serving("serve", folder, "--port", 0, "--name", "tiny", *options) as server:
        yield server, key


def test_keys_logs_with_texts_cors_and_hosts(guarded):
    server, key = guarded
    post = f"{server.url}/v1/chat/completions"
    for headers in ({}, {"authorization": f"Bearer {key[:-1]}x"}, {"authorization": f"Basic {key}"}):
        refused = httpx2.post(post, json=CHAT, headers=headers)
        assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key"
    own = {"authorization": f"Bearer {key}", "host": "chat.example", "origin": "https://a.example"}
    answer = httpx2.post(post, json=CHAT, headers=own)
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == "https://a.example"
    assert httpx2.get(f"{server.url}/health").status_code == httpx2.get(server.url).status_code == 200
    other = httpx2.post(post, json=CHAT, headers={**own, "origin": "https://b.example"})
    assert "access-control-allow-origin" not in other.headers
    line = next(line for line in server.log() if line.get("key") == "ann")
    assert line["turns"] == [SENTENCES[1]] and len(line["replies"]) == 3
    assert key not in "".join(server.lines)


def test_the_page_asks_for_a_key(guarded):
    server, key = guarded
    with browsing() as browser, browser.new_context() as context:
        page = context.new_page()
        page.goto(server.url)
        page.wait_for_selector("#key-dialog[open]")
        page.fill("#key", key)
        page.keyboard.press("Enter")
        page.wait_for_selector("#model:has-text('10 decoders')")


def test_a_new_key_is_printed_once_and_accepted(tmp_path, polyreply_here):
    made = polyreply_here("serve", "--keys", tmp_path / "keys", "--new-key", "bob")
    assert Keys.read(tmp_path / "keys").owner(made.stdout.strip()) == "bob"


def test_logs_have_no_texts_by_default(server):
    secret = "my heart beats for xylophones"
    answer = httpx2.post(
        f"{server.url}/v1/chat/completions",
        json={**CHAT, "messages": [{"role": "user", "content": secret}]},
        headers={"x-request-id": "quiet"},
    )
    httpx2.post(f"{server.url}/v1/chat/completions", json={"messages": secret, "unheard": secret})
    httpx2.get(f"{server.url}/health")
    line = next(line for line in server.log() if line.get("request_id") == "quiet")
    assert line["status"] == 200 and line["completion_tokens"] > 0 and line["n"] == 3
    said = "".join(server.lines)
    assert "xylophones" not in said
    assert not any(choice["message"]["content"] in said for choice in answer.json()["choices"])


def test_a_request_that_takes_too_long_ends_and_a_second_signal_does_not_wait(endless):
    options = ("--seconds", 2, "--max-tokens", 1_000_000)
    long = {**CHAT, "max_tokens": 300_000}
    with serving("serve", endless, "--port", 0, "--name", "tiny", *options) as server:
        answer = httpx2.post(f"{server.url}/v1/chat/completions", json=long, timeout=120)
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "time_limit"
        assert int(answer.headers["retry-after"]) >= 1
        with httpx2.stream("POST", f"{server.url}/v1/chat/completions", json={**long, "stream": True}) as stream:
            last = [line for line in stream.iter_lines() if line][-1]
        assert "time_limit" in last
        assert httpx2.post(f"{server.url}/v1/chat/completions", json={**CHAT, "max_tokens": 2}).status_code == 200
        with httpx2.stream("POST", f"{server.url}/v1/chat/completions", json={**long, "stream": True}) as stream:
            next(stream.iter_lines())
            server.signal(signal.SIGTERM)
            server.signal(signal.SIGINT)
            server.wait()


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (("--keys", "missing"), "missing"),
        (("--new-key", "ann"), "--keys"),
        (("--host", "999.1.2.3"), "999.1.2.3"),
        (("no-such-folder",), "no-such-folder"),
    ],
)
def test_mistakes_are_one_line(polyreply_here, tmp_path, arguments, fact):
    done = polyreply_here("serve", *arguments, "--port", 0, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("error:") == 1 and fact in done.stderr


def test_a_port_in_use_is_one_line(polyreply_here):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = polyreply_here("serve", "t5-mini-10", "--port", taken.getsockname()[1])
    assert done.returncode == 2 and "cannot listen" in done.stderr
