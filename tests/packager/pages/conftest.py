"""Headless Chromium on a page from a file, listening to all that the page asks for and complains of, and the bundles
that pages are made of."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from bundles import ASSETS, SMALL
from cuda_bundles import build_cuda_bundle
from qpack_packager.pages.inspect_page import report

from .inspected import NAMES, rewritten

BundleOf = Callable[[str], Path]
Show = Callable[..., Page]
PageOf = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.fail("the tests of pages need Chromium, which `make test` installs")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def show(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Show]:
    """show(html, width=360, color_scheme="dark"): the page with all its details open. In the end none must have asked
    for anything but itself, and the console must be empty."""
    heard: list[str] = []
    folder = tmp_path_factory.mktemp("pages")

    def get(html: str, width: int = 1400, **options: str) -> Page:
        file = folder / f"{len(list(folder.iterdir()))}.html"
        file.write_text(html, encoding="utf-8")
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)  # type: ignore[arg-type]
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("request", lambda request: heard.append(request.url) if request.url != file.as_uri() else None)
        page.goto(file.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        return page

    yield get
    assert heard == []


@pytest.fixture(scope="session")
def bundle_of(tiny_bundle: BundleOf, tmp_path_factory: pytest.TempPathFactory) -> BundleOf:
    """The tiny ones by name; `cuda`: with three GPU targets; `bare`: without a quantization log. Only for reading."""
    built: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name in NAMES:
            return tiny_bundle(name)
        if name not in built:
            folder = tmp_path_factory.mktemp(name) / "bundle"
            if name == "cuda":
                targets = ("cpu", "cuda:sm_89", "cuda:sm_120")
                build_cuda_bundle(ASSETS / "tiny-qwen3_5", folder, replace(SMALL, targets=targets))
            else:
                rewritten(shutil.copytree(tiny_bundle("tiny-qwen3"), folder), quant_log=None)
            built[name] = folder
        return built[name]

    return get


@pytest.fixture(scope="module")
def page_of(show: Show, bundle_of: BundleOf) -> PageOf:
    """page_of("cuda", width=360): the page of a bundle of `bundle_of`, which tests share. Only for reading."""
    opened: dict[tuple[object, ...], Page] = {}

    def get(name: str, width: int = 1400, color_scheme: str = "light") -> Page:
        key = name, width, color_scheme
        if key not in opened:
            opened[key] = show(report(bundle_of(name)), width, color_scheme=color_scheme)
        return opened[key]

    return get
