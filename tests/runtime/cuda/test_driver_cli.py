"""`qpack-runtime generate --device cuda` as its user sees it on a host that can't, and what is refused elsewhere."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from fake_driver import FakeDriver
from qpack_runtime.cli import main
from qpack_runtime.cuda import executor as executor_module
from qpack_runtime.cuda.driver import Driver


def generate(bundle: Path, *arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["generate", str(bundle), "--prompt", "And", "--max-tokens", "2", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_a_host_without_a_driver_ends_with_4(tiny_bundle: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(executor_module, "Driver", lambda: Driver("libcuda-that-is-not-there.so.1"))
    code, printed, told = generate(tiny_bundle("tiny-qwen3"), "--device", "cuda")
    assert (code, printed) == (4, "")
    assert "no NVIDIA driver" in told
    assert "remedy: " in told


def test_a_bundle_without_kernels_ends_with_4_and_the_flag_to_build_it_with(
    tiny_bundle: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(executor_module, "Driver", FakeDriver)
    code, printed, told = generate(tiny_bundle("tiny-qwen3"), "--device", "cuda")
    assert (code, printed) == (4, "")
    assert "--target cuda:sm_89" in told


@pytest.mark.parametrize("flag", ["--allow-eager", "--allow-ptx"])
def test_permissions_for_a_gpu_are_refused_without_one(tiny_bundle: Callable[[str], Path], flag: str):
    code, printed, told = generate(tiny_bundle("tiny-qwen3"), flag)
    assert (code, printed) == (2, "")
    assert "--allow" in told
