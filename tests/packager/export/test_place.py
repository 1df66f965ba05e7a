"""Where an export may be made, and what is said where it can't: nothing lies in a bundle, disks are asked first."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from bundles import ASSETS
from qpack_delivery.oci import files as files_module
from qpack_delivery.oci.files import link_or_copy
from qpack_packager.bundle_writer import BundleWriter, writing
from qpack_packager.cli import main
from qpack_packager.export import export as export_module
from qpack_packager.export.write import Entry, write_shards
from qpack_schemas.bundle import open_bundle
from qpack_schemas.errors import FitError, UsageError

FORMATS = ("compressed-tensors", "gptq", "oci")


@pytest.fixture
def bundle(tiny_bundle: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bundle("tiny-qwen3"), tmp_path / "bundle"))


def export(bundle: Path, output: Path | str, form: str) -> Any:
    return CliRunner().invoke(main, ["export", str(bundle), "-o", str(output), "--format", form])


def ways_into(bundle: Path, beside: Path) -> Iterator[str | Path]:
    """Outputs that lie in the bundle, or would. The working directory is the one that it lies in."""
    yield bundle / "out"
    yield bundle / "model" / "new" / "out"
    yield f"{bundle.name}/out"
    yield f"./{bundle.name}/model/../out"
    (beside / "door").symlink_to(bundle / "model", target_is_directory=True)
    yield beside / "door" / "out"
    (beside / "named").symlink_to(bundle / "weights" / "out")
    yield beside / "named"


@pytest.mark.parametrize("form", FORMATS)
def test_no_export_is_made_in_a_bundle(form: str, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Not in its own one, not in another."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside").mkdir()
    other = Path(shutil.copytree(bundle, tmp_path / "other"))
    for output in ways_into(other, tmp_path / "beside"):
        ran = export(bundle, output, form)
        assert (ran.exit_code, ran.stdout) == (UsageError.exit_code, ""), output
        assert ran.stderr.startswith(f"error: {Path(output)}: lies in the bundle {other}, "), output
        assert "remedy: name an output outside of it" in ran.stderr
    assert export(bundle, bundle / "out", form).exit_code == UsageError.exit_code
    assert open_bundle(bundle).bundle_id == open_bundle(other).bundle_id


def test_an_output_in_a_bundle_is_refused_before_the_work(bundle: Path, monkeypatch: pytest.MonkeyPatch):
    def opened(*arguments: object) -> None:
        raise AssertionError("the bundle was read")

    monkeypatch.setattr(export_module, "open_bundle", opened)
    monkeypatch.setattr("qpack_schemas.bundle.open_bundle", opened)
    monkeypatch.setattr("qpack_packager.pages.inspect_page.report", opened)
    for form in FORMATS:
        assert export(bundle, bundle / "out", form).exit_code == UsageError.exit_code
    monkeypatch.setattr("qpack_packager.build.prepare", opened)
    monkeypatch.setattr("qpack_packager.check.run.check", opened)
    for command in (["build", str(ASSETS / "tiny-qwen3"), "-o"], ["check", str(ASSETS), "--output"]):
        ran = CliRunner().invoke(main, [*command, str(bundle / "out")])
        assert ran.exit_code == UsageError.exit_code, ran.output
    ran = CliRunner().invoke(main, ["inspect", str(bundle), "--format", "html", "-o", str(bundle / "page.html")])
    assert ran.exit_code == UsageError.exit_code


def test_beside_a_bundle_there_is_room_for_exports(bundle: Path, tmp_path: Path):
    (tmp_path / "manifest.json").write_text("{}", encoding="utf-8")  # of something else
    assert export(bundle, tmp_path / "bundle.export", "gptq").exit_code == 0


def small_disk(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    usage = shutil.disk_usage("/")._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)


def no_link(source: Path, target: Path) -> None:
    raise OSError(errno.EXDEV, "Invalid cross-device link", str(source))


@pytest.mark.parametrize("form", FORMATS)
def test_a_disk_that_is_too_small_is_told_before_anything_is_written(
    form: str, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(files_module.os, "link", no_link)
    small_disk(monkeypatch, 100_000)
    ran = export(bundle, tmp_path / "export", form)
    assert ran.exit_code == FitError.exit_code
    assert ran.stderr.startswith(f"error: {tmp_path}: the export needs ")
    assert " bytes, the disk has 100,000 left\n  remedy: free some space" in ran.stderr
    assert os.listdir(tmp_path) == ["bundle"]


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_asked_of_the_disk_is_what_is_written(
    form: str, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """But for headers of weight files and what describes a layout."""
    monkeypatch.setattr(files_module.os, "link", no_link)
    assert export(bundle, tmp_path / "first", form).exit_code == 0
    written = sum(file.stat().st_size for file in (tmp_path / "first").rglob("*") if file.is_file())
    small_disk(monkeypatch, written)
    assert export(bundle, tmp_path / "second", form).exit_code == 0
    small_disk(monkeypatch, written - 20_000)
    assert export(bundle, tmp_path / "third", form).exit_code == FitError.exit_code


def test_a_layout_of_linked_files_needs_no_space(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    small_disk(monkeypatch, 100)
    assert export(bundle, tmp_path / "layout", "oci").exit_code == 0
    assert {path.name for path in (tmp_path / "layout").iterdir()} == {"blobs", "index.json", "oci-layout"}


@pytest.mark.parametrize("lines", [1, 1 << 18])
def test_a_disk_that_fills_up_is_told_by_the_file_that_had_no_room(lines: int, tmp_path: Path):
    """Also if all of it was still in Python's buffer, which closing the file writes once more."""
    (tmp_path / "model.safetensors").symlink_to("/dev/full")
    entry = Entry("w", "float32", (lines, 2), lambda: [np.zeros((lines, 2), np.float32)])
    with pytest.raises(OSError, match="No space left on device") as raised:
        write_shards(BundleWriter(tmp_path), [entry], lambda name, amount=1: None)
    assert raised.value.filename == str(tmp_path / "model.safetensors")


