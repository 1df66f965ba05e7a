"""Weight files of any size arrive whole, each at its own place."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fake_driver import FakeDriver
from qpack_runtime.cuda import upload
from qpack_runtime.cuda.upload import upload_files

PIECE = 512


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(sizes=st.lists(st.integers(1, 4 * PIECE + 3), min_size=1, max_size=4), eager=st.booleans())
def test_every_byte_arrives_at_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int], eager: bool
):
    monkeypatch.setattr(upload, "PIECE_BYTES", PIECE)
    driver, rng = FakeDriver(eager=eager), np.random.default_rng(0)
    files: dict[Path, int] = {}
    wanted = np.full(len(sizes) * 8192, 0xA5, np.uint8)
    for index, size in enumerate(sizes):
        data = rng.integers(0, 256, size, np.uint8)
        path = tmp_path / f"{index}.bin"
        path.write_bytes(data.tobytes())
        files[path] = 8192 * index + 256
        wanted[files[path] : files[path] + size] = data
    base = driver.call("cuMemAlloc_v2", wanted.size)
    upload_files(driver, 1, base, files)
    assert np.array_equal(driver.memory[0], wanted)
    assert driver.names.count("cuMemHostAlloc") == driver.names.count("cuMemFreeHost") == 1
