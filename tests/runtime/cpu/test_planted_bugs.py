"""Bugs planted in the sources of the CPU kernels, which the check of row independence must notice.

All are compiled into one library, of the portable path alone; a number in it says which one is on.
"""

import ctypes
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bundles import ASSETS, build_bundle
from executors import Kind
from qpack_runtime.cpu import native
from qpack_schemas.bundle import open_bundle
from row_runs import OPTIONS, is_noticed, prompt_of

sys.path.append(str(Path(__file__).parents[3] / "scripts"))

import build_cpu

# Source, an expression that it has once, and what takes its place; BUG is whether this bug is on.
BUGS = {
    "padding sits on the live slot": [
        ("rows.h", "live ? slot : call.program.scratch_slot", "live || BUG ? slot : call.program.scratch_slot"),
        ("rows.h", "call.program.active = length", "call.program.active = BUG ? call.operand(PROMPT).dims[0] : length"),
    ],
    "a sum depends on the rows beside it": [
        (
            "linear_quantized.h",
            "fma(products[n][m], scale * factors[m], totals[n][m])",
            "fma(products[n][m] * (BUG && M > 1 ? 0.5f : 1.0f), scale * factors[m], "
            "fma(products[n][m] * (BUG && M > 1 ? 0.5f : 0.0f), scale * factors[m], totals[n][m]))",
        ),
    ],
    "a product depends on the number of threads": [
        (
            "linear_quantized.h",
            "row * outputs + column, total, count",
            "row * outputs + column, BUG && call.worker.threads > 2 ? total * 1.0000002f : total, count",
        ),
    ],
    "the ring is not masked where a slot begins": [
        ("convolution.h", "position < taps - 1 ? position", "position < taps - 1 && !BUG ? position"),
    ],
    "the memory is not reset where a slot begins": [
        ("delta.h", "fresh = positions[row] == 0", "fresh = positions[row] == 0 && !BUG"),
    ],
    "a key too many": [
        ("attention.h", "positions[row + query / at.heads] + 1", "positions[row + query / at.heads] + (BUG ? 2 : 1)"),
    ],
    "the last block of keys is left out, but only of few rows": [
        ("attention.h", "block <= positions[row] / KEYS", "block <= positions[row] / KEYS - BUG"),
    ],
}
DECLARED = '#pragma once\nextern "C" __attribute__((visibility("default"))) int qpack_bug;\n'


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library with all bugs, and none of them on."""
    folder = tmp_path_factory.mktemp("bugs")
    sources = shutil.copytree(build_cpu.SOURCES, folder / "kernels")
    for number, changes in enumerate(BUGS.values(), 1):
        for name, old, new in changes:
            path = sources / name
            text = path.read_text(encoding="utf-8")
            assert text.count(old) == 1, f"{name} has changed: plant anew what stands for {old!r}"
            path.write_text(text.replace(old, new.replace("BUG", f"(qpack_bug == {number})")), encoding="utf-8")
    for name, text in (("threads.h", DECLARED), ("api.cpp", "int qpack_bug = 0;\n")):
        path = sources / name
        path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_cpu, "SOURCES", sources)
        patch.setattr(build_cpu, "PATHS", {})
        build_cpu.build(folder / "broken.so", build_cpu.find_compiler(), [])
    return folder / "broken.so"


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["fast", "exact"])
def test_each_bug_is_noticed_and_nothing_where_there_is_none(mode, broken: Path, tmp_path: Path, monkeypatch):
    """In float32, where a difference in the last bit isn't rounded away."""
    monkeypatch.setattr(native, "LIBRARY", broken)
    bug = ctypes.c_int.in_dll(ctypes.CDLL(str(broken)), "qpack_bug")
    options = replace(OPTIONS, dtype="float32")
    bundle = open_bundle(build_bundle(ASSETS / "tiny-qwen3_5", tmp_path / "bundle", options))
    executors = [Kind(mode, "portable").make(bundle, threads) for threads in (1, 2, 3)]
    prompt = prompt_of(bundle, 150)
    for bug.value, name in enumerate(["none", *BUGS]):
        assert is_noticed(executors, bundle, prompt) == (name != "none"), name
