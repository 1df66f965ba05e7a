"""Weight files of any size arrive whole, each at its own place."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fake_driver import FakeDriver
from qpack_runtime.cuda import upload
from qpack_runtime.cuda.memory import place_files
from qpack_runtime.cuda.upload import upload_files
from qpack_schemas.bundle import Bundle
from qpack_schemas.errors import IntegrityError

PIECE = 512


def bundle_of(root: Path, sizes: list[int], planned: int) -> Bundle:
    files: list[dict[str, Any]] = [{"path": "manifest-is-none", "bytes": 7}]
    files += [{"path": f"weights/{index:05}.safetensors", "bytes": size} for index, size in enumerate(sizes)]
    manifest = {"files": files[::-1], "memory": {"weights_bytes": planned}}
    return cast(Bundle, SimpleNamespace(path=root, manifest=manifest))


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


def test_files_lie_one_behind_the_other_by_name(tmp_path: Path):
    places = place_files(bundle_of(tmp_path, [512, 256, 1000], 1768))
    assert {path.name: place for path, place in places.items()} == {
        "00000.safetensors": 0,
        "00001.safetensors": 512,
        "00002.safetensors": 768,
    }


def test_files_that_need_gaps_the_plan_does_not_have_are_refused_with_both_sizes(tmp_path: Path):
    with pytest.raises(IntegrityError, match=r"is 557, .* take 768") as raised:
        place_files(bundle_of(tmp_path, [301, 256], 557))
    assert raised.value.exit_code == 5
