"""Every way to fail is said in words, beside what had come, and can be tried again."""

import pytest
from playwright.sync_api import Page, expect
from starlette.responses import JSONResponse, PlainTextResponse

from runtime.serve.page.asking import answered, answers, ask, field
from runtime.serve.page.fake_server import FakeServer, error_body

REFUSALS = {
    400: ("The prompt is longer than the context.", "The server refused this: The prompt is longer than the context."),
    500: ("A step failed.", "The server failed: A step failed."),
    503: ("Draining.", "The server isn't ready yet: Draining."),
}


def try_again(page: Page, server: FakeServer) -> None:
    page.get_by_role("button", name="Answer again").click()
    exchange = server.exchange()
    assert exchange.request["messages"] == [{"role": "user", "content": "Why?"}]
    exchange.say("Because.")
    exchange.finish()
    expect(answers(page)).to_contain_text("Because.")
    expect(answers(page)).to_have_count(1)


def refuse(page: Page, server: FakeServer, response: PlainTextResponse | JSONResponse) -> None:
    server.refusals.append(response)
    field(page).fill("Why?")
    field(page).press("Enter")


@pytest.mark.parametrize("status", REFUSALS)
def test_a_refusal_says_what_the_server_says(page: Page, server: FakeServer, status: int):
    message, words = REFUSALS[status]
    refuse(page, server, JSONResponse(error_body(message), status))
    expect(answers(page)).to_contain_text(words)
    expect(page.get_by_role("status").last).to_have_text(words)
    try_again(page, server)
    expect(answers(page)).not_to_contain_text(words)


def test_a_full_server_says_when_to_try_again(page: Page, server: FakeServer):
    headers = {"retry-after": "3", "retry-after-ms": "2400"}
    refuse(page, server, JSONResponse(error_body("queue_full"), 429, headers=headers))
    expect(answers(page)).to_contain_text("The server is full. Try again in 3 s.")
    try_again(page, server)


def test_an_answer_of_a_proxy_is_told_by_its_code(page: Page, server: FakeServer):
    refuse(page, server, PlainTextResponse("<h1>Bad gateway</h1>", 502))
    expect(answers(page)).to_contain_text("The server failed: HTTP 502")


def test_an_error_within_the_stream_keeps_what_had_come(page: Page, server: FakeServer):
    exchange = ask(page, server)
    exchange.say("Half of ")
    exchange.event(error_body("A step failed."))
    exchange.end()
    expect(answers(page)).to_contain_text("Half of")
    expect(answers(page)).to_contain_text("The server failed: A step failed.")
    try_again(page, server)


@pytest.mark.parametrize("garbage", [b"", b"data: {\n\n", b"data: 3\n\n", b"data: null\n\n", b'data: {"a": 1}\n\n'])
def test_a_stream_that_breaks_is_no_finished_answer(page: Page, server: FakeServer, garbage: bytes):
    exchange = ask(page, server)
    exchange.say("Half of ")
    exchange.raw(garbage)
    exchange.end()
    expect(answers(page)).to_contain_text("Half of")
    expect(answers(page)).to_contain_text("The connection broke before the answer was whole.")
    try_again(page, server)


def test_a_server_that_is_gone_is_waited_for(page: Page, server: FakeServer):
    expect(page.get_by_role("main")).to_contain_text("Qwen3.5-2B")
    page.context.set_offline(True)
    field(page).fill("Why?")
    field(page).press("Enter")
    expect(answers(page)).to_contain_text("The server can't be reached.")
    unreachable = page.get_by_role("status").filter(has_text="can't be reached")
    expect(unreachable).to_have_count(2)  # said once when the answer failed, and shown until the server is back
    page.context.set_offline(False)
    expect(unreachable).to_have_count(1)
    try_again(page, server)


def test_a_key_is_asked_for_sent_and_kept_for_this_tab_only(page: Page, server: FakeServer):
    server.key = "sesame"
    field(page).fill("Why?")
    field(page).press("Enter")
    expect(answers(page)).to_contain_text("The server asks for an API key")
    key = page.get_by_label("API key")
    expect(key).to_be_focused()
    key.fill("sesame")
    page.get_by_role("button", name="Answer again").click()
    exchange = server.exchange()
    assert exchange.headers["authorization"] == "Bearer sesame"
    exchange.finish()
    page.reload()
    expect(page.get_by_label("API key")).to_have_value("sesame")
    assert "sesame" not in page.evaluate("JSON.stringify(localStorage)")
    page.get_by_label("API key").fill("")
    server.key = None
    assert "authorization" not in answered(page, server).headers
    assert page.evaluate("sessionStorage.length") == 0


def test_a_server_that_asks_for_a_key_says_so_before_anything_is_sent(page: Page, server: FakeServer):
    server.key = "sesame"
    page.reload()
    notice = page.get_by_role("alert").filter(has_text="API key")
    expect(notice).to_be_visible()
    page.get_by_label("API key").fill("sesame")
    page.get_by_label("API key").press("Enter")
    expect(notice).to_be_hidden()
    expect(page.get_by_role("complementary")).to_contain_text("decode-b8-c512")
