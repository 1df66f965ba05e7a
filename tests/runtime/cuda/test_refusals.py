"""`qpack-runtime generate --device cuda` in a process of its own: what it refuses, and that it runs."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cuda_host import TARGET, run_runtime
from drafts import replace
from qpack_schemas.launch_table import table_path
from target_drafts import TargetDraft

GENERATE = ("--device", "cuda", "--prompt", "And", "--max-tokens", "3", "--format", "json")
RUNS = re.compile(r"cuMemAlloc|cuMemHostAlloc|cuModuleLoad|cuGraph|cuLaunch|cuMemcpy")


@pytest.fixture(scope="module")
def folder(cuda_bundle: Callable[[str, str], Path]) -> Path:
    return cuda_bundle("tiny-qwen3", "float32")


@pytest.fixture
def refused(stub_library: Path, tmp_path: Path) -> Callable[..., str]:
    """Asserts that a bundle is refused with `code` before anything is allocated or loaded. Returns what it says."""

    def told(folder: Path, code: int, **settings: int) -> str:
        log = tmp_path / "log"
        variables = {"LOG": str(log), **settings}
        ran = run_runtime(stub_library, "generate", str(folder), *GENERATE, settings=variables)
        assert (ran.returncode, "Traceback" in ran.stderr) == (code, False), ran.stderr
        calls = log.read_text(encoding="ascii") if log.exists() else ""
        assert not RUNS.search(calls), calls
        return ran.stderr + ran.stdout

    return told


def test_another_gpu_is_told_what_the_bundle_has(refused: Callable[..., str], folder: Path):
    told = refused(folder, 4, CC=80)
    assert TARGET in told
    assert "sm_80" in told or "8.0" in told


def test_a_gpu_with_an_old_driver_is_told_both_versions(refused: Callable[..., str], folder: Path):
    told = refused(folder, 4, DRIVER=11080)
    assert "11.8" in told
    assert "12.0" in told


def test_too_little_memory_is_told_in_bytes_with_the_buckets_that_would_fit(refused: Callable[..., str], folder: Path):
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    needed = manifest["targets"][TARGET]["minimum_device_bytes"]
    told = refused(folder, 6, MEM=needed - 1).replace(",", "")
    assert f"{needed} bytes" in told
    assert str(needed - 1) in told
    assert "decode-b1-c64" in told


def test_a_changed_kernel_is_named(refused: Callable[..., str], folder: Path, tmp_path: Path):
    changed = shutil.copytree(folder, tmp_path / "changed")
    kernel = min((changed / "kernels" / "sm_89").glob("*.cubin"))
    data = bytearray(kernel.read_bytes())
    data[len(data) // 2] ^= 1
    replace(kernel, bytes(data))
    assert kernel.name in refused(changed, 5)


def test_a_buffer_outside_its_arena_is_named(refused: Callable[..., str], folder: Path, tmp_path: Path):
    draft = TargetDraft.read_target(folder, TARGET)
    name, buffer = max(draft.tables["decode"]["work"].items(), key=lambda item: item[1]["offset"])
    buffer["offset"] += 1 << 20
    told = refused(draft.write(tmp_path / "changed"), 5)
    assert table_path(TARGET, "decode") in told or "work_bytes" in told
    assert name in told or "work_bytes" in told


def test_the_command_gives_the_tokens_of_the_reference(stub_library: Path, folder: Path):
    ran = run_runtime(stub_library, "generate", str(folder), *GENERATE, settings={}, computing=True)
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    other = run_runtime(stub_library, "generate", str(folder), "--device", "reference", *GENERATE[2:], settings={})
    assert said["output_ids"] == json.loads(other.stdout)["output_ids"]
    assert said["device"] == "cuda"
