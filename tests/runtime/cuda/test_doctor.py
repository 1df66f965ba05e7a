"""`qpack-runtime doctor`: the verdict is that of a boot, every finding that is not fine has a remedy, nothing is
allocated."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cuda_host import TARGET, run_runtime
from qpack_runtime.cuda.doctor import CAPTURE_FAILURES, judge
from qpack_runtime.cuda.nvml import Gauges

COOL = Gauges(
    sm_mhz=1500, max_sm_mhz=2000, memory_mhz=6000, max_memory_mhz=6000, temperature_c=50, slowdown_c=90,
    throttled_by=(), pcie_generation=4, max_pcie_generation=4, pcie_lanes=16, max_pcie_lanes=16, persistent=True,
    exclusive=False, mig=False,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(cuda_bundle: Callable[[str, str], Path]) -> Path:
    return cuda_bundle("tiny-qwen3", "float32")


@pytest.fixture
def doctor(stub_library: Path, tmp_path: Path):
    """The findings, the exit code and the calls that were made, on a stub with `settings`."""

    def ask(bundle: Path, **settings: int):
        log = tmp_path / "log"
        variables = {"LOG": str(log), **settings}
        ran = run_runtime(stub_library, "doctor", str(bundle), "--format", "json", settings=variables)
        assert "Traceback" not in ran.stderr, ran.stderr
        calls = log.read_text(encoding="ascii") if log.exists() else ""
        return {one["check"]: one for one in json.loads(ran.stdout)["findings"]}, ran.returncode, calls

    return ask


def test_a_host_that_can_boot_is_told_its_target_and_nothing_is_allocated(doctor, folder: Path):
    found, code, calls = doctor(folder)
    assert code == 0
    assert found["target"]["level"] == "ok"
    assert TARGET in found["target"]["found"]
    assert not re.search(r"cuMemAlloc|cuMemHostAlloc|cuModuleLoad|cuGraph", calls)


@pytest.mark.parametrize(
    ("settings", "code", "told"),
    [({"CC": 80}, 4, "sm_80"), ({"DRIVER": 11080}, 4, "11.8"), ({"MEM": 100_000}, 6, "100,000")],
)
def test_a_host_that_cannot_boot_gets_the_code_of_a_boot(doctor, folder: Path, settings, code: int, told: str):
    found, returned, _ = doctor(folder, **settings)
    assert returned == code
    assert found["target"]["level"] == "failure"
    assert told in found["target"]["found"]
    assert found["target"]["remedy"]


def test_memory_that_is_just_enough_is_a_warning(doctor, folder: Path):
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    found, code, _ = doctor(folder, MEM=manifest["targets"][TARGET]["minimum_device_bytes"] + 100)
    assert code == 0
    assert found["target"]["level"] == "warning"


def test_a_damaged_bundle_is_found_before_the_gpu_is_asked(doctor, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    found, code, calls = doctor(tmp_path / "empty")
    assert (code, set(found)) == (5, {"bundle"})
    assert "cuInit" not in calls


def test_a_cool_gpu_at_full_width_gives_no_warning():
    assert {one.level for one in judge(COOL)} == {"ok"}


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"throttled_by": ("power cap",)}, "clocks"),
        ({"temperature_c": 88}, "temperature"),
        ({"pcie_lanes": 4}, "link"),
        ({"persistent": False}, "persistence"),
        ({"mig": True}, "MIG"),
    ],
)
def test_what_slows_a_decoder_down_is_a_warning_with_a_remedy(change, check: str):
    warnings = [one for one in judge(replace(COOL, **change)) if one.level == "warning"]
    assert [one.check for one in warnings] == [check]
    assert warnings[0].remedy


def test_every_known_failure_of_a_capture_says_how_it_shows_why_and_what_to_do():
    assert all(all(part.strip() for part in row) for row in CAPTURE_FAILURES)
    assert any("900" in shown for shown, _, _ in CAPTURE_FAILURES)
    assert any("901" in shown for shown, _, _ in CAPTURE_FAILURES)
