"""What NVIDIA's management library says of GPU 0: clocks, link, persistence, temperature. Absent on Jetsons."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Gauges:
    sm_mhz: int
    max_sm_mhz: int
    memory_mhz: int
    max_memory_mhz: int
    temperature_c: int
    slowdown_c: int | None  # where the GPU throttles
    throttled_by: tuple[str, ...]
    pcie_generation: int
    max_pcie_generation: int
    pcie_lanes: int
    max_pcie_lanes: int
    persistent: bool
    exclusive: bool  # one process only
    mig: bool  # the GPU is cut into instances


# nvmlClocksEventReasons, those that cost speed: NVML API reference.
THROTTLE_REASONS = {
    0x4: "power cap", 0x8: "hardware slowdown", 0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown",
    0x80: "power brake",
}  # fmt: skip


def open_gpu() -> tuple[Any, Any] | str:
    """The library `pynvml` and its handle of GPU 0, or why there is none. Who opens it calls nvmlShutdown."""
    try:
        import pynvml as nvml
    except ModuleNotFoundError:
        return "nvidia-ml-py is not installed: pip install 'qpack-llm[cuda]'"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return f"NVML does not answer: {error}"
    try:
        return nvml, nvml.nvmlDeviceGetHandleByIndex(0)
    except nvml.NVMLError as error:
        nvml.nvmlShutdown()
        return f"NVML does not tell: {error}"


def read_gauges() -> Gauges | str:
    """The gauges, or why there are none."""
    opened = open_gpu()
    if isinstance(opened, str):
        return opened
    nvml, gpu = opened
    try:
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
        return Gauges(
            sm_mhz=nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
            max_sm_mhz=nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM),
            memory_mhz=nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
            max_memory_mhz=nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_MEM),
            temperature_c=nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
            slowdown_c=or_none(
                nvml, nvml.nvmlDeviceGetTemperatureThreshold, gpu, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
            ),
            throttled_by=tuple(text for bit, text in THROTTLE_REASONS.items() if reasons & bit),
            pcie_generation=nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu),
            max_pcie_generation=nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu),
            pcie_lanes=nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu),
            max_pcie_lanes=nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu),
            persistent=bool(or_none(nvml, nvml.nvmlDeviceGetPersistenceMode, gpu)),
            exclusive=nvml.nvmlDeviceGetComputeMode(gpu) == nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
            mig=bool((or_none(nvml, nvml.nvmlDeviceGetMigMode, gpu) or [0])[0]),
        )
    except nvml.NVMLError as error:
        return f"NVML does not tell: {error}"
    finally:
        nvml.nvmlShutdown()


def or_none(nvml: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """None where the GPU has no such thing."""
    try:
        return function(*arguments)
    except nvml.NVMLError:
        return None
