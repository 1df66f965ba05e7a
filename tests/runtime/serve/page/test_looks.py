"""What can be seen and told: widths, both colour schemes, contrast, names, languages, size."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from runtime.serve.page.asking import answered
from runtime.serve.page.conftest import OpenPage
from runtime.serve.page.fake_server import PAGE, FakeServer

ANSWER = (
    "<think>Hm.</think>Text with `code` and **bold**:\n\n```python\n" + "x = 1  # " * 40 + "\n```\n\n" + "longword" * 60
)
SIZES = [(360, 740), (1280, 800)]
# WCAG 2.2, 1.4.3: each text against the nearest background that isn't transparent. Returns those below 4.5.
LOW_CONTRAST = """() => {
    const luminance = (rgb) => rgb.map((byte) => byte / 255)
        .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
        .reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
    const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const background = (node) => {
        for (; node; node = node.parentElement) {
            const found = channels(getComputedStyle(node).backgroundColor);
            if (found[3] !== 0) return found.slice(0, 3);
        }
    };
    const low = [];
    const seen = { opacityProperty: true, visibilityProperty: true };
    for (const node of document.querySelectorAll("body *")) {
        const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
        if ((!own && !node.placeholder) || node.disabled || !node.checkVisibility(seen)) continue;
        const style = getComputedStyle(node, own ? null : "::placeholder");
        const shades = [luminance(channels(style.color).slice(0, 3)), luminance(background(node))];
        const [light, dark] = shades.sort((a, b) => b - a);
        const ratio = (light + 0.05) / (dark + 0.05);
        if (ratio < 4.5) low.push([node.textContent.slice(0, 40), ratio]);
    }
    return low;
}"""


def fill(page: Page, server: FakeServer, language: str = "en-US") -> None:
    if language == "en-US":
        answered(page, server, ANSWER, "Why " * 60)
        expect(page.get_by_role("article", name="Answer")).to_contain_text("12 prompt")
        return
    page.get_by_role("textbox", name="消息").fill("为什么")
    page.get_by_role("textbox", name="消息").press("Enter")
    exchange = server.exchange()
    exchange.say(ANSWER)
    exchange.finish()
    expect(page.get_by_role("article", name="回答")).to_contain_text("提示 12")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_page_fits_its_width_and_can_be_read(
    open_page: OpenPage, server: FakeServer, tmp_path: Path, width: int, height: int, locale: str, scheme: str
):
    page = open_page(width, height, locale=locale, color_scheme=scheme)
    fill(page, server, locale)
    views = ["chat"] if width > 1000 else ["chat", "conversations", "panel"]
    for view in views:
        if view != "chat":
            name = {"conversations": ("Conversations", "对话列表"), "panel": ("Server and settings", "服务器与设置")}[
                view
            ]
            page.get_by_role("button", name=name[locale == "zh-CN"]).click()
        wide = "() => [...document.querySelectorAll('html, body, main, nav, aside')]"
        wide += ".filter((node) => node.scrollWidth > node.clientWidth).map((node) => node.tagName)"
        assert page.evaluate(wide) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(LOW_CONTRAST) == []
        shot = page.screenshot(path=tmp_path / f"{view}.png")
        assert len(colours(page, shot)) > 50, "the screenshot is blank"


def colours(page: Page, shot: bytes) -> set[int]:
    """The colours of a screenshot, read by the browser in a page without the server's content security policy."""
    reader = page.context.new_page()
    found = reader.evaluate(
        """async (bytes) => {
            const image = await createImageBitmap(new Blob([new Uint8Array(bytes)]));
            const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
            context.drawImage(image, 0, 0);
            return [...new Set(new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer))];
        }""",
        list(shot),
    )
    reader.close()
    return set(found)


def test_dark_is_dark_and_light_is_light(open_page: OpenPage):
    shades = []
    for scheme in ("light", "dark"):
        page = open_page(color_scheme=scheme)
        red = "Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])"
        shades.append(page.evaluate(red))
    assert shades[0] > 200
    assert shades[1] < 60


