"""Minutes of overload: every request is answered, no answer is wrong, memory stays flat, the process lives."""

import os
import random
import threading
import time
from collections import Counter
from pathlib import Path

import httpx2
import pytest
from servers import serving

from polyreply.models.shipped import T5_MINI_10
from polyreply.reply import PolyReply

SECONDS = float(os.environ.get("POLYREPLY_SOAK_SECONDS", "240"))
CLIENTS = 96
MESSAGES = [
    f"{opening} {rest}"
    for opening in ("Do you know that", "I heard that", "Is it true that", "Guess what,")
    for rest in ("the shop is closed.", "we won!", "my dog can swim?", "it will rain on Sunday.", "she moved to Rome.")
]


def resident_mb(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


@pytest.mark.slow
def test_overload():
    oracle = PolyReply.from_pretrained(T5_MINI_10, dtype="float64")
    expected = {text: [reply.text for reply in oracle.reply(text)] for text in MESSAGES}
    seen, wrong, lost = Counter(), [], []
    options = ("--port", 0, "--dtype", "float64", "--max-queue", 32, "--seconds", 120)
    with serving("serve", T5_MINI_10, *options) as server:
        end = time.monotonic() + SECONDS

        def ask(client, draw):
            text = draw.choice(MESSAGES)
            body = {"model": T5_MINI_10, "messages": [{"role": "user", "content": text}], "n": 10}
            if draw.random() < 0.1:  # a client that goes away
                with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
                    next(answer.iter_lines())
                seen["left"] += 1
                return
            answer = client.post("/v1/chat/completions", json=body)
            seen[answer.status_code] += 1
            if answer.status_code == 200:
                replies = [choice["message"]["content"] for choice in answer.json()["choices"]]
                wrong.extend([text] if replies != expected[text] else [])
            else:
                assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
                time.sleep(draw.random())

        def client(seed):
            draw = random.Random(seed)
            try:
                with httpx2.Client(base_url=server.url, timeout=300) as own:
                    while time.monotonic() < end:
                        ask(own, draw)
            except Exception as error:
                lost.append(repr(error))

        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(CLIENTS)]
        for thread in threads:
            thread.start()
        time.sleep(SECONDS / 4)
        early = resident_mb(server.process.pid)
        for thread in threads:
            thread.join()
        late = resident_mb(server.process.pid)
        print(f"{dict(seen)}, {early:.0f} MB after a quarter of the time, {late:.0f} MB at the end")
        assert not lost and not wrong and server.process.poll() is None
        assert seen[200] > CLIENTS and seen[429] > 0 and seen["left"] > 0
        assert late < early * 1.1 + 20
        assert httpx2.get(f"{server.url}/health").json() == {"status": "ok"} and server.stop() == 0