def failing(output: Path, work: Callable[[BundleWriter], object]) -> OSError:
    """What an export at `output` ends with."""
    try:
        with writing(output) as writer:
            work(writer)
    except OSError as error:
        return error
    raise AssertionError("it was written")


def test_errors_name_an_export_as_it_was_asked_for(tmp_path: Path):
    def fill_up(writer: BundleWriter) -> None:
        (writer.folder / "README.md").symlink_to("/dev/full")
        writer.add("README.md", b"text")

    error = failing(tmp_path / "new" / "out", fill_up)
    assert (error.errno, error.filename) == (errno.ENOSPC, str(tmp_path / "new" / "out" / "README.md"))
    error = failing(tmp_path / "out", lambda writer: (tmp_path / "absent").read_bytes())
    assert (error.errno, error.filename) == (errno.ENOENT, str(tmp_path / "absent"))


def test_a_file_that_can_not_be_copied_for_want_of_space_is_told_by_its_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(files_module.os, "link", no_link)
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "copy").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space") as raised:
        link_or_copy(tmp_path / "file", tmp_path / "copy")
    assert raised.value.filename == str(tmp_path / "copy")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("working", [False, True])
def test_where_no_export_can_be_made_the_directory_is_named(
    working: bool, form: str, bundle: Path, monkeypatch: pytest.MonkeyPatch
):
    """/proc says of every new directory that its parent is not there, to every user."""
    if working:
        monkeypatch.chdir("/proc")
    ran = export(bundle, "export" if working else "/proc/export", form)
    assert ran.exit_code == 1
    assert ran.stderr.startswith("error: /proc: ")
    assert "partial" not in ran.stderr


def test_a_report_that_can_not_be_written_is_named(bundle: Path, monkeypatch: pytest.MonkeyPatch):
    ran = CliRunner().invoke(main, ["inspect", str(bundle), "-o", "/proc/report"])
    assert ran.exit_code == 1
    assert ran.stderr.startswith("error: /proc/report: ")
