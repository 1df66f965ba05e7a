"""Sending, streaming, stopping, and doing all of it by keyboard."""

import re

from playwright.sync_api import Page, expect

from runtime.serve.page.asking import answered, answers, ask, field
from runtime.serve.page.conftest import OpenPage
from runtime.serve.page.fake_server import FakeServer


def test_an_answer_appears_in_order_while_it_streams(page: Page, server: FakeServer):
    exchange = ask(page, server)
    text = ""
    for piece in ("One", " two", " three ", "四", "五"):
        exchange.say(piece)
        text += piece
        expect(answers(page).locator("p", has_text=text.strip()).first).to_have_text(text)
    exchange.finish()
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(answers(page)).to_contain_text("One two three 四五")


def test_a_character_that_the_network_cuts_arrives_whole(page: Page, server: FakeServer):
    exchange = ask(page, server)
    data = 'data: {"choices": [{"index": 0, "delta": {"content": "你好"}}]}\r\n\r\n'.encode()
    cut = data.index("好".encode()) + 1
    exchange.raw(data[:cut])
    exchange.raw(data[cut:])
    expect(answers(page)).to_contain_text("你好")
    exchange.finish()
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_the_request_has_the_whole_conversation_and_one_session(page: Page, server: FakeServer):
    first = answered(page, server, "Because.", "Why?")
    second = answered(page, server, "So.", "And?")
    assert first.request["messages"] == [{"role": "user", "content": "Why?"}]
    assert second.request["messages"] == [
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "Because."},
        {"role": "user", "content": "And?"},
    ]
    assert (first.request["stream"], first.request["stream_options"]) == (True, {"include_usage": True})
    assert re.fullmatch("[A-Za-z0-9._-]{1,128}", first.request["session"])
    assert second.request["session"] == first.request["session"]
    page.get_by_role("link", name="New conversation").click()
    assert answered(page, server).request["session"] != first.request["session"]


def test_stop_ends_the_request_at_the_server_and_keeps_what_has_come(page: Page, server: FakeServer):
    exchange = ask(page, server)
    exchange.say("Half of ")
    expect(answers(page)).to_contain_text("Half of")
    page.get_by_role("button", name="Stop").click()
    assert exchange.left.wait(30)
    expect(answers(page)).to_contain_text("Half of")
    expect(answers(page)).to_contain_text("stopped")
    assert answered(page, server, "Whole.", "Go on").request["messages"][1]["content"] == "Half of "


def test_answer_again_asks_the_same_and_replaces_the_answer(page: Page, server: FakeServer):
    first = answered(page, server, "Wrong.")
    page.get_by_role("button", name="Answer again").click()
    second = server.exchange()
    second.say("Right.")
    second.finish()
    expect(answers(page)).to_contain_text("Right.")
    expect(answers(page)).to_have_count(1)
    assert second.request["messages"] == first.request["messages"]


def test_shift_enter_begins_a_line_and_enter_sends_it(page: Page, server: FakeServer):
    field(page).press_sequentially("one")
    field(page).press("Shift+Enter")
    field(page).press_sequentially("two")
    assert server.idle()
    field(page).press("Enter")
    exchange = server.exchange()
    assert exchange.request["messages"][0]["content"] == "one\ntwo"
    exchange.finish()


def test_an_empty_message_is_not_sent(page: Page, server: FakeServer):
    field(page).fill(" \n ")
    field(page).press("Enter")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("article")).to_have_count(0)
    assert server.idle()


