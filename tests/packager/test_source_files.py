"""The digests of a checkpoint's files, taken while the build does something else."""

import hashlib
import threading
from pathlib import Path

import pytest

from qpack_packager.progress import Progress
from qpack_packager.source_files import SourceFiles
from qpack_schemas import bundle_files


@pytest.fixture
def taken() -> list[str]:
    """The name of the file of each block that was read, once `held` is asked for."""
    return []


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch, taken: list[str]) -> threading.Semaphore:
    """Lets one block be read for each release."""
    gate, read = threading.Semaphore(0), bundle_files.blocks_of

    def blocks(path):
        for block in read(path):
            gate.acquire()
            taken.append(path.name)
            yield block

    monkeypatch.setattr("qpack_packager.source_files.blocks_of", blocks)
    return gate


def test_they_are_those_of_the_bytes_in_the_order_of_the_names(tmp_path: Path):
    contents = {"b": b"", "a": b"x" * (5 << 20), "c": bytes(range(256))}
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    with SourceFiles(tmp_path, contents) as hashing:
        names = hashing.then(lambda files: [file["path"] for file in files])
        files = hashing.all(Progress("plain"))
        assert names.result() == ["a", "b", "c"]
    for file in files:
        data = contents[file["path"]]
        assert (file["bytes"], file["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())


def test_what_is_hashed_in_time_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a").write_bytes(b"bytes")
    with SourceFiles(tmp_path, "a") as hashing:
        hashing.then(len).result()
        assert hashing.all(Progress("plain"))
    assert capsys.readouterr().err == ""


def test_what_follows_from_them_waits_for_the_last(tmp_path: Path, held: threading.Semaphore):
    for name in "abc":
        (tmp_path / name).write_bytes(b"bytes")
    with SourceFiles(tmp_path, "abc") as hashing:
        count = hashing.then(len)
        held.release(2)
        with pytest.raises(TimeoutError):
            count.result(0.05)
        held.release()
        assert count.result() == 3


def test_who_leaves_does_not_wait_for_the_rest(tmp_path: Path, held: threading.Semaphore, taken: list[str]):
    for name in "abcdef":
        (tmp_path / name).write_bytes(b"x" * (3 << 20))
    before = set(threading.enumerate())
    with SourceFiles(tmp_path, "abcdef") as hashing:
        mark = hashing.then(len)
        going_on = threading.Thread(target=lambda: (hashing._ended.wait(), held.release(18)))  # all blocks
        going_on.start()
    going_on.join()
    assert len(taken) == len(set(taken)), "a file was read on"
    assert mark.cancelled() or mark.exception()
    assert set(threading.enumerate()) <= before


def test_a_file_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a").write_bytes(b"bytes")

    def blocks(path):
        path.unlink()
        yield from bundle_files.blocks_of(path)

    monkeypatch.setattr("qpack_packager.source_files.blocks_of", blocks)
    with SourceFiles(tmp_path, "a") as hashing:
        with pytest.raises(FileNotFoundError, match="/a'"):
            hashing.then(len).result()
        with pytest.raises(FileNotFoundError, match="/a'"):
            hashing.all(Progress("plain"))
