"""Response files of invented systems, small studies of them, and a client that answers like the page does."""

import json
import random
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from polyreply.study.create import StudySettings, name_systems, new_study
from polyreply.study.folder import load_study, load_tokens, save_study
from polyreply.study.wording import load_wording

_WORDS = "quiet rain over warm hills while nobody spoke about tea and the old cat slept near a window".split()


def write_responses(folder, names=("ours", "beam"), contexts=12, k=3):
    """A response file for each system; every text names its system in a way that only the test knows."""
    paths = {}
    for name in names:
        rng = random.Random(name)
        rows = []
        for context in range(contexts):
            texts = [f"{' '.join(rng.sample(_WORDS, 6))} {name[0]}{context}{n}." for n in range(k)]
            rows.append({"context": f"message {context}", "responses": texts})
        paths[name] = folder / f"{name}.jsonl"
        paths[name].write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return paths


def make_study(folder, *, names=("ours", "beam"), contexts=12, k=3, people=3, wording="en", gold_file=None, **settings):
    """A study folder in `folder`, and the study in it."""
    folder.mkdir(parents=True, exist_ok=True)
    files = write_responses(folder, names, contexts, k)
    annotators = tuple(f"annotator-{n}" for n in range(1, people + 1))
    chosen = StudySettings(annotators=annotators, **settings)
    named = name_systems([f"{name}={path}" for name, path in files.items()])
    save_study(new_study(named, load_wording(wording), chosen, gold_file), folder / "study")
    return folder / "study", load_study(folder / "study")


class Client:
    """A program in place of the page."""

    def __init__(self, url, token):
        self.url, self.token = url, token

    def call(self, path, body=None):
        """Status and JSON of an answer."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def session(self):
        status, session = self.call("/api/session")
        assert status == 200, session
        return session

    def answer(self, session, choice, item=None):
        body = {"turn": session["turn"], "item": item or session["item"]["id"], "choice": choice, "seconds": 1.5}
        return self.call("/api/answer", body)

    def undo(self, session):
        return self.call("/api/undo", {"turn": session["turn"], "item": session["last"]})


def clients(folder, url):
    """A client for each annotator, by name."""
    return {name: Client(url, token) for name, token in load_tokens(folder).annotators.items()}


class Nursery:
    """Starts servers that are forks of one process, on one port, so that a killed one is replaced at once."""

    def __init__(self):
        command = [sys.executable, str(Path(__file__).with_name("study_nursery.py"))]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        self.process = subprocess.Popen(command, **pipes)
        self.port = 0

    def start(self, folder):
        """A new server; its process id and its URL."""
        self.process.stdin.write(f"{folder} {self.port}\n")
        self.process.stdin.flush()
        found = {}
        while len(found) < 2:
            name, _, value = self.process.stdout.readline().strip().rpartition(" ")
            assert name, "the server did not start"
            found[name] = value
        self.port = int(found["listening on"].rpartition(":")[2])
        return int(found["forked"]), found["listening on"]

    def stop(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(60)
