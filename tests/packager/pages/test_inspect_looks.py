"""The inspect page for eyes and for screen readers: sections, widths, contrast; what a bundle says stays text."""

import json
import re
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from qpack_packager.pages.inspect_page import report
from qpack_packager.pages.text import visible

from .conftest import BundleOf, PageOf, Show
from .inspected import KINDS, SECTIONS, manifest_of, rewritten

WIDTHS = [360, 800, 1400]
HOSTILE = "</title><script>document.title='owned'</script>\"'><img src=x onerror=alert(1)> \u202egnp\n模型名称"

# Every text in an SVG that meets another one or leaves its chart: [chart, texts].
MEETING = """() => [...document.querySelectorAll("svg.chart")].flatMap((chart) => {
    const outer = chart.getBoundingClientRect();
    const texts = [...chart.querySelectorAll("text")].filter((one) => one.checkVisibility())
        .map((one) => [one.textContent, one.getBoundingClientRect()]);
    const found = texts.filter(([, box]) => box.left < outer.left - 1 || box.right > outer.right + 1
        || box.top < outer.top - 1 || box.bottom > outer.bottom + 1).map(([text]) => [text]);
    texts.forEach(([text, a], place) => texts.slice(place + 1).forEach(([other, b]) => {
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (across > 0 && down > 3) found.push([text, other]);  // a line box is higher than its letters
    }));
    return found.map((texts) => [chart.getAttribute("aria-label"), ...texts]);
})"""
# WCAG 2.2, 1.4.3: each text against what is painted behind it. Returns those below 4.5.
LOW_CONTRAST = """() => {
    const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const luminance = (rgb) => rgb.map((byte) => byte / 255)
        .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
        .reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
    const behind = (node) => {
        for (; node; node = node.parentElement) {
            const found = channels(getComputedStyle(node).backgroundColor);
            if (found[3] !== 0) return found.slice(0, 3);
        }
    };
    const painted = (node) => {
        const paper = behind(node);
        const mark = node.previousElementSibling;
        if (!mark || !mark.matches("rect.soft") || !node.matches("text.label")) return paper;
        const style = getComputedStyle(mark);
        const share = Number(style.fillOpacity);
        return channels(style.fill).slice(0, 3).map((value, at) => share * value + (1 - share) * paper[at]);
    };
    const low = [];
    for (const node of document.querySelectorAll("body *")) {
        const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
        if (!own || !node.checkVisibility() || node.tagName === "title") continue;
        const style = getComputedStyle(node);
        const ink = channels(node.tagName === "text" ? style.fill : style.color).slice(0, 3);
        const [light, dark] = [luminance(ink), luminance(painted(node))].sort((a, b) => b - a);
        const ratio = (light + 0.05) / (dark + 0.05);
        if (ratio < 4.5) low.push([node.textContent.slice(0, 40), ratio]);
    }
    return low;
}"""


@pytest.mark.parametrize("name", KINDS)
def test_every_section_is_there_for_every_bundle(name: str, page_of: PageOf):
    page = page_of(name)
    assert page.locator("main > section").evaluate_all("(all) => all.map((one) => one.id)") == SECTIONS
    assert page.locator("nav a").evaluate_all("(all) => all.map((one) => one.hash.slice(1))") == SECTIONS
    for section in SECTIONS:
        assert len(page.locator(f"#{section}").inner_text()) > 80
    assert ("no quantization log" in page.locator("#quantization").inner_text()) == (name == "bare")
    assert ("runs on CPUs" in page.locator("#gpus").inner_text()) == (name != "cuda")
    assert "Not measured" in page.locator("#quality").inner_text()


@pytest.mark.parametrize("name", KINDS)
def test_every_chart_and_every_landmark_has_a_name(name: str, page_of: PageOf):
    page = page_of(name)
    charts = page.locator("svg.chart")
    assert charts.count() >= 9
    assert all(charts.evaluate_all("(all) => all.map((one) => one.role === 'img' && one.ariaLabel.length > 10)"))
    for role in ("banner", "navigation", "main", "contentinfo"):
        assert page.get_by_role(role).count() == 1  # type: ignore[arg-type]
    assert page.locator("h1").count() == 1
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((node) => node.id)")
    assert len(ids) == len(set(ids))
    assert page.locator(".mark").count() == page.locator(".mark > title").count()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", KINDS)
def test_the_page_fits_its_width_and_no_text_meets_another(name: str, width: int, page_of: PageOf):
    page = page_of(name, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(MEETING) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["tiny-qwen3_5", "cuda", "bare"])
