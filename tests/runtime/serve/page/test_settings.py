"""The sampling settings: the server's defaults, limits, memory, and what is sent."""

import pytest
from playwright.sync_api import Locator, Page, expect

from qpack_schemas.sampling import TOP_K_LIMIT
from runtime.serve.page.asking import answered, field
from runtime.serve.page.fake_server import FakeServer

DEFAULTS = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0, "repetition_penalty": 1}
NAMES = ["Temperature", "Top-p", "Top-k", "Min-p", "Repetition", "Max. tokens", "Seed"]


def number(page: Page, name: str) -> Locator:
    return page.get_by_role("spinbutton", name=name)


def test_the_defaults_of_the_server_are_shown_and_sent(page: Page, server: FakeServer):
    expect(number(page, "Temperature")).to_have_value("0.6")
    request = answered(page, server).request
    assert {name: request[name] for name in DEFAULTS} == DEFAULTS
    assert set(request) == {*DEFAULTS, "messages", "session", "stream", "stream_options"}


def test_settings_are_sent_as_json_numbers(page: Page, server: FakeServer):
    expect(number(page, "Temperature")).to_have_value("0.6")
    values = [1.25, 0.5, 40, 0.05, 1.1, 64, 2**53 - 1]
    for name, value in zip(NAMES, values, strict=True):
        number(page, name).fill(str(value))
    page.get_by_role("textbox", name="System prompt").fill("Be brief.")
    page.get_by_role("combobox", name="Thinking").select_option("off")
    request = answered(page, server).request
    fields = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed"]
    assert [request[name] for name in fields] == values
    assert all(type(request[name]) is type(value) for name, value in zip(fields, values, strict=True))
    assert request["chat_template_kwargs"] == {"enable_thinking": False}
    assert request["messages"][0] == {"role": "system", "content": "Be brief."}
    page.get_by_role("combobox", name="Thinking").select_option("on")
    assert answered(page, server).request["chat_template_kwargs"] == {"enable_thinking": True}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("Temperature", "2.01", "Temperature must be a number from 0 to 2."),
        ("Top-p", "0", "Top-p must be a number from 0.01 to 1."),
        ("Top-k", str(TOP_K_LIMIT + 1), f"Top-k must be a whole number from 0 to {TOP_K_LIMIT}."),
        ("Top-k", "1.5", f"Top-k must be a whole number from 0 to {TOP_K_LIMIT}."),
        ("Max. tokens", "2049", "Max. tokens must be a whole number from 1 to 2048."),
        ("Seed", "-1", "Seed must be a whole number from 0 to 9007199254740991."),
        ("Min-p", "1e", "Min-p must be a number from 0 to 1."),
    ],
)
def test_a_number_beyond_its_limits_is_named_and_not_sent(
    page: Page, server: FakeServer, name: str, text: str, words: str
):
    expect(number(page, "Max. tokens")).to_have_attribute("max", "2048")
    number(page, name).press("Control+a")
    number(page, name).press_sequentially(text)
    expect(page.get_by_role("alert").filter(has_text=words)).to_be_visible()
    expect(number(page, name)).to_have_attribute("aria-invalid", "true")
    field(page).fill("Why?")
    field(page).press("Enter")
    expect(number(page, name)).to_be_focused()
    expect(field(page)).to_have_value("Why?")
    assert server.idle()
    page.get_by_role("button", name="Reset").click()
    expect(page.get_by_role("alert").filter(has_text=words)).to_be_hidden()
    answered(page, server)


def test_settings_survive_a_reload_and_reset_forgets_them(page: Page, server: FakeServer):
    expect(number(page, "Temperature")).to_have_value("0.6")
    number(page, "Temperature").fill("1")
    page.reload()
    expect(number(page, "Top-k")).to_have_value("20")
    expect(number(page, "Temperature")).to_have_value("1")
    page.get_by_role("button", name="Reset").click()
    expect(number(page, "Temperature")).to_have_value("0.6")
    page.reload()
    expect(number(page, "Temperature")).to_have_value("0.6")


def test_an_empty_number_leaves_the_choice_to_the_server(page: Page, server: FakeServer):
    expect(number(page, "Temperature")).to_have_value("0.6")
    number(page, "Temperature").fill("")
    assert "temperature" not in answered(page, server).request
