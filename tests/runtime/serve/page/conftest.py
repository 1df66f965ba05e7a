"""Headless Chromium on the chat page. After a test the console must hold no complaint that it didn't provoke."""

import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from runtime.serve.page.fake_server import FakeServer

OpenPage = Callable[..., Page]
# Chromium reports each answer that isn't 2xx: of these paths the tests ask for some.
PROVOKED = re.compile("/(readyz|stats|v1/chat/completions)$")

expect.set_options(timeout=30_000)  # a safety net: nothing is measured by it


@pytest.fixture(scope="module")  # not longer: while it lives, this thread can't run an event loop of its own
def browser() -> Iterator[Browser]:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.fail("the tests of the chat page need Chromium, which `make test` installs")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


@pytest.fixture
def open_page(browser: Browser, server: FakeServer) -> Iterator[OpenPage]:
    """open_page(width=360, height=740, locale="zh-CN", before=JavaScript): the page, ready, in a profile of its own."""
    complaints: list[str] = []
    contexts = []

    def hear(message: ConsoleMessage) -> None:
        failed_request = message.text.startswith("Failed to load resource")
        if message.type in ("error", "warning") and not (failed_request and PROVOKED.search(message.location["url"])):
            complaints.append(f"{message.text} ({message.location})")

    def get(width: int = 1280, height: int = 800, before: str = "", **options: Any) -> Page:
        settings: dict[str, Any] = {"locale": "en-US", "reduced_motion": "reduce", **options}
        context = browser.new_context(viewport={"width": width, "height": height}, **settings)
        contexts.append(context)
        if before:
            context.add_init_script(before)
        page = context.new_page()
        page.on("console", hear)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(server.url)
        return page

    yield get
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="module")
def blank(browser: Browser) -> Iterator[Page]:
    """A page that stays open for a module's tests: for those of single modules of the page, which change nothing."""
    with FakeServer() as server:
        page = browser.new_page()
        page.goto(server.url)
        yield page
        page.close()


@pytest.fixture
def page(open_page: OpenPage) -> Page:
    return open_page()
