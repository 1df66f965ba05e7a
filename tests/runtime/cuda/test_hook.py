"""What stands in for the GPU computes what a kernel says from its argument bytes, and notices a host's mistakes."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuda_client import fnv
from cuda_hook import Interpreter

IMAGE = b"the image of a kernel"
R, WIDTH = 3, 5
KERNEL: Any = {
    "file": "kernel", "sha256": "", "function": "silu.silu_mul", "block": 64, "shared_bytes": 0, "registers": 8,
    "spills": 0, "params": [["x", "*fp32"], ["y", "*fp32"], ["R", "i32"]],
    "constants": {"bias": None, "I": WIDTH, "PLANES": 0, "BLOCK": 8},
}  # fmt: skip
DIMS = (1, R, 1, 64, 1, 1)


def aligned(shape: tuple[int, ...], fill: float) -> np.ndarray:
    """float32 at a multiple of 16 bytes, with eight more elements behind it."""
    raw = np.full(int(np.prod(shape)) + 16, fill, np.float32)
    begin = -raw.ctypes.data % 16 // 4
    return raw[begin : begin + int(np.prod(shape)) + 8]


def arguments(x: int, y: int, scratch: int = 0) -> bytes:
    return struct.pack("<QQi4xQQ", x, y, R, scratch, 0)


def hook(tmp_path: Path, **changes: Any) -> Interpreter:
    (tmp_path / "kernel").write_bytes(IMAGE)
    target: Any = {"kernels": {"silu_mul_1": {**KERNEL, **changes}}}
    return Interpreter(tmp_path, target)


@pytest.mark.parametrize("backwards", [False, True])
def test_a_launch_computes_on_the_memory_it_is_given(tmp_path: Path, backwards: bool):
    x, y = aligned((R, 2 * WIDTH), 0), aligned((R, WIDTH), -7)
    x[: R * 2 * WIDTH] = np.linspace(-3, 4, R * 2 * WIDTH)
    run = hook(tmp_path)
    run.backwards = backwards
    run("silu_mul_1", fnv(IMAGE), DIMS, arguments(x.ctypes.data, y.ctypes.data))
    gate, up = np.split(x[: R * 2 * WIDTH].reshape(R, -1), 2, axis=1)
    expected = gate / (1 + np.exp(-gate)) * up
    np.testing.assert_allclose(y[: R * WIDTH].reshape(R, WIDTH), expected, rtol=1e-6)
    assert (y[R * WIDTH :] == -7).all()
    assert dict(run.programs) == {"silu_mul_1": R}


def test_backwards_is_the_other_way_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Rows of an output that all lie at the same place: what stays is the last that was run."""
    x, y = aligned((R, 2 * WIDTH), 0), aligned((R, WIDTH), -7)
    x[: R * 2 * WIDTH] = np.repeat([1.0, 2.0, 3.0], 2 * WIDTH)
    run = hook(tmp_path)
    seen: list[tuple[int, ...]] = []
    from triton.runtime.interpreter import interpreter_builder

    builder: Any = interpreter_builder
    whole = type(builder).set_grid_idx
    monkeypatch.setattr(type(builder), "set_grid_idx", lambda self, *at: (seen.append(at), whole(self, *at))[1])
    for run.backwards in (False, True):
        run("silu_mul_1", fnv(IMAGE), DIMS, arguments(x.ctypes.data, y.ctypes.data))
    assert seen == [(0, 0, 0), (0, 1, 0), (0, 2, 0), (0, 2, 0), (0, 1, 0), (0, 0, 0)]


def test_mistakes_of_the_host_are_noticed(tmp_path: Path):
    x, y = aligned((R, 2 * WIDTH), 0), aligned((R, WIDTH), 0)
    good = arguments(x.ctypes.data, y.ctypes.data)
    run = hook(tmp_path)
    for image, dims, given, what in (
        (fnv(IMAGE) + 1, DIMS, good, "another kernel"),
        (fnv(IMAGE), (1, R, 1, 32, 1, 1), good, "blocks of"),
        (fnv(IMAGE), DIMS, arguments(x.ctypes.data + 4, y.ctypes.data), "not aligned"),
        (fnv(IMAGE), DIMS, arguments(x.ctypes.data, y.ctypes.data, scratch=256), "no null pointers"),
    ):
        with pytest.raises(AssertionError, match=what):
            run("silu_mul_1", image, dims, given)
    with pytest.raises(KeyError):
        run("silu_mul_2", fnv(IMAGE), DIMS, good)
    with pytest.raises(AssertionError, match="silu_mul"):
        hook(tmp_path, constants={"bias": None, "I": WIDTH, "PLANES": 0})


def test_a_kernel_that_leaves_its_memory_is_stopped(tmp_path: Path):
    x, y = aligned((R, 2 * WIDTH), 0), aligned((R, WIDTH), -7)
    run = hook(tmp_path)
    spans = [(array.ctypes.data, 4 * count) for array, count in ((x, R * 2 * WIDTH), (y, R * WIDTH))]
    run.holds = lambda at, count: any(begin <= at and at + count <= begin + size for begin, size in spans)
    good = arguments(x.ctypes.data, y.ctypes.data)
    run("silu_mul_1", fnv(IMAGE), DIMS, good)
    for grid in (R + 1, 10**6):
        with pytest.raises(Exception, match="nobody allocated"):
            run("silu_mul_1", fnv(IMAGE), (1, grid, 1, 64, 1, 1), good)
    assert (y[R * WIDTH :] == -7).all()
