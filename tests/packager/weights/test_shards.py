"""Weight files: what is said of them is what the disk holds, and a disk that fails is never overlooked."""

import errno
import hashlib
import os
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file

from qpack_packager.weights import shards
from qpack_packager.weights.shards import WeightShards
from qpack_schemas.program import Buffer

LAYOUT = {
    "a": Buffer("weights", "int8", (300, 7)),
    "b": Buffer("weights", "float32", (5,)),
    "c": Buffer("weights", "int32", (64, 33)),
}
GENERATOR = np.random.default_rng(0)
TENSORS = {
    name: GENERATOR.integers(-100, 100, buffer.extent(1)).astype(buffer.dtype) for name, buffer in LAYOUT.items()
}


def write_all(folder: Path, lines: int) -> WeightShards:
    made = WeightShards(folder, LAYOUT)
    try:
        for name, tensor in TENSORS.items():
            made.write(name, (tensor[first : first + lines] for first in range(0, len(tensor), lines)))
        made.finish()
    finally:
        made.abandon()
    return made


@pytest.mark.parametrize("lines", [1, 7, 1000])
@pytest.mark.parametrize("unsynced", [0, 1 << 30])
def test_digests_are_those_of_the_bytes_on_disk_however_they_came(
    lines: int, unsynced: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shards, "_UNSYNCED", unsynced)
    made = write_all(tmp_path, lines)
    (entry,) = made.entries
    raw = (tmp_path / entry["path"]).read_bytes()
    assert (entry["bytes"], entry["sha256"]) == (len(raw), hashlib.sha256(raw).hexdigest())
    held = load_file(tmp_path / entry["path"])
    for name, tensor in TENSORS.items():
        assert np.array_equal(held[name], tensor)
        assert made.places[name] == (entry["path"], hashlib.sha256(tensor.tobytes()).hexdigest())


class LateDigest:
    """sha256 whose every other update takes its time."""

    def __init__(self) -> None:
        self._digest, self._count = hashlib.sha256(), 0

    def update(self, data: bytes) -> None:
        self._count += 1
        time.sleep(0.002 * (self._count % 2))
        self._digest.update(data)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def test_a_digest_that_is_slower_than_the_disk_sees_every_byte_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    punctual = write_all(tmp_path / "punctual", 20)
    monkeypatch.setattr(shards, "hashlib", SimpleNamespace(sha256=LateDigest))
    late = write_all(tmp_path / "late", 20)
    assert late.entries == punctual.entries
    assert late.places == punctual.places


def test_a_disk_that_fails_while_more_is_made_is_an_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(shards, "_UNSYNCED", 0)
    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(OSError, match="Input/output error") as error:
        write_all(tmp_path, 50)
    assert error.value.filename == str(tmp_path / "weights" / "00000.safetensors")
