"""The server of a study over HTTP: blind, exactly once, private, and durable when it is killed."""

import http.client
import json
import os
import random
import signal
import threading
import time
from itertools import pairwise

import pytest
from fastapi.testclient import TestClient
from servers import ServerProcess, serving
from studies import Nursery, clients, make_study

from polyreply.study.folder import load_study, load_tokens, open_answers
from polyreply.study.results import read_judgements, study_results
from polyreply.study.server import create_study_app, links
from polyreply.study.simulate import Script, simulate

SECRET_NAMES = ("qzfirst", "qzsecond", "qzthird")
PLAIN_HEADERS = {"content-length", "content-type", "date", "x-request-id"}


class Browser:
    """An annotator without a browser who keeps everything that arrives."""

    def __init__(self, folder, name="annotator-1", token=None):
        self.http = TestClient(create_study_app(folder), base_url="http://127.0.0.1")
        self.http.headers["Authorization"] = f"Bearer {token or load_tokens(folder).annotators[name]}"
        self.received = []

    def get(self, path):
        return self._keep(self.http.get(path))

    def post(self, path, **body):
        return self._keep(self.http.post(path, json=body))

    def _keep(self, answer):
        self.received.append((answer.status_code, dict(answer.headers), answer.text))
        return answer

    def session(self):
        return self.get("/api/session").json()

    def finish(self, choose=lambda item: "1"):
        session = self.session()
        while session["item"]:
            item = session["item"]["id"]
            answer = self.post("/api/answer", turn=session["turn"], item=item, choice=choose(session["item"]))
            session = answer.json()
        return session


def everything(folder):
    """All that an annotator's page receives in a whole study, as text."""
    browser = Browser(folder)
    page = ["/", "/static/annotate.css", "/static/annotate.js", "/web/base.css", "/web/icon.svg", "/api/wording"]
    for path in page:
        assert browser.get(path).status_code == 200
    browser.finish()
    session = browser.session()
    browser.post("/api/undo", turn=session["turn"], item=session["last"])
    return browser.received


def test_nothing_that_the_page_receives_tells_systems_apart(tmp_path):
    """No names, files, kinds or places; the same keys in the same order for every item, one answer for each."""
    folder, study = make_study(tmp_path, names=SECRET_NAMES, contexts=10, repeats=2, gold=2)
    received = everything(folder)
    text = "\n".join(json.dumps([headers, body]) for _, headers, body in received)
    digests = [system.digest for system in study.systems]
    for secret in (*SECRET_NAMES, *digests, study.id, "jsonl", "swapped", "is_repeat", "is_gold", 'comparison":'):
        assert secret not in text
    sessions = [json.loads(body) for _, _, body in received if '"side_1"' in body and body.startswith("{")]
    assert {tuple(one) for one in sessions} == {("turn", "done", "total", "item", "last")}
    assert {tuple(one["item"]) for one in sessions} == {("id", "question", "context", "side_1", "side_2")}
    assert len(sessions) == len(study.annotators[0].items) + 1  # each item arrives once, and again after the undo
    names = {name for _, headers, _ in received[6:] for name in headers} - PLAIN_HEADERS
    assert len({json.dumps([headers[name] for name in sorted(names)]) for _, headers, _ in received[6:]}) == 1


def test_traffic_does_not_depend_on_the_names_of_systems_or_of_their_files(tmp_path):
    """Two studies that differ in nothing but names send the same, apart from random ids."""
    plain = []
    for number, names in enumerate((("ours", "beam"), ("a-much-longer-name", "z"))):
        folder, study = make_study(tmp_path / str(number), contexts=8, repeats=1, gold=1)
        tree = (folder / "study.json").read_text(encoding="utf-8")
        for old, new in zip(("ours", "beam"), names, strict=True):
            tree = tree.replace(f'"{old}"', f'"{new}"')
        (folder / "study.json").write_text(tree, encoding="utf-8")
        bodies = [(status, len(body), body) for status, _, body in everything(folder)]
        ids = [item.id for person in study.annotators for item in person.items]
        for place, one in enumerate(ids):
            bodies = [(status, size, body.replace(one, f"id {place}")) for status, size, body in bodies]
        plain.append(bodies)
    assert plain[0] == plain[1]


