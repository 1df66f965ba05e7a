"""The server's state in the panel, and a page that waits for a booting server."""

import pytest
from playwright.sync_api import Page, expect
from starlette.responses import JSONResponse

from runtime.serve.page.asking import answered, field
from runtime.serve.page.conftest import OpenPage
from runtime.serve.page.fake_server import FakeServer, error_body


def test_the_panel_shows_slots_queue_and_the_share_of_each_bucket(page: Page, server: FakeServer):
    panel = page.get_by_role("complementary", name="Server and settings")
    for text in ("Qwen3.5-2B", "9f2c1ab7d0e4", "cpu", "2,048", "2 of 8", "0 of 64"):
        expect(panel).to_contain_text(text)
    rows = panel.get_by_role("listitem")
    expect(rows).to_have_count(4)
    expect(rows.nth(0)).to_contain_text("60 %")
    expect(rows.nth(0)).to_contain_text("60 steps, 20.0 ms each")
    expect(rows.nth(2)).to_contain_text("not used yet")
    shares = "(rows) => rows.map((row) => { const bar = row.querySelector('.bar');"
    shares += " return bar.firstChild.getBoundingClientRect().width / bar.getBoundingClientRect().width; })"
    assert [round(share, 2) for share in rows.evaluate_all(shares)] == [0.6, 0.3, 0, 0.1]


def test_the_state_is_asked_for_every_two_seconds_while_it_is_visible(open_page: OpenPage, server: FakeServer):
    page = open_page()
    panel = page.get_by_role("complementary")
    expect(panel).to_contain_text("2 of 8")
    page.clock.install()
    page.reload()
    expect(panel).to_contain_text("2 of 8")
    for running in (3, 4, 5):
        server.stats["running"] = running
        page.clock.run_for(1900)
        with page.expect_response("**/stats"):
            page.clock.run_for(100)
        expect(panel).to_contain_text(f"{running} of 8")
    page.get_by_role("button", name="Server and settings").click()
    expect(panel).to_be_hidden()
    server.asked.clear()
    page.clock.run_for(20_000)
    answered(page, server)  # a round trip, so that anything asked before it would have come
    assert "/stats" not in server.asked
    with page.expect_response("**/stats"):
        page.get_by_role("button", name="Server and settings").click()
    page.evaluate(
        "Object.defineProperty(document, 'visibilityState', {value: 'hidden'});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    server.asked.clear()
    page.clock.run_for(20_000)
    answered(page, server)
    assert "/stats" not in server.asked


def test_a_hidden_panel_asks_for_the_defaults_once(open_page: OpenPage, server: FakeServer):
    page = open_page(width=360, height=740)
    expect(page.get_by_role("banner")).to_contain_text("Qwen3.5-2B")  # so that nothing of this load is still to come
    page.clock.install()
    server.asked.clear()
    page.reload()
    expect(page.get_by_role("banner")).to_contain_text("Qwen3.5-2B")
    page.clock.run_for(20_000)
    assert answered(page, server).request["top_k"] == 20
    assert server.asked.count("/stats") == 1


def test_a_booting_server_is_waited_for(page: Page, server: FakeServer):
    server.phase = "weights"
    page.reload()
    booting = page.get_by_role("status").filter(has_text="The server is booting: weights.")
    expect(booting).to_be_visible()
    field(page).fill("Why?")
    field(page).press("Enter")
    expect(page.get_by_role("button", name="Send")).to_have_attribute("aria-disabled", "true")
    expect(field(page)).to_have_value("Why?")
    assert server.idle()
    server.phase = "graphs"
    expect(page.get_by_role("status").filter(has_text="graphs")).to_be_visible()
    server.phase = None
    expect(page.get_by_role("status").filter(has_text="booting")).to_have_count(0)
    expect(page.get_by_role("complementary")).to_contain_text("2 of 8")
    field(page).press("Enter")
    server.exchange().finish()


@pytest.mark.parametrize("phase", ["draining", "failed"])
def test_a_server_that_ends_is_not_said_to_boot(page: Page, server: FakeServer, phase: str):
    server.phase = phase
    page.reload()
    expect(page.get_by_role("status").filter(has_text=f"The server isn't ready yet: {phase}")).to_be_visible()


def test_a_server_that_restarts_is_noticed_by_the_next_request(page: Page, server: FakeServer):
    answered(page, server)
    page.get_by_role("button", name="Server and settings").click()  # hidden, so that only a request can notice
    server.phase = "weights"
    server.refusals.append(JSONResponse(error_body("Not yet."), 503))
    field(page).fill("And?")
    field(page).press("Enter")
    expect(page.get_by_role("status").filter(has_text="booting: weights")).to_be_visible()
    server.phase = None
    expect(page.get_by_role("status").filter(has_text="booting")).to_have_count(0)


def test_a_bucket_that_is_not_ready_is_named(page: Page, server: FakeServer):
    server.stats["buckets"][1]["ready"] = False
    page.reload()
    rows = page.get_by_role("complementary").get_by_role("listitem")
    expect(rows.nth(1)).to_contain_text("not ready")