def test_every_text_can_be_read_in_both_schemes(name: str, scheme: str, page_of: PageOf):
    page = page_of(name, color_scheme=scheme)
    red = int(re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[0])
    assert red > 200 if scheme == "light" else red < 60
    assert page.evaluate(LOW_CONTRAST) == []


def test_paper_shows_all_that_is_folded_within_its_width_and_is_white(
    browser: Browser, bundle_of: BundleOf, tmp_path: Path
):
    """A4 with margins of 1 cm is 718 pixels wide, at 96 an inch."""
    (tmp_path / "page.html").write_text(report(bundle_of("cuda")), encoding="utf-8")
    page = browser.new_page(viewport={"width": 718, "height": 1000}, color_scheme="dark")
    page.goto((tmp_path / "page.html").as_uri())
    kernels = page.get_by_text("linear_int4_decode_").first
    assert not kernels.is_visible()
    page.emulate_media(media="print", color_scheme="dark")
    assert kernels.is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate(LOW_CONTRAST) == []
    assert page.evaluate(MEETING) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 718
    page.close()


def test_the_page_may_run_nothing_and_load_nothing(browser: Browser, bundle_of: BundleOf, tmp_path: Path):
    """That it asks for nothing is held for each page here by `show`; nor could it, whatever got into it."""
    html = report(bundle_of("cuda"))
    assert re.findall(r"""(?:src|href)=["']?([^#"'][^"' >]*)""", html) == ["data:,"]
    assert not re.search(r"url\(|@import|<script|<iframe|<object|<form| on\w+=", html)
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    told = page.evaluate(
        """async () => {
            const told = [];
            addEventListener("securitypolicyviolation", (event) => told.push(event.effectiveDirective));
            const script = document.createElement("script");
            script.text = "document.title = 'owned'";
            document.body.append(script);
            const image = new Image();
            const settled = new Promise((done) => { image.onload = image.onerror = done; });
            image.src = "file:///nothing.png";
            await fetch("file:///nothing.json").catch(() => {});
            await settled;
            await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
            return told.sort();
        }"""
    )
    assert told == ["connect-src", "img-src", "script-src-elem"]
    assert page.title() != "owned"


def hostile_bundle(source: Path, folder: Path) -> Path:
    """Every free text of the manifest and the quantization log is hostile."""
    bundle = Path(shutil.copytree(source, folder))
    manifest = manifest_of(bundle)
    model = manifest["model"] | {"architecture": HOSTILE, "family": HOSTILE}
    source_of = manifest["source"] | {"uri": HOSTILE, "revision": HOSTILE, "notes": [HOSTILE, "b" * 300]}
    source_of["files"] = [file | {"path": HOSTILE} for file in source_of["files"]]
    rules = [{"glob": HOSTILE, "reason": HOSTILE, "tensors": 1}]
    quant = manifest["quant"] | {"kept": rules, "dropped": rules, "fallbacks": [HOSTILE], "method": HOSTILE}
    lines = [json.loads(line) for line in (bundle / "quant_log.jsonl").read_text(encoding="utf-8").splitlines()]
    for line in lines:
        for number, one in enumerate(line["sources"]):
            names = (f"model.layers.1.mlp.{HOSTILE}.weight", HOSTILE, "模型" * 40, "W" * 90)
            one["tensor"], one["part"] = names[number % 4], HOSTILE
    log = "".join(json.dumps(line) + "\n" for line in lines).encode("ascii")
    text = [file | {"encoding": HOSTILE} for file in manifest["text"]]
    return rewritten(bundle, log, model=model, source=source_of, quant=quant | {"scheme": HOSTILE}, text=text)


@pytest.mark.parametrize("width", WIDTHS)
def test_what_a_bundle_says_is_text_whatever_it_says(width: int, show: Show, bundle_of: BundleOf, tmp_path: Path):
    html = report(hostile_bundle(bundle_of("tiny-qwen3_5"), tmp_path / "bundle"))
    assert "\u202e" not in html
    page = show(html, width)
    assert page.evaluate("document.scripts.length + document.images.length") == 0
    assert page.title().startswith("</title><script>")
    assert page.locator("h1").inner_text() == visible(HOSTILE)
    assert page.get_by_text(visible(HOSTILE), exact=True).count() > 8
    assert page.locator("main > section").count() == len(SECTIONS)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(MEETING) == []
