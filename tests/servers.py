"""Real server processes and a real browser for the tests of web programs."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
REQUIRE_BROWSER = "POLYREPLY_REQUIRE_BROWSER"
HOW = "needs Chromium: apt-get install chromium, or set CHROMIUM to the path of a browser"


class ServerProcess:
    """A command that serves, its address, and the lines that it logs."""

    def __init__(self, *arguments, env=None, program=(sys.executable, "-m", "polyreply")):
        command = [*program, *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env={**os.environ, **(env or {})}, **pipes)
        self.lines = []
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True)
        self._reader.start()
        found = None
        for line in self.process.stdout:
            if found := re.fullmatch(r"listening on (http://\S+)\n", line):
                break
        if found is None:
            self.process.wait()
            self._reader.join()
            pytest.fail(f"{' '.join(command)} did not start:\n{''.join(self.lines)}")
        self.url = found[1]

    def log(self):
        """The structured lines so far."""
        return [json.loads(line) for line in [*self.lines] if line.startswith("{")]

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self, timeout=120):
        """The exit status; after this all lines are there."""
        code = self.process.wait(timeout)
        self._reader.join()
        return code

    def stop(self):
        """Stop it as a supervisor does; the exit status."""
        self.signal()
        return self.wait()


@contextmanager
def serving(*arguments, **options):
    """A server that is started with `polyreply ARGUMENTS` on a free port (give `--port 0`) and ended afterwards."""
    server = ServerProcess(*arguments, **options)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.wait()


def chromium():
    """The path of a browser; without one the test is skipped, or fails where a browser is required."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None and os.environ.get(REQUIRE_BROWSER):
        pytest.fail(HOW)
    if path is None:
        pytest.skip(HOW)
    return path


@contextmanager
def browsing():
    """A headless browser of Playwright with an empty profile."""
    path = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=[*_FLAGS])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page_of(browser, url, *, width=1280, height=900, dark=False, **options):
    """A page that is opened; errors of its scripts and everything its policy blocks fail the test."""
    scheme = "dark" if dark else "light"
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **options)
    problems = []
    try:
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.goto(url)
        yield page
    finally:
        context.close()
    assert not problems, problems
