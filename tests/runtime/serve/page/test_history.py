"""Conversations kept in the browser: across reloads, full and forbidden storage, deletion, export."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from runtime.serve.page.asking import answered, answers, ask, field
from runtime.serve.page.conftest import OpenPage
from runtime.serve.page.fake_server import FakeServer

FULL = "Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }"
FORBIDDEN = """for (const name of ["localStorage", "sessionStorage"])
    Object.defineProperty(window, name, { get() { throw new DOMException("no", "SecurityError"); } });"""


def test_a_conversation_survives_a_reload(page: Page, server: FakeServer):
    first = answered(page, server, "**Because.**", "Why?")
    page.reload()
    expect(page.get_by_role("article", name="You")).to_have_text("Why?")
    expect(answers(page)).to_contain_text("Because.")
    expect(answers(page)).to_contain_text("12 prompt")
    expect(page.get_by_role("link", name="Why?")).to_have_attribute("aria-current", "page")
    second = answered(page, server, "So.", "And?")
    assert second.request["session"] == first.request["session"]
    assert len(second.request["messages"]) == 3


def test_what_had_come_survives_a_reload_in_the_middle(page: Page, server: FakeServer):
    exchange = ask(page, server)
    exchange.say("Half of ")
    expect(answers(page)).to_contain_text("Half of")
    page.reload()
    assert exchange.left.wait(30)
    expect(answers(page)).to_contain_text("Half of")
    expect(answers(page)).to_contain_text("stopped")
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_each_conversation_has_a_title_and_the_last_used_is_first(page: Page, server: FakeServer):
    answered(page, server, text="First\n  question")
    page.get_by_role("link", name="New conversation").click()
    answered(page, server, text="Second " + "very " * 30 + "long question")
    titles = page.get_by_role("navigation").get_by_role("listitem").get_by_role("link")
    expect(titles).to_have_text([("Second " + "very " * 30)[:60], "First question"])
    titles.last.click()
    answered(page, server, text="More")
    expect(titles.first).to_have_text("First question")
    page.go_back()
    expect(titles.last).to_have_attribute("aria-current", "page")


def test_a_deleted_conversation_is_gone_unless_it_is_taken_back(page: Page, server: FakeServer):
    answered(page, server)
    page.get_by_role("button", name="Delete “Why?”").click()
    expect(page.get_by_role("article")).to_have_count(0)
    expect(page.get_by_role("alert").filter(has_text="deleted")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(answers(page)).to_contain_text("Because.")
    page.get_by_role("button", name="Delete “Why?”").click()
    page.reload()
    expect(field(page)).to_be_focused()
    expect(page.get_by_role("link", name="Why?")).to_have_count(0)


def test_deleting_a_conversation_stops_its_answer_and_keeps_it_deleted(page: Page, server: FakeServer):
    exchange = ask(page, server)
    page.get_by_role("button", name="Delete “Why?”").click()
    assert exchange.left.wait(30)
    expect(page.get_by_role("status").last).to_have_text("Answer stopped.")
    expect(page.get_by_role("link", name="Why?")).to_have_count(0)


def test_an_exported_conversation_is_json_that_can_be_sent_again(page: Page, server: FakeServer, tmp_path: Path):
    expect(page.get_by_role("button", name="Export")).to_be_disabled()
    answered(page, server, 'Because "你好".')
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    download.value.save_as(tmp_path / "export.json")
    exported = json.loads((tmp_path / "export.json").read_text(encoding="utf-8"))
    assert exported["title"] == "Why?"
    question, answer = exported["messages"]
    assert question == {"role": "user", "content": "Why?"}
    assert answer == {"role": "assistant", "content": 'Because "你好".'}


@pytest.mark.parametrize("storage", [FULL, FORBIDDEN], ids=["full", "forbidden"])
def test_storage_that_takes_nothing_does_not_stop_a_chat(open_page: OpenPage, server: FakeServer, storage: str):
    page = open_page(before=storage)
    answered(page, server)
    expect(page.get_by_role("alert").filter(has_text="storage is full or forbidden")).to_be_visible()
    answered(page, server, "So.", "And?")
    page.get_by_role("link", name="New conversation").click()
    expect(page.get_by_role("article")).to_have_count(0)
    page.get_by_role("link", name="Why?").click()
    expect(answers(page).last).to_contain_text("So.")
    page.get_by_role("button", name="中文").click()
    expect(page.get_by_role("button", name="发送")).to_be_visible()


def test_storage_that_has_room_again_takes_the_notice_away(page: Page, server: FakeServer):
    page.evaluate("localStorage.setItem('other', 'x'.repeat(5 * 2 ** 20 - 100))")  # Chromium's limit is 5 Mi characters
    answered(page, server)
    notice = page.get_by_role("alert").filter(has_text="storage is full or forbidden")
    expect(notice).to_be_visible()
    page.evaluate("localStorage.removeItem('other')")
    answered(page, server, "So.", "And?")
    expect(notice).to_be_hidden()


@pytest.mark.parametrize("damage", ["{", "null", "[]", '{"messages": [{"role": "user", "content": 3}]}'])
def test_a_damaged_entry_is_left_out(open_page: OpenPage, server: FakeServer, damage: str):
    page = open_page(before=f"localStorage.setItem('qpack.conversation.x', {json.dumps(damage)})")
    answered(page, server)
    expect(page.get_by_role("navigation").get_by_role("listitem")).to_have_count(1)
    assert page.evaluate("localStorage.getItem('qpack.conversation.x')") == damage
