"""A file is replaced whole, with its mode, and never through a link."""

import os
from pathlib import Path

import pytest

from qpack_packager.check.replace_file import replace_file


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755])
def test_the_mode_is_kept(mode: int, tmp_path: Path):
    file = tmp_path / "x"
    file.write_bytes(b"old")
    file.chmod(mode)
    replace_file(file, b"new")
    assert (file.read_bytes(), file.stat().st_mode & 0o7777) == (b"new", mode)


def test_a_new_file_has_the_mode_of_any_new_file(tmp_path: Path):
    replace_file(tmp_path / "x", b"new")
    (tmp_path / "y").touch()
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "y").stat().st_mode


def test_a_link_is_not_written_through(tmp_path: Path):
    (tmp_path / "blob").write_bytes(b"old")
    (tmp_path / "x").symlink_to("blob")
    with pytest.raises(OSError, match="link"):
        replace_file(tmp_path / "x", b"new")
    assert (tmp_path / "blob").read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["blob", "x"]


def test_a_reader_who_has_the_file_open_keeps_the_old_bytes(tmp_path: Path):
    file = tmp_path / "x"
    file.write_bytes(b"old")
    with file.open("rb") as reader:
        replace_file(file, b"new")
        assert reader.read() == b"old"


def test_nothing_is_left_if_the_new_bytes_cannot_be_put_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "x").write_bytes(b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(tmp_path / "x", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"x": b"old"}
