"""The page in a real browser, against a real server."""

import pytest
from servers import browsing, page_of, serving

from polyreply.reply import PolyReply
from polyreply.web.keys import add_key

MESSAGE = "Do you like dogs?"
CONTRASTS = """(selector) => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const luminance = (...colours) => {  // of colours that are painted on each other
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    const parts = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((part) => part / 255);
    const [r, g, b] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return [...document.querySelectorAll(selector)].map((one) => {
    const grounds = [];
    for (let above = one; above; above = above.parentElement) grounds.unshift(getComputedStyle(above).backgroundColor);
    const [ground, text] = [luminance(...grounds), luminance(...grounds, getComputedStyle(one).color)];
    return (Math.max(ground, text) + 0.05) / (Math.min(ground, text) + 0.05);
  });
}"""


@pytest.fixture(scope="module")
def browser():
    with browsing() as started:
        yield started


def wait(locator, state="attached"):
    """Wait for an element; the page's policy forbids to wait for an expression."""
    locator.wait_for(state=state, timeout=120_000)


def ask(page, text=MESSAGE):
    page.fill("#message", text)
    page.press("#message", "Enter")
    wait(page.locator("#status", has_text="Most likely"))


def replies(page, group="decoders"):
    return [text.strip() for text in page.locator(f"#{group} .text").all_inner_texts()]


def test_a_conversation_with_the_keyboard_alone(browser, server, folder):
    expected = [reply.text for reply in PolyReply.from_pretrained(folder, dtype="float64").reply(MESSAGE)]
    with page_of(browser, server.url) as page:
        page.wait_for_selector("#model:has-text('10 decoders')")
        ask(page)
        assert replies(page) == expected
        colours = page.eval_on_selector_all("#decoders .number", "all => all.map(one => getComputedStyle(one).color)")
        assert len(set(colours)) == 10
        assert all("log p −" in text for text in page.locator("#decoders .likely").all_inner_texts())
        assert page.locator("#points .point").count() == 10
        assert page.evaluate("document.activeElement.classList.contains('choose')")
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.querySelector('.number').textContent") == "2"
        page.keyboard.press("3")
        assert page.locator(".turn").all_inner_texts() == [MESSAGE, expected[2]]
        assert page.evaluate("document.activeElement.id") == "message"
        ask(page, "Why?")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        assert page.locator(".turn").count() == 4
        page.click("#new")
        assert page.locator(".turn").count() == 0 and page.is_visible("#welcome")


def test_other_ways_beside_it_copying_and_the_likeliest_by_default(browser, server):
    permissions = {"permissions": ["clipboard-read", "clipboard-write"]}
    with page_of(browser, server.url, width=390, height=844, dark=True, **permissions) as page:
        page.wait_for_selector("#model:has-text('10 decoders')")
        page.check("#with-beam")
        page.check("#with-nucleus")
        ask(page)
        wait(page.locator("#nucleus .bar").nth(9))
        wait(page.locator("#beam .bar").nth(9))
        assert page.locator("#points .point").count() == 30 and page.locator("#legend li").count() == 3
        assert len(replies(page, "beam")) == len(replies(page, "nucleus")) == 10
        assert replies(page, "beam") != replies(page)
        page.locator("#decoders .copy").first.click()
        wait(page.locator("#status", has_text="Copied."))
        assert page.evaluate("navigator.clipboard.readText()") == replies(page)[0]
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")  # nothing sticks out on a phone
        likeliest = page.locator("#decoders .is-likeliest .text").inner_text()
        ask(page, "And cats?")
        assert page.locator(".turn").all_inner_texts() == [MESSAGE, likeliest, "And cats?"]
        page.uncheck("#with-beam")
        assert page.locator("#beam-column").is_hidden()


def test_the_map_stays_in_view(browser, server):
    with page_of(browser, server.url, height=500) as page:
        page.wait_for_selector("#model:has-text('10 decoders')")
        page.check("#with-beam")
        ask(page)
        wait(page.locator("#beam .bar").nth(9))
        top = page.locator("#map").bounding_box()["y"]
        page.eval_on_selector("main", "one => one.scrollTo({ top: 60, behavior: 'instant' })")
        assert page.eval_on_selector("main", "one => one.scrollTop") == 60
        assert page.locator("#map").bounding_box()["y"] == top


def test_markup_stays_text_and_errors_are_shown(browser, server):
    with page_of(browser, server.url) as page:
        page.wait_for_selector("#model:has-text('10 decoders')")
        markup = "<img src=x onerror=alert(1)><b>bold</b>"
        ask(page, markup)
        assert page.locator(".turn").inner_text() == markup and page.locator(".turn *").count() == 0
        problem = '{"error": {"message": "the <i>queue</i> is full"}}'
        page.route("**/v1/chat/completions", lambda route: route.fulfill(status=200, body=f"data: {problem}\n\n"))
        page.click("#new")
        page.fill("#message", "Hello")
        page.press("#message", "Enter")
        page.wait_for_selector("#alert:not([hidden])")
        assert "the <i>queue</i> is full" in page.inner_text("#alert")
        assert page.input_value("#message") == "Hello"  # nothing that was typed is lost
        assert page.is_visible("#welcome")  # no message was answered yet


