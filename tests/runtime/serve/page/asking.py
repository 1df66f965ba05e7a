"""What a reader does on the page, by the names that the accessibility tree gives."""

from playwright.sync_api import Locator, Page, expect

from runtime.serve.page.fake_server import Exchange, FakeServer


def field(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message")


def answers(page: Page) -> Locator:
    return page.get_by_role("article", name="Answer")


def ask(page: Page, server: FakeServer, text: str = "Why?") -> Exchange:
    field(page).fill(text)
    field(page).press("Enter")
    return server.exchange()


def answered(page: Page, server: FakeServer, answer: str = "Because.", text: str = "Why?") -> Exchange:
    """Asks, and waits until the whole answer is on the page."""
    exchange = ask(page, server, text)
    exchange.say(answer)
    exchange.finish()
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    return exchange
