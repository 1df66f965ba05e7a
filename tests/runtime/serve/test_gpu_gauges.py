"""The GPU's gauges: NVML's numbers in base units, what it doesn't tell left out, a scrape that never fails of it."""

import sys

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fake_nvml import ANSWERS, fake_nvml
from qpack_runtime.cuda.nvml import read_gauges
from qpack_runtime.serve.gpu_gauges import GpuGauges

# Readings of the fake GPU in Prometheus' base units.
READINGS = {
    ("qpack_device_memory_used_bytes", ""): 20 * 2**30,
    ("qpack_device_memory_total_bytes", ""): 24 * 2**30,
    ("qpack_gpu_temperature_celsius", ""): 71,
    ("qpack_gpu_slowdown_temperature_celsius", ""): 93,
    ("qpack_gpu_power_watts", ""): 187.5,
    ("qpack_gpu_clock_hertz", "sm"): 1.905e9,
    ("qpack_gpu_clock_hertz", "memory"): 9.501e9,
    ("qpack_gpu_max_clock_hertz", "sm"): 2.1e9,
    ("qpack_gpu_max_clock_hertz", "memory"): 9.751e9,
    ("qpack_gpu_throttled", "power_cap"): 1,
    ("qpack_gpu_throttled", "hardware_slowdown"): 0,
    ("qpack_gpu_throttled", "software_thermal_slowdown"): 0,
    ("qpack_gpu_throttled", "hardware_thermal_slowdown"): 0,
    ("qpack_gpu_throttled", "power_brake"): 0,
    ("qpack_gpu_pcie_bytes_per_second", "rx"): 1.2e6,
    ("qpack_gpu_pcie_bytes_per_second", "tx"): 3.4e5,
}
OF_CALL = {
    "nvmlDeviceGetMemoryInfo": "qpack_device_memory",
    "nvmlDeviceGetTemperature": "qpack_gpu_temperature",
    "nvmlDeviceGetTemperatureThreshold": "qpack_gpu_slowdown_temperature",
    "nvmlDeviceGetPowerUsage": "qpack_gpu_power",
    "nvmlDeviceGetClockInfo": "qpack_gpu_clock",
    "nvmlDeviceGetMaxClockInfo": "qpack_gpu_max_clock",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "qpack_gpu_throttled",
    "nvmlDeviceGetPcieThroughput": "qpack_gpu_pcie",
}
ERRORS = [pynvml.NVMLError(code) for code in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_GPU_IS_LOST)]


def scrape(gauges: GpuGauges) -> dict[tuple[str, str], float]:
    registry = CollectorRegistry()
    registry.register(gauges)
    families = text_string_to_metric_families(generate_latest(registry).decode("utf-8"))
    return {(one.name, "".join(one.labels.values())): one.value for family in families for one in family.samples}


def test_a_scrape_tells_what_nvml_tells_in_base_units(monkeypatch: pytest.MonkeyPatch):
    fake_nvml(monkeypatch)
    assert scrape(GpuGauges()) == pytest.approx(READINGS)


@given(missing=st.sets(st.sampled_from(sorted(OF_CALL))), error=st.sampled_from(ERRORS))
def test_what_the_gpu_does_not_tell_is_left_out_and_all_else_stays(missing: set[str], error: pynvml.NVMLError):
    with pytest.MonkeyPatch.context() as patch:
        fake_nvml(patch, **dict.fromkeys(missing, error))
        gone = tuple(OF_CALL[call] for call in missing)
        kept = {key: value for key, value in READINGS.items() if not key[0].startswith(gone)}
        assert scrape(GpuGauges()) == pytest.approx(kept)


def test_one_clock_of_two_is_told_alone(monkeypatch: pytest.MonkeyPatch):
    clocks = ANSWERS["nvmlDeviceGetClockInfo"] | {pynvml.NVML_CLOCK_MEM: ERRORS[0]}
    fake_nvml(monkeypatch, nvmlDeviceGetClockInfo=clocks)
    found = scrape(GpuGauges())
    assert ("qpack_gpu_clock_hertz", "sm") in found
    assert ("qpack_gpu_clock_hertz", "memory") not in found


def test_a_threshold_of_zero_is_none(monkeypatch: pytest.MonkeyPatch):
    """Else every temperature would be above it."""
    fake_nvml(monkeypatch, nvmlDeviceGetTemperatureThreshold=0)
    assert ("qpack_gpu_slowdown_temperature_celsius", "") not in scrape(GpuGauges())


def test_readings_of_zero_are_readings(monkeypatch: pytest.MonkeyPatch):
    fake_nvml(monkeypatch, nvmlDeviceGetCurrentClocksThrottleReasons=0, nvmlDeviceGetPcieThroughput=0)
    found = scrape(GpuGauges())
    assert [value for (name, _), value in found.items() if name == "qpack_gpu_throttled"] == [0] * 5
    assert found["qpack_gpu_pcie_bytes_per_second", "rx"] == 0


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetHandleByIndex"])
def test_without_nvml_there_are_no_gauges_and_the_reason_is_kept(monkeypatch: pytest.MonkeyPatch, call: str):
    fake_nvml(monkeypatch, **{call: pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)})
    gauges = GpuGauges()
    assert scrape(gauges) == {}
    assert "NVML" in gauges.absent
    gauges.close()


def test_without_the_library_there_are_no_gauges_and_its_install_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    gauges = GpuGauges()
    assert scrape(gauges) == {}
    assert "pip install 'qpack-llm[cuda]'" in gauges.absent


def test_nvml_is_opened_once_and_closed_once_and_not_asked_after(monkeypatch: pytest.MonkeyPatch):
    calls = fake_nvml(monkeypatch)
    gauges = GpuGauges()
    scrape(gauges)
    scrape(gauges)
    gauges.close()
    gauges.close()
    asked = len(calls)
    assert scrape(gauges) == {}
    assert (calls.count("nvmlInit"), calls.count("nvmlShutdown"), len(calls)) == (1, 1, asked)


def test_registering_does_not_ask_the_gpu(monkeypatch: pytest.MonkeyPatch):
    calls = fake_nvml(monkeypatch)
    CollectorRegistry(auto_describe=True).register(GpuGauges())
    assert calls == ["nvmlInit", "nvmlDeviceGetHandleByIndex"]


@pytest.mark.parametrize("handle", ["gpu 0", pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)])
def test_the_doctor_closes_what_it_opened_also_when_nvml_does_not_tell(monkeypatch: pytest.MonkeyPatch, handle):
    lost = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    calls = fake_nvml(monkeypatch, nvmlDeviceGetHandleByIndex=handle, nvmlDeviceGetCurrentClocksThrottleReasons=lost)
    assert "NVML does not tell" in str(read_gauges())
    assert calls.count("nvmlShutdown") == calls.count("nvmlInit") == 1