def test_every_control_has_a_name_and_every_landmark_is_there(page: Page, server: FakeServer):
    answered(page, server)
    for role in ("banner", "navigation", "main", "complementary"):
        expect(page.get_by_role(role)).to_have_count(1)
    browser = page.context.new_cdp_session(page)
    browser.send("Accessibility.enable")
    nodes = browser.send("Accessibility.getFullAXTree")["nodes"]
    controls = {
        "button",
        "link",
        "textbox",
        "spinbutton",
        "combobox",
        "navigation",
        "complementary",
        "article",
        "region",
    }
    seen = [node for node in nodes if not node["ignored"] and node["role"]["value"] in controls]
    assert len(seen) > 20
    assert [node["role"]["value"] for node in seen if not node["name"]["value"].strip()] == []
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((node) => node.id)")
    assert len(ids) == len(set(ids))


def test_animations_rest_for_those_who_ask_for_less_motion(page: Page, open_page: OpenPage, server: FakeServer):
    for motion, moving in (("reduce", 0), ("no-preference", 1)):
        page = open_page(reduced_motion=motion)
        page.get_by_role("textbox", name="Message").fill("Why?")
        page.get_by_role("textbox", name="Message").press("Enter")
        exchange = server.exchange()
        expect(page.get_by_text("Waiting for the first token")).to_be_visible()
        assert page.evaluate("document.getAnimations().length") == moving
        exchange.finish()
        expect(page.get_by_role("button", name="Send")).to_be_visible()


@pytest.mark.parametrize(("locale", "tag", "send"), [("zh-TW", "zh-CN", "发送"), ("de-DE", "en", "Send")])
def test_the_language_is_the_browsers(open_page: OpenPage, locale: str, tag: str, send: str):
    page = open_page(locale=locale)
    expect(page.get_by_role("button", name=send)).to_be_visible()
    assert page.evaluate("document.documentElement.lang") == tag


def test_the_language_switch_changes_every_text_and_is_remembered(page: Page, server: FakeServer):
    answered(page, server, "ok", "ok")
    page.get_by_role("button", name="中文").click()
    for _ in range(2):
        expect(page.get_by_role("textbox", name="消息")).to_be_visible()
        expect(page.get_by_role("article", name="回答")).to_contain_text("提示 12")
        assert page.evaluate("document.documentElement.lang") == "zh-CN"
        page.get_by_role("complementary").get_by_text("上下文").wait_for()
        text = page.get_by_role("main").inner_text() + page.get_by_role("complementary").inner_text()
        latin = {word for word in re.split(r"[^\w]+", text) if word.isascii() and word.isalpha()}
        assert latin <= {"ok", "cpu", "Enter", "Shift", "API", "Top", "Min", "p", "k", "decode", "prefill"}
        page.reload()
    page.get_by_role("button", name="English").click()
    expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    assert page.evaluate("document.documentElement.lang") == "en"


def test_both_languages_fill_the_same_places_of_each_text(blank: Page):
    source = (PAGE / "words.js").read_text(encoding="utf-8")
    pairs = blank.evaluate(f"({{{source.partition('const WORDS = {')[2].partition('};')[0]}}})")
    assert len(pairs) > 60
    places = "(text) => [...text.matchAll(/\\{(\\w+)\\}/g)].map((match) => match[1]).sort()"
    for key, pair in pairs.items():
        assert len(pair) == 2, key
        assert blank.evaluate(places, pair[0]) == blank.evaluate(places, pair[1]), key


def test_a_drawer_takes_the_focus_and_escape_gives_it_back(open_page: OpenPage, server: FakeServer):
    page = open_page(width=360, height=740)
    button = page.get_by_role("button", name="Server and settings")
    expect(button).to_have_attribute("aria-expanded", "false")
    expect(page.get_by_role("complementary")).to_be_hidden()
    button.click()
    expect(page.get_by_role("complementary")).to_be_focused()
    expect(button).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("Escape")
    expect(button).to_be_focused()
    expect(page.get_by_role("complementary")).to_be_hidden()


def test_the_page_is_small_and_asks_nobody_else(page: Page):
    assert sum(file.stat().st_size for file in PAGE.iterdir()) < 60 << 10
    loaded = page.evaluate("performance.getEntriesByType('resource').map((entry) => new URL(entry.name).origin)")
    assert set(loaded) == {page.evaluate("location.origin")}
    for file in PAGE.iterdir():
        assert "innerHTML" not in file.read_text(encoding="utf-8")
