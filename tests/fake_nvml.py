"""NVML with answers of the test's choice: the real `pynvml` module, whose calls are replaced one by one."""

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

# A GPU in full use. A call that isn't here fails the test: pynvml would ask the library for it.
ANSWERS: dict[str, Any] = {
    "nvmlInit": None,
    "nvmlShutdown": None,
    "nvmlDeviceGetHandleByIndex": "gpu 0",
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=24 << 30, free=4 << 30, used=20 << 30),
    "nvmlDeviceGetTemperature": {pynvml.NVML_TEMPERATURE_GPU: 71},
    "nvmlDeviceGetTemperatureThreshold": {pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN: 93},
    "nvmlDeviceGetPowerUsage": 187_500,
    "nvmlDeviceGetClockInfo": {pynvml.NVML_CLOCK_SM: 1_905, pynvml.NVML_CLOCK_MEM: 9_501},
    "nvmlDeviceGetMaxClockInfo": {pynvml.NVML_CLOCK_SM: 2_100, pynvml.NVML_CLOCK_MEM: 9_751},
    "nvmlDeviceGetCurrentClocksThrottleReasons": pynvml.nvmlClocksEventReasonSwPowerCap,
    "nvmlDeviceGetPcieThroughput": {pynvml.NVML_PCIE_UTIL_RX_BYTES: 1_200, pynvml.NVML_PCIE_UTIL_TX_BYTES: 340},
}


def fake_nvml(patch: pytest.MonkeyPatch, **changes: Any) -> list[str]:
    """Puts the answers in place, `changes` over ANSWERS, and returns the names of the calls as they are made.

    An answer is a value, a table by the call's last argument, or an NVMLError to raise."""
    calls: list[str] = []
    for name, answer in (ANSWERS | changes).items():
        patch.setattr(pynvml, name, _call(name, answer, calls))
    return calls


def _call(name: str, answer: Any, calls: list[str]) -> Any:
    def call(*arguments: Any) -> Any:
        calls.append(name)
        told = answer[arguments[-1]] if isinstance(answer, dict) else answer
        if isinstance(told, pynvml.NVMLError):
            raise told
        return told

    return call
