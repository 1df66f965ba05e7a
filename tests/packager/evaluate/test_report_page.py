"""The page shows the numbers that were measured, says what there is not, and asks nobody for anything."""

import copy
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from playwright.sync_api import Request, sync_playwright

from drafts import Draft
from qpack_packager.evaluate.figures import Figures
from qpack_packager.evaluate.quality import Quality
from qpack_packager.evaluate.report_page import page
from qualities import measured


@pytest.fixture
def bundle(tiny_bundle: Callable[[str], Path]) -> Path:
    return tiny_bundle("tiny-qwen3_5")


class Values(HTMLParser):
    """What the elements `data` hold, and all text."""

    def __init__(self, html: str):
        super().__init__()
        self.values: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.values += [value or "" for name, value in attrs if (tag, name) == ("data", "value")]

    def handle_data(self, data: str) -> None:
        self.text += data


def both_modes() -> Quality:
    quality = measured()
    exact: Figures = copy.deepcopy(quality["modes"]["fast"])
    exact.update(perplexity=9.0625, ppl_ratio=1.0078125, kl_mean=0.00390625)
    quality["modes"]["exact"] = exact
    return quality


def test_every_figure_of_every_mode_is_there(bundle: Path):
    quality = both_modes()
    shown = Values(page(bundle, quality))
    for one in quality["modes"].values():
        for key in ("perplexity", "ppl_ratio", "kl_mean", "kl_p99", "kl_max", "top1_agreement", "nonfinite_tokens"):
            assert str(one[key]) in shown.values
    assert quality["reference"] is not None
    assert str(quality["reference"]["perplexity"]) in shown.values
    assert quality["text_sha256"] in shown.text
    assert "The gate was missed." in shown.text
    assert quality["gate"] is not None
    assert quality["gate"]["findings"][0] in shown.text


def test_each_token_stands_in_the_histogram(bundle: Path):
    html = page(bundle, measured())
    assert "5 from 1e-06 to 1" in html
    assert "6 from 1 to 1e+06" in html


def test_what_was_not_compared_or_not_finite_is_said(bundle: Path):
    quality = measured()
    quality["reference"] = quality["gate"] = None
    fast = quality["modes"]["fast"]
    fast.update(ppl_ratio=None, kl_mean=None, kl_stderr=None, kl_p99=None, kl_max=None, top1_agreement=None)
    fast["kl_histogram"] = None
    alone = Values(page(bundle, quality)).text
    assert "no reference was given" in alone
    assert "KL" not in alone
    broken = measured()
    fast = broken["modes"]["fast"]
    for key in ("perplexity", "perplexity_stderr", "ppl_ratio", "kl_mean", "kl_p99", "kl_max", "top1_agreement"):
        fast[key] = None
    fast["kl_histogram"], fast["nonfinite_tokens"] = None, 1234
    fast["nonfinite"] = [{"window": 31, "position": 77}]
    shown = Values(page(bundle, broken))
    assert "some logits are not finite" in shown.text
    assert {"1234"} <= set(shown.values)
    assert "31" in shown.text
    assert "77" in shown.text


def test_a_hostile_bundle_is_text(bundle: Path, tmp_path: Path):
    draft = Draft.read(bundle)
    draft.manifest["model"]["architecture"] = "<script>alert(1)</script>\u202e"
    html = page(draft.write(tmp_path / "a<b>"), measured())
    assert "<script" not in html
    assert "\u202e" not in html


def test_the_same_numbers_give_the_same_bytes(bundle: Path):
    assert page(bundle, both_modes()) == page(bundle, both_modes())


def test_a_browser_shows_it_at_any_width_without_a_complaint_or_a_request(bundle: Path, tmp_path: Path):
    (tmp_path / "quality.html").write_text(page(bundle, both_modes()), encoding="utf-8")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    said: list[str] = []
    asked: list[Request] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for size in (360, 800, 1400):
            shown = browser.new_page(viewport={"width": size, "height": 900})
            shown.on("console", lambda message: said.append(message.text))
            shown.on("request", lambda request: asked.append(request))
            shown.goto((tmp_path / "quality.html").as_uri())
            assert shown.evaluate("document.documentElement.scrollWidth") == size
            assert shown.locator("svg[role=img]").count() >= 5
        browser.close()
    assert said == []
    assert all(request.is_navigation_request() or request.url.startswith("data:") for request in asked)
