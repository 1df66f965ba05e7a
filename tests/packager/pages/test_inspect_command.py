"""`qpack inspect --format html` as a command: where the page goes, that only the bundle is in it, what it refuses."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from qpack_packager.cli import main
from qpack_packager.pages.inspect_page import inspect_page, read_quality, report
from qpack_schemas.bundle import open_bundle
from qpack_schemas.errors import InputError, IntegrityError
from qpack_schemas.manifest import Manifest

from .conftest import BundleOf, Show


def test_the_same_bundle_gives_the_same_bytes(bundle_of: BundleOf, tmp_path: Path):
    """In another process, with other hashes, in another place; only the path that was given differs."""
    pages: list[bytes] = []
    command = "from qpack_packager.cli import main; main()"
    for seed in ("1", "2"):
        folder = tmp_path / seed
        shutil.copytree(bundle_of("cuda"), folder / "bundle")
        ran = subprocess.run(
            [sys.executable, "-c", command, "inspect", "bundle", "--format", "html"],
            cwd=folder,
            env={**os.environ, "PYTHONHASHSEED": seed, "TZ": "Asia/Tokyo" if seed == "1" else "UTC"},
            capture_output=True,
            check=True,
        )
        pages.append(ran.stdout)
    assert pages[0] == pages[1]
    assert str(tmp_path).encode() not in pages[0]
    assert b'<span class="path">bundle</span>' in pages[0]


def test_a_measured_quality_is_shown(show: Show, bundle_of: BundleOf):
    bundle = open_bundle(bundle_of("tiny-qwen3"), digests=False)
    gate = {"gate": {"max_ppl_ratio": 1.05, "max_kl": None}, "text_sha256": "ab" * 32, "tokens": 4096, "passed": False}
    gated = replace(bundle, manifest=cast(Manifest, bundle.manifest | {"quality": gate}))
    measured = {"perplexity": 12.345678, "modes": {"exact": {"kl_mean": 0.00123}}, "kl_histogram": [1, 2], "ok": "<b>"}
    section = show(inspect_page(gated, measured)).locator("#quality")
    assert section.locator(".verdict").inner_text() == "The gate was missed."
    facts = section.locator("dl > div").evaluate_all(
        "(all) => Object.fromEntries(all.map((one) => [...one.children].map((part) => part.textContent)))"
    )
    assert facts == {
        "max ppl ratio": "1.05", "max kl": "no limit", "tokens": "4,096", "text": "ab" * 32, "perplexity": "12.3457",
        "modes exact kl mean": "0.00123", "ok": "<b>",
    }  # fmt: skip


def test_a_quality_file_that_is_none_is_an_error(bundle_of: BundleOf, tmp_path: Path):
    assert read_quality(bundle_of("tiny-qwen3")) is None
    (tmp_path / "quality.json").write_text("[]", encoding="utf-8")
    with pytest.raises(InputError, match="not a JSON object"):
        read_quality(tmp_path)


def inspect(*arguments: str | Path) -> Any:
    return CliRunner().invoke(main, ["inspect", *map(str, arguments)])


@pytest.mark.parametrize("form", ["text", "json", "html"])
def test_a_report_goes_to_stdout_or_whole_into_a_file(form: str, bundle_of: BundleOf, tmp_path: Path):
    bundle = bundle_of("tiny-qwen3")
    printed = inspect(bundle, "--format", form)
    output = tmp_path / "report"
    written = inspect(bundle, "--format", form, "-o", output)
    assert (printed.exit_code, written.exit_code, written.stdout) == (0, 0, "")
    assert output.read_bytes() == printed.stdout_bytes
    assert printed.stdout_bytes.endswith(b"\n")
    assert list(tmp_path.iterdir()) == [output]


def test_a_report_is_never_written_into_the_bundle(bundle_of: BundleOf, tmp_path: Path):
    bundle = Path(shutil.copytree(bundle_of("tiny-qwen3"), tmp_path / "bundle"))
    ran = inspect(bundle, "--format", "html", "-o", bundle / "model" / "page.html")
    assert ran.exit_code == 2
    assert "lies in the bundle" in ran.stderr
    assert open_bundle(bundle)


def test_a_damaged_bundle_has_no_page(bundle_of: BundleOf, tmp_path: Path):
    bundle = Path(shutil.copytree(bundle_of("tiny-qwen3"), tmp_path / "bundle"))
    (bundle / "model" / "config.json").unlink()
    with pytest.raises(IntegrityError):
        report(bundle)
    output = tmp_path / "page.html"
    assert inspect(bundle, "--format", "html", "-o", output).exit_code == 5
    assert not output.exists()
