"""`qpack inspect --format html` as a command: where the page goes, that only the bundle is in it, what it refuses."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qpack_packager.cli import main
from qpack_packager.pages.inspect_page import report
from qpack_schemas.bundle import open_bundle
from qpack_schemas.errors import IntegrityError

from .conftest import BundleOf


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