def test_an_annotator_sees_either_system_first_equally_often_in_random_order(tmp_path):
    """What side and what place an item has tells nothing about its systems."""
    folder, study = make_study(tmp_path, contexts=40, people=1)
    browser = Browser(folder)
    seen = []

    def choose(item):
        seen.append((item["question"], item["side_1"][0].split()[-1][0]))
        return "tie"

    browser.finish(choose)
    for question in study.questions:
        sides = [side for asked, side in seen if asked == question]
        assert sides.count("o") == sides.count("b") == 20
        changes = sum(one != two for one, two in pairwise(sides))
        assert 8 <= changes <= 31


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A study for tests that answer little."""
    return make_study(tmp_path_factory.mktemp("shared"), people=2)[0]


@pytest.mark.parametrize("token", ["", "wrong", "x" * 5000, "é"])
def test_a_wrong_link_is_refused_with_the_wordings_text(shared, token):
    http = TestClient(create_study_app(shared), base_url="http://127.0.0.1")
    study, headers = load_study(shared), {"Authorization": f"Bearer {token}".encode()}
    body = {"turn": 0, "item": study.annotators[0].items[0].id, "choice": "1"}
    for answer in (
        http.get("/api/session", headers=headers),
        http.post("/api/answer", json=body, headers=headers),
        http.get("/api/progress", headers=headers),
    ):
        assert answer.status_code == 401 and answer.json()["error"]["code"] == "wrong_link"
    assert http.get("/api/session").json()["error"]["message"] == study.wording.wrong_link
    assert open_answers(shared, study).count() == 0


def test_nobody_sees_the_others_and_only_the_researcher_sees_results(shared):
    tokens = load_tokens(shared)
    annotator, researcher = Browser(shared), Browser(shared, token=tokens.researcher)
    assert annotator.get("/api/progress").status_code == 401 and researcher.get("/api/session").status_code == 401
    live = researcher.get("/api/progress").json()
    assert [one["annotator"] for one in live["annotators"]] == ["annotator-1", "annotator-2"]
    assert live["simulated"] is None


def test_a_judgement_for_somebody_elses_item_is_refused(tmp_path):
    folder, study = make_study(tmp_path, people=2)
    browser = Browser(folder)
    theirs, own = (study.annotators[n].items[0].id for n in (1, 0))
    for item in (theirs, "unknown"):
        refused = browser.post("/api/answer", turn=0, item=item, choice="1")
        assert refused.status_code == 403 and refused.json()["error"]["code"] == "other_item"
    assert browser.session()["done"] == 0
    assert browser.post("/api/answer", turn=0, item=own, choice="1").json()["done"] == 1


@pytest.mark.parametrize(
    "change",
    [{"choice": "3"}, {"choice": None}, {"turn": -1}, {"turn": "x"}, {"item": 7}, {"seconds": -1}, {"extra": 1}],
)
def test_a_malformed_answer_is_refused(shared, change):
    browser = Browser(shared)
    session = browser.session()
    body = {"turn": session["turn"], "item": session["item"]["id"], "choice": "1", **change}
    assert browser.post("/api/answer", **body).status_code == 400
    assert browser.session() == session


def test_double_clicks_other_windows_undo_and_used_up_links(tmp_path):
    folder, study = make_study(tmp_path, contexts=2, people=1, questions=("quality",))
    browser, window = Browser(folder), Browser(folder)
    start = window.session()
    first = {"turn": 0, "item": start["item"]["id"], "choice": "1"}
    after = browser.post("/api/answer", **first).json()
    assert browser.post("/api/answer", **first).json() == after  # a double click, or a request that was sent again
    stale = window.post("/api/answer", **{**first, "choice": "2"})
    assert stale.status_code == 409 and stale.json()["error"]["code"] == "stale" and window.session() == after
    undone = browser.post("/api/undo", turn=1, item=after["last"]).json()
    assert undone["done"] == 0 and undone["item"] == start["item"] and undone["turn"] == 2 and undone["last"] is None
    assert browser.post("/api/undo", turn=2, item=after["last"]).status_code == 409
    assert browser.post("/api/answer", **first).json() == undone  # the old request, late: it counts no second time
    end = browser.finish()
    assert end["item"] is None and end["done"] == end["total"] == 2
    late = browser.post("/api/answer", turn=end["turn"], item=start["item"]["id"], choice="2")
    assert late.status_code == 409 and browser.session() == end
    assert [one.choice for one in read_judgements(study, open_answers(folder, study))] == ["1", "1"]


def test_people_cannot_answer_a_simulated_study_and_the_researcher_sees_what_it_is(tmp_path):
    _, study = make_study(tmp_path)
    simulate(study, Script(), tmp_path / "filled")
    refused = Browser(tmp_path / "filled").get("/api/session")
    assert refused.status_code == 403 and refused.json()["error"]["code"] == "closed"
    live = Browser(tmp_path / "filled", token=load_tokens(tmp_path / "filled").researcher).get("/api/progress").json()
    assert live["simulated"]["ties"] == 0.2 and live["pairs"][0]["judgements"] == 36


def test_a_failing_disk_is_reported_and_nothing_counts(tmp_path):
    folder, _ = make_study(tmp_path, people=1)
    browser = Browser(folder)
    session = browser.session()
    database = browser.http.app.state.study.answers._database
    database.execute("PRAGMA query_only = 1")  # as on a disk that takes no writes
    body = {"turn": 0, "item": session["item"]["id"], "choice": "1"}
    failed = browser.post("/api/answer", **body)
    assert failed.status_code == 503 and failed.headers["retry-after"]
    database.execute("PRAGMA query_only = 0")
    assert browser.session() == session and browser.post("/api/answer", **body).json()["done"] == 1


def test_the_command_prints_links_that_work_logs_no_secret_and_stops(tmp_path):
    folder, _ = make_study(tmp_path, people=2)
    tokens = load_tokens(folder)
    with serving("study", "serve", folder, "--port", 0) as server:
        personal = clients(folder, server.url)
        assert personal["annotator-2"].session()["done"] == 0
        personal["annotator-1"].answer(personal["annotator-1"].session(), "tie")
        assert server.stop() == 0
        log = "".join(server.lines)
    assert "/api/answer" in log
    assert not any(text in log for text in (tokens.researcher, *tokens.annotators.values(), "message ", "tie"))
    assert links(folder, "https://x.org/") == {
        "researcher": f"https://x.org/researcher#{tokens.researcher}",
        **{name: f"https://x.org/#{token}" for name, token in tokens.annotators.items()},
    }


# --- durability


class Worker(threading.Thread):
    """An annotator who sends the same request until it is answered, and notes what the server has confirmed."""

    def __init__(self, client, rng):
        super().__init__(daemon=True)
        self.client, self.rng, self.confirmed, self.failure = client, rng, [], None

    def run(self):
        try:
            session = self.send("/api/session")
            while session["item"]:
                session = self.step(session)
        except BaseException as error:
            self.failure = error

    def step(self, session):
        """Answer; now and then undo what was answered, or send the request twice."""
        if session["last"] and self.rng.random() < 0.03:
            path, item, action, more = "/api/undo", session["last"], "undo", {}
        else:
            action = self.rng.choice(["1", "2", "tie"])
            path, item, more = "/api/answer", session["item"]["id"], {"choice": action}
        body = {"turn": session["turn"], "item": item, **more}
        after = self.send(path, body)
        self.confirmed.append((item, action))
        if self.rng.random() < 0.1:
            assert self.send(path, body) == after
        assert after["turn"] == len(self.confirmed)
        return after

    def send(self, path, body=None):
        while True:
            try:
                status, answer = self.client.call(path, body)
            except (OSError, http.client.HTTPException, json.JSONDecodeError):
                time.sleep(0.03)  # the server was killed: the page tries again
                continue
            assert status == 200, answer
            return answer


def kill_under_load(folder, start, *, kills, seed):
    """Let all annotators work at once while the server is killed again and again; what each of them had confirmed."""
    study, rng = load_study(folder), random.Random(seed)
    total = sum(len(person.items) for person in study.annotators)
    process, url = start()
    workers = {name: Worker(client, random.Random(name)) for name, client in clients(folder, url).items()}
    for worker in workers.values():
        worker.start()
    for kill in range(kills):
        goal = total * (kill + 1) // (kills + 1)
        while sum(len(worker.confirmed) for worker in workers.values()) < goal:
            assert not any(worker.failure for worker in workers.values()), [w.failure for w in workers.values()]
            time.sleep(0.004)
        time.sleep(rng.random() * 0.01)
        os.kill(process, signal.SIGKILL)
        check_nothing_lost(folder, study, {name: list(worker.confirmed) for name, worker in workers.items()})
        process, _ = start()
    for worker in workers.values():
        worker.join()
        assert worker.failure is None, worker.failure
    os.kill(process, signal.SIGTERM)
    return {name: worker.confirmed for name, worker in workers.items()}


def check_nothing_lost(folder, study, confirmed):
    """Everything that was confirmed before the kill is on disk, in order; at most one request each was on its way."""
    answers = open_answers(folder, study)
    for name, events in confirmed.items():
        kept = [(event.item, event.action) for event in answers.events(name)]
        assert kept[: len(events)] == events
    answers.close()


def check_all_is_there(folder, confirmed, at_least):
    study = load_study(folder)
    answers = open_answers(folder, study)
    for person in study.annotators:
        assert [(event.item, event.action) for event in answers.events(person.name)] == confirmed[person.name]
    judgements = read_judgements(study, answers)
    ids = [one.item.id for one in judgements]
    assert len(ids) == len(set(ids)) == sum(len(person.items) for person in study.annotators) >= at_least
    assert study_results(study, judgements, samples=10).judgements == len(ids)


def test_no_answer_is_lost_or_doubled_when_the_server_is_killed_under_load(tmp_path):
    """Over 1000 judgements of six annotators at once, who never see a conflict, over 20 kills."""
    folder, _ = make_study(tmp_path, contexts=84, k=2, people=6)
    nursery = Nursery()
    confirmed = kill_under_load(folder, lambda: nursery.start(folder), kills=21, seed=1)
    nursery.stop()
    check_all_is_there(folder, confirmed, at_least=1000)


@pytest.mark.slow
def test_the_same_with_the_command_itself(tmp_path):
    folder, _ = make_study(tmp_path, contexts=84, k=2, people=6)
    port, servers = [0], []

    def start():
        server = ServerProcess("study", "serve", folder, "--port", port[0])
        servers.append(server)
        port[0] = int(server.url.rpartition(":")[2])
        return server.process.pid, server.url

    confirmed = kill_under_load(folder, start, kills=40, seed=2)
    for server in servers:
        server.wait()
    check_all_is_there(folder, confirmed, at_least=1000)
