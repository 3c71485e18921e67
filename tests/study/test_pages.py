"""The pages in a real browser: a full study by three annotators, one of them on a phone."""

import json
import os
import signal
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect
from servers import browsing, page_of
from studies import Nursery, make_study

from polyreply.study.folder import load_study, load_tokens, open_answers
from polyreply.study.results import read_judgements
from polyreply.study.server import links
from polyreply.study.simulate import Script, simulate

NAMES = ("qzfirst", "qzsecond")
PHONE = {"width": 390, "height": 844, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}
GUARD_MS = 350
"""For so long the page ignores answers to a new comparison."""


@pytest.fixture(scope="module")
def browser():
    with browsing() as opened:
        yield opened


@pytest.fixture(scope="module")
def nursery():
    started = Nursery()
    yield started
    started.stop()


@contextmanager
def served(nursery, folder):
    process, url = nursery.start(folder)
    try:
        yield process, links(folder, url)
    finally:
        os.kill(process, signal.SIGTERM)


@contextmanager
def watched(browser, link, **options):
    """A page whose problems are looked at by the test, because it opens what must fail."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.goto(link)
    yield page
    context.close()


def wait(page, done, total):
    """Wait until the page says so many are answered, and takes answers again."""
    expect(page.locator("#progress")).to_have_text(f"{done} of {total}")
    page.wait_for_timeout(GUARD_MS)


def shown(page):
    """The item on the screen, as an annotator reads it."""
    return [page.locator(place).inner_text() for place in ("#ask", "#context", "#side-1", "#side-2")]


def received_by(page):
    """Keeps every response that the browser gets, with its body."""
    kept = []
    page.on("response", lambda response: kept.append(response))
    return kept


def test_a_full_study_by_three_annotators(browser, nursery, tmp_path):
    folder, study = make_study(tmp_path, names=NAMES, contexts=3, people=3)
    with served(nursery, folder) as (_, personal):
        keyboard(browser, personal["annotator-1"])
        mouse(browser, personal["annotator-2"])
        phone(browser, personal["annotator-3"])
        researcher(browser, personal["researcher"])
    by_person = {}
    for one in read_judgements(study, open_answers(folder, study)):
        by_person.setdefault(one.annotator, []).append(one.choice)
    assert by_person == {
        "annotator-1": ["1", "2", "tie", "1", "2", "tie"],
        "annotator-2": ["2"] * 6,
        "annotator-3": ["1", "tie", "2", "1", "tie", "2"],
    }


def keyboard(browser, link):
    """Keys 1, 2, 0 and U; a key that is held down, other keys and shortcuts answer nothing."""
    with page_of(browser, "about:blank") as page:
        kept = received_by(page)
        page.goto(link)
        expect(page.locator("#message-title")).to_have_text("Which reply is better?")
        page.keyboard.press("1")  # not begun yet
        page.click("#start")
        wait(page, 0, 6)
        first = shown(page)
        for key in ("3", "x", "Control+1", "Enter"):
            page.keyboard.press(key)
        page.keyboard.down("1")
        page.keyboard.down("1")  # the same key, held
        page.keyboard.up("1")
        wait(page, 1, 6)
        assert shown(page) != first
        page.keyboard.press("u")
        wait(page, 0, 6)
        assert shown(page) == first
        for done, key in enumerate("120120", 1):
            page.keyboard.press(key)
            wait(page, done, 6)
            assert page.locator("#new-question").is_visible() == (done == 3)
        expect(page.locator("#message-title")).to_have_text("Thank you!")
        check_blind(kept)


def check_blind(kept):
    """Nothing names a system, and after an answer comes one response with both sides of the next comparison."""
    bodies = [(response.url, json.dumps(response.all_headers()), response.text()) for response in kept]
    for url, headers, body in bodies:
        assert not any(name in part for part in (url, headers, body) for name in (*NAMES, "jsonl", "beam"))
    paths = [urlsplit(url).path for url, _, _ in bodies]
    asked = [path for path in paths if path in ("/api/answer", "/api/undo")]
    assert asked == paths[-8:] and set(paths[:-8]) >= {"/", "/static/annotate.js", "/api/wording", "/api/session"}
    assert [json.loads(body)["turn"] for _, _, body in bodies[-8:]] == list(range(1, 9))


def mouse(browser, link):
    """Double clicks count once; a reload resumes where it was."""
    with page_of(browser, link, dark=True) as page:
        page.click("#start")
        wait(page, 0, 6)
        page.dblclick("#choice-2")
        wait(page, 1, 6)
        here = shown(page)
        page.reload()
        wait(page, 1, 6)
        assert shown(page) == here
        for done in range(2, 7):
            page.click("#choice-2")
            wait(page, done, 6)
    with page_of(browser, link) as page:  # a used-up link
        expect(page.locator("#message-text")).to_contain_text("Nothing is left to do")
        assert not page.locator("#comparison").is_visible() and page.locator("#undo").is_visible()


def phone(browser, link):
    """Everything fits the width of a phone, and the buttons are on the screen and large enough for a thumb."""
    with page_of(browser, link, **PHONE) as page:
        page.tap("#start")
        wait(page, 0, 6)
        for done, choice in enumerate(("1", "tie", "2", "1", "tie", "2"), 1):
            assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
            box = page.locator(f"#choice-{choice}").bounding_box()
            assert box["height"] >= 44 and box["width"] >= 44 and box["y"] + box["height"] <= 844
            page.tap(f"#choice-{choice}")
            wait(page, done, 6)


def researcher(browser, link):
    """Progress and live results, with the systems by name."""
    with page_of(browser, link) as page:
        expect(page.locator("#annotators tr")).to_have_count(4)
        expect(page.locator("#annotators")).to_contain_text("6 of 6")
        expect(page.locator(".pair .names").first).to_have_text("qzfirst against qzsecond")
        assert not page.locator("#simulated").is_visible()


def test_the_page_survives_a_kill_of_the_server_and_another_window(browser, nursery, tmp_path):
    folder, study = make_study(tmp_path, contexts=3, people=1, questions=("quality",))
    process, url = nursery.start(folder)
    link = links(folder, url)["annotator-1"]
    with watched(browser, link) as page, watched(browser, link) as window:
        for one in (page, window):
            one.click("#start")
            wait(one, 0, 3)
        os.kill(process, signal.SIGKILL)
        page.keyboard.press("1")
        expect(page.locator("#notice")).to_contain_text("not saved yet")
        expect(page.locator("#progress")).to_have_text("0 of 3")
        process, _ = nursery.start(folder)
        wait(page, 1, 3)
        expect(page.locator("#notice")).to_be_hidden()
        window.keyboard.press("2")
        expect(window.locator("#notice")).to_contain_text("already answered")
        wait(window, 1, 3)
        assert shown(window) == shown(page)
        window.keyboard.press("0")
        wait(window, 2, 3)
    os.kill(process, signal.SIGTERM)
    assert [one.choice for one in read_judgements(study, open_answers(folder, study))] == ["1", "tie"]


def test_the_page_of_a_simulated_study_says_so(browser, nursery, tmp_path):
    _, study = make_study(tmp_path, names=("ours", "beam", "nucleus"), people=2)
    simulate(study, Script(), tmp_path / "filled")
    with served(nursery, tmp_path / "filled") as (_, personal):
        with page_of(browser, personal["researcher"]) as page:
            expect(page.locator("#simulated")).to_be_visible()
            expect(page.locator("#rankings tr")).to_have_count(8)
        with watched(browser, personal["annotator-1"]) as page:
            expect(page.locator("#message-text")).to_have_text(study.wording.closed)


def test_wrong_links_and_hostile_texts(browser, nursery, tmp_path):
    folder, study = make_study(tmp_path, contexts=2, people=1, wording="zh")
    hostile = "<img src=x onerror=alert(1)><script>document.title='broken'</script>&amp; \u202e"
    tree = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    for comparison in tree["comparisons"]:
        comparison["context"], comparison["texts"] = [hostile], [[hostile], [""]]
    for item in tree["annotators"][0]["items"]:
        item["orders"] = [[0], [0]]
    (folder / "study.json").write_text(json.dumps(tree), encoding="utf-8")
    assert load_study(folder).id == study.id
    with served(nursery, folder) as (_, personal):
        with page_of(browser, personal["annotator-1"]) as page:
            page.click("#start")
            expect(page.locator("#context p")).to_have_text(hostile)
            assert page.locator("main img, main script").count() == 0 and page.title() == study.wording.title
            assert page.locator("html").get_attribute("lang") == "zh-CN"
            expect(page.locator(".side .empty")).to_have_text(study.wording.empty)
        base = personal["annotator-1"].partition("#")[0]
        for link in (base, f"{base}#wrong", f"{base}#{load_tokens(folder).researcher}"):
            with watched(browser, link) as page:
                expect(page.locator("#message-text")).to_have_text(study.wording.wrong_link)
        with watched(browser, f"{base}researcher#wrong") as page:
            expect(page.locator("#notice")).to_contain_text("not the researcher's link")
            assert not page.locator("#live").is_visible()
