"""The page on the server that ships it: a conversation, its figures, and the engine's state."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from runtime.serve.page.asking import answers, field
from server_process import ServerProcess


@pytest.fixture(scope="module")
def real(tiny_bundle: Callable[[str], Path]) -> Iterator[ServerProcess]:
    with ServerProcess(tiny_bundle("tiny-qwen3_5")) as server:
        yield server.ready()


@pytest.mark.parametrize(("width", "height"), [(360, 740), (1280, 800)])
def test_a_conversation_with_the_real_server(
    real: ServerProcess, browser: Browser, tmp_path: Path, width: int, height: int
):
    complaints: list[str] = []
    context = browser.new_context(viewport={"width": width, "height": height}, locale="en-US")
    page = context.new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"http://127.0.0.1:{real.port}/")
    field(page).fill("Who art thou?")
    field(page).press("Enter")
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=60_000)
    expect(answers(page)).to_have_count(1)
    expect(answers(page)).to_contain_text(re.compile(r"\d tokens/s"))
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.screenshot(path=tmp_path / f"{width}.png")
    context.close()
    assert complaints == []
    steps = real.get("/stats")[1]["buckets"]
    assert sum(bucket["steps"] for bucket in steps if bucket["program"] == "decode") > 2