def test_what_fails_is_said_and_can_be_tried_again(browser, server):
    page = browser.new_page()
    page.goto(server.url)
    page.wait_for_selector("#model:has-text('10 decoders')")
    full = '{"error": {"message": "too many requests wait"}}'
    page.route("**/v1/replies", lambda route: route.fulfill(status=429, body=full))
    page.check("#with-beam")
    ask(page)
    page.wait_for_selector("#alert:has-text('too many requests wait')")
    assert page.locator("#beam .card").count() == 0 and page.locator("#legend li").count() == 1
    page.unroute("**/v1/replies")
    page.uncheck("#with-beam")
    page.check("#with-beam")
    wait(page.locator("#beam .bar").nth(9))
    assert page.is_hidden("#alert") and page.locator("#legend li").count() == 2
    page.route("**/v1/chat/completions", lambda route: route.abort())
    lines = "\n".join("four")
    page.fill("#message", lines)
    height = page.locator("#message").bounding_box()["height"]
    page.press("#message", "Enter")
    page.wait_for_selector("#alert:has-text('cannot be reached')")
    assert page.input_value("#message") == lines and page.locator("#message").bounding_box()["height"] == height
    page.close()


def test_a_server_that_needs_a_key_asks_until_it_knows_it(browser, folder, tmp_path):
    key = add_key(tmp_path / "keys", "ann")
    with serving("serve", folder, "--port", 0, "--name", "tiny", "--keys", tmp_path / "keys") as server:
        page = browser.new_page()
        page.goto(server.url)
        page.wait_for_selector("#key-dialog[open]")
        assert page.is_hidden("#key-problem")
        page.fill("#key", "wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("#key-problem:not([hidden])")
        page.keyboard.press("Escape")
        page.fill("#message", MESSAGE)
        page.press("#message", "Enter")  # it cannot be sent yet, and is not lost
        page.wait_for_selector("#key-dialog[open]")
        page.fill("#key", key)
        page.keyboard.press("Enter")
        page.wait_for_selector("#model:has-text('10 decoders')")
        page.press("#message", "Enter")
        wait(page.locator("#status", has_text="Most likely"))
        page.close()


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_has_contrast(browser, server, dark):
    with page_of(browser, server.url, dark=dark) as page:
        page.wait_for_selector("#model:has-text('10 decoders')")
        ask(page)
        page.eval_on_selector_all(
            "#decoders .card", "all => all.slice(0, 2).forEach((one, i) => one.classList.add(`c${10 + i}`))"
        )
        found = page.evaluate(
            CONTRASTS, ".number, .manner, .text, .likely span:last-child, .turn, .hint, .model, .top nav *"
        )
        assert len(found) > 40 and min(found) >= 4.5


def test_readers_of_a_screen_hear_who_spoke_and_the_map_shows_the_focus(browser, server):
    with page_of(browser, server.url) as page:
        page.wait_for_selector("#model:has-text('10 decoders')")
        ask(page)
        assert page.locator("#points .found text").all_text_contents() == ["1"]
        page.keyboard.press("2")
        names = [turn.get_attribute("aria-label") for turn in page.locator(".turn").all()]
        assert names[0] == f"You: {MESSAGE}" and names[1].startswith("Reply: ")
        page.fill("#message", "שלום")
        assert page.eval_on_selector("#message", "one => one.matches(':dir(rtl)')")


def test_themes_names_and_a_map_that_keeps_distances(browser, server):
    ground = "getComputedStyle(document.body).backgroundColor"
    with page_of(browser, server.url) as page:
        light = page.evaluate(ground)
        page.click("#theme")
        page.click("#theme")
        assert page.evaluate(ground) != light and page.evaluate("document.documentElement.dataset.theme") == "dark"
        page.emulate_media(color_scheme="dark")
        page.click("#theme")
        assert page.evaluate(ground) != light  # the system's theme again, which is dark now
        is_named = "one.textContent.trim() || one.getAttribute('aria-label') || one.labels?.length"
        controls = "[...document.querySelectorAll('button, input, textarea')]"
        assert page.evaluate(f"{controls}.every(one => {is_named})")
        found = page.evaluate(
            """async () => {
              const { distance, positions } = await import('/static/difference.js');
              const corners = [[0, 0], [3, 0], [0, 4], [3, 4]];
              const apart = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]);
              const matrix = corners.map((a) => corners.map((b) => apart(a, b)));
              const placed = positions(matrix);
              const off = (i, j) => Math.abs(apart(placed[i], placed[j]) - matrix[i][j]);
              const error = Math.max(...corners.flatMap((_, i) => corners.map((_, j) => off(i, j))));
              return [distance('a b', 'A b!'), distance('a b', 'c d'), distance('a b c', 'a b d'), error];
            }"""
        )
        assert found[:2] == [0, 1] and found[2] == pytest.approx(1 - 2 * 3 / 10) and found[3] < 1e-6


def test_the_reference_does_not_break_words_on_a_phone(browser, server):
    with page_of(browser, server.url + "/docs", width=390, height=844) as page:
        page.wait_for_selector("section table")
        lines = """all => all.map((one) => {
          const range = document.createRange();
          range.selectNodeContents(one);
          return range.getClientRects().length;
        })"""
        assert set(page.eval_on_selector_all("td:first-child", lines)) == {1}