def test_enter_that_ends_a_composition_does_not_send(page: Page, server: FakeServer):
    """Chromium is told of a composition as an input method tells it: the key that ends one has code 229."""
    field(page).focus()
    browser = page.context.new_cdp_session(page)
    browser.send("Input.imeSetComposition", {"text": "nihao", "selectionStart": 5, "selectionEnd": 5})
    enter = {"type": "rawKeyDown", "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
    page.evaluate("addEventListener('keydown', (event) => (window.composing = event.isComposing), true)")
    browser.send("Input.dispatchKeyEvent", enter)
    assert page.evaluate("window.composing") is True
    browser.send("Input.insertText", {"text": "你好"})
    # Safari ends the composition first, so that only the key's code tells.
    keydown = "new KeyboardEvent('keydown', {key: 'Enter', keyCode: 229, bubbles: true, cancelable: true})"
    field(page).evaluate(f"(field) => field.dispatchEvent({keydown})")
    expect(field(page)).to_have_value("你好")
    expect(page.get_by_role("article")).to_have_count(0)
    assert server.idle()
    field(page).press("Enter")
    exchange = server.exchange()
    assert exchange.request["messages"][0]["content"] == "你好"
    exchange.finish()


def test_everything_can_be_done_by_keyboard(page: Page, server: FakeServer):
    expect(field(page)).to_be_focused()
    page.keyboard.type("Why?")
    page.keyboard.press("Enter")
    exchange = server.exchange()
    exchange.say("Because")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Stop")).to_be_focused()
    page.keyboard.press("Enter")
    assert exchange.left.wait(30)
    expect(page.get_by_role("button", name="Send")).to_be_focused()
    expect(page.get_by_role("button", name="Answer again")).to_be_visible()  # drawn with the next frame
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    expect(page.get_by_role("button", name="Answer again")).to_be_focused()
    page.keyboard.press("Enter")
    server.exchange().finish()
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    focused = """(() => {
        const node = document.activeElement;
        const style = getComputedStyle(node.closest(".composer") ?? node);
        const name = node.labels?.[0]?.innerText.split("\\n")[0] || node.ariaLabel || node.innerText;
        return [name, style.outlineStyle !== "none" || style.boxShadow !== "none"];
    })()"""
    names = []
    page.get_by_role("button", name="Conversations").focus()
    while page.evaluate("document.activeElement !== document.body"):
        name, seen = page.evaluate(focused)
        assert seen, f"the focus on {name} can't be seen"
        names.append(name)
        page.keyboard.press("Tab")
    around = ["Conversations", "中文", "Export this conversation as JSON", "Server and settings", "New conversation"]
    chat = ["Why?", "Delete “Why?”", "Conversation", "Answer again", "Message", "Send"]
    panel = ["Reset", "System prompt", "Temperature", "Top-p", "Top-k", "Min-p", "Repetition", "Max. tokens", "Seed"]
    assert names == [*around, *chat, *panel, "Thinking", "API key"]


def test_a_finished_answer_is_announced_once_and_no_token_is(page: Page, server: FakeServer):
    page.evaluate(
        "window.said = []; new MutationObserver(() => said.push(announcer.textContent))"
        ".observe(document.getElementById('announcer'), {childList: true, characterData: true, subtree: true})"
    )
    exchange = ask(page, server)
    exchange.say("<think>Hm.</think>", "All", " done.")
    expect(answers(page)).to_contain_text("All done.")
    live = "(node) => node.closest('[aria-live], [role=log], [role=status], [role=alert]') === null"
    assert answers(page).evaluate(live)
    assert page.evaluate("said") == []
    exchange.finish()
    expect(page.get_by_role("status")).to_have_text("Answer finished. All done.")
    assert page.evaluate("said") == ["Answer finished. All done."]


def test_the_facts_of_an_answer_come_from_its_usage(page: Page, server: FakeServer):
    exchange = ask(page, server)
    exchange.say("a", "b", "c")
    expect(answers(page)).to_contain_text("s to first token")
    exchange.finish(prompt=1512, cached=480, answer=128, reason="length")
    expect(answers(page)).to_contain_text("1,512 prompt (480 cached) · 128 answer · cut at the token limit")
    assert re.search(r"\d\.\d\d s to first token · [\d,]+\.\d tokens/s", answers(page).inner_text())


def test_a_thought_is_folded(page: Page, server: FakeServer):
    exchange = ask(page, server)
    exchange.say("<think>\nLet me see")
    fold = answers(page).get_by_role("group").first
    expect(fold.get_by_text("Thinking…")).to_be_visible()
    expect(page.get_by_text("Let me see")).to_be_hidden()
    exchange.say(".\n</think>\n\nYes.")
    exchange.finish()
    expect(page.get_by_text("Yes.", exact=True)).to_be_visible()
    fold.get_by_text("Thoughts").click()
    expect(page.get_by_text("Let me see.")).to_be_visible()


def test_a_thought_that_the_prompt_opened_is_folded_too(page: Page, server: FakeServer):
    answered(page, server, "Let me see.\n</think>\n\nYes.")
    expect(page.get_by_text("Yes.", exact=True)).to_be_visible()
    expect(page.get_by_text("Let me see.")).to_be_hidden()


def test_the_page_follows_the_answer_only_for_a_reader_at_its_end(open_page: OpenPage, server: FakeServer):
    page = open_page(width=360, height=400)
    main = page.get_by_role("main")
    rest = "(node) => Math.round(node.scrollHeight - node.scrollTop - node.clientHeight)"
    exchange = ask(page, server)
    exchange.say(*[f"line {line}\n\n" for line in range(40)])
    expect(answers(page)).to_contain_text("line 39")
    assert main.evaluate(rest) <= 1
    main.evaluate("(node) => (node.scrollTop = 100)")
    exchange.say(*[f"more {line}\n\n" for line in range(20)])
    expect(answers(page)).to_contain_text("more 19")
    assert main.evaluate("(node) => node.scrollTop") == 100
    exchange.finish()


def test_many_tokens_in_one_frame_are_drawn_once(page: Page, server: FakeServer):
    exchange = ask(page, server)
    exchange.say("start ")
    expect(answers(page)).to_contain_text("start")
    page.evaluate(
        "window.draws = 0; window.frames = 0;"
        "const count = () => { frames += 1; requestAnimationFrame(count); }; requestAnimationFrame(count);"
        "new MutationObserver(() => (draws += 1)).observe(document.getElementById('messages'),"
        " {childList: true, characterData: true, subtree: true})"
    )
    exchange.say(*[f"word{number} " for number in range(500)])
    expect(answers(page)).to_contain_text("word499")
    draws, frames = page.evaluate("[draws, frames]")
    assert 0 < draws <= frames + 1
    exchange.finish()


def test_another_conversation_can_be_read_while_an_answer_is_written(page: Page, server: FakeServer):
    answered(page, server, "Old.", "Old question")
    page.get_by_role("link", name="New conversation").click()
    exchange = ask(page, server, "New question")
    exchange.say("Begin ")
    expect(answers(page)).to_contain_text("Begin")
    page.get_by_role("link", name="Old question").click()
    expect(answers(page)).to_contain_text("Old.")
    exchange.say("end.")
    exchange.finish()
    page.get_by_role("link", name="New question").click()
    expect(answers(page)).to_contain_text("Begin end.")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
