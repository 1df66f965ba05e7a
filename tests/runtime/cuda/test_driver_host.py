"""What a GPU is compared with before anything is allocated on it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fake_driver import FakeDriver
from qpack_runtime.cuda import host as host_module
from qpack_runtime.cuda.host import Host, available_bytes, choose_target, read_host
from qpack_schemas.bundle import Bundle
from qpack_schemas.errors import FitError, QpackError, UnsupportedError

L4 = Host("NVIDIA L4", 89, 12_080, 24_000_000_000, 20_000_000_000, False, 101_376)
SM_89 = {
    "architecture": "sm_89", "scope": "major", "format": "cubin", "min_driver": 12_000, "max_shared_bytes": 65_536,
    "work_bytes": {"decode-b1-c64": 10}, "minimum_device_bytes": 1_000_000_000,
}  # fmt: skip


def bundle_with(**targets: Any) -> Bundle:
    entries = {f"cuda:{name}": {**SM_89, **changes} for name, changes in targets.items()}
    return cast(Bundle, SimpleNamespace(manifest={"targets": {"cpu": {}, **entries}}))


def refused(bundle: Bundle, host: Host, kind: type[QpackError]) -> str:
    with pytest.raises(kind) as raised:
        choose_target(bundle, host, allow_ptx=False)
    assert raised.value.remedy
    return str(raised.value)


def test_the_facts_are_the_drivers(monkeypatch: pytest.MonkeyPatch):
    driver = FakeDriver()
    assert read_host(driver) == Host("Fake L4", 89, 12_080, 24 * 10**9, 20 * 10**9, False, 101_376)
    assert not {"cuMemAlloc_v2", "cuMemHostAlloc", "cuModuleLoadData"} & set(driver.names)
    driver.attributes[18] = 1
    monkeypatch.setattr(host_module, "available_bytes", lambda file: 5 * 10**9)
    assert read_host(driver).free_bytes == 5 * 10**9  # the host's own programs use the same memory
    driver.free = 4 * 10**9
    assert read_host(driver).free_bytes == 4 * 10**9


def test_available_memory_is_read_in_kib(tmp_path: Path):
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:       16265764 kB\nMemFree: 1 kB\nMemAvailable:   12345 kB\n", encoding="ascii")
    assert available_bytes(file) == 12345 * 1024
    file.write_text("MemTotal:       16265764 kB\n", encoding="ascii")
    with pytest.raises(UnsupportedError, match="MemAvailable"):
        available_bytes(file)


def test_the_target_of_the_gpu_is_chosen():
    assert choose_target(bundle_with(sm_89={}, sm_80={"architecture": "sm_80"}), L4, allow_ptx=False) == "cuda:sm_89"


def test_another_gpu_is_told_both_architectures():
    message = refused(bundle_with(sm_89={}), replace(L4, sm=75), UnsupportedError)
    assert "sm_75" in message
    assert "cuda:sm_89" in message


def test_an_old_driver_is_told_both_versions():
    message = refused(bundle_with(sm_89={"min_driver": 13_000}), L4, UnsupportedError)
    assert "12.8" in message
    assert "13.0" in message


def test_shared_memory_that_the_gpu_lacks_is_told_with_both_sizes():
    message = refused(bundle_with(sm_89={"max_shared_bytes": 166_912}), L4, UnsupportedError)
    assert "166,912" in message
    assert "101,376" in message


def test_a_gpu_too_small_and_one_that_is_in_use_are_told_apart():
    large = bundle_with(sm_89={"minimum_device_bytes": 21_000_000_000})
    busy = refused(large, L4, FitError)
    assert "21,000,000,000" in busy
    assert "20,000,000,000 are free on the GPU" in busy
    assert "other processes" in busy
    small = refused(large, replace(L4, total_bytes=8_000_000_000), FitError)
    assert "8000000000" in small.replace(",", "")
    assert "the host has available" in refused(large, replace(L4, integrated=True), FitError)
