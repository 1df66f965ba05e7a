"""Temperature, power, clocks, link and memory of GPU 0, read from NVML whenever Prometheus asks."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from qpack_runtime.cuda.nvml import THROTTLE_REASONS, open_gpu, or_none


class GpuGauges(Collector):
    """Holds NVML open until `close`. Without it there are no gauges, and `absent` says why.

    What the GPU doesn't have, or no longer tells, is left out of the scrape. A scrape waits 40 ms: NVML watches the
    link for 20 ms in each direction."""

    def __init__(self) -> None:
        opened = open_gpu()
        self.absent = opened if isinstance(opened, str) else ""
        self._opened = None if isinstance(opened, str) else opened

    def close(self) -> None:
        if self._opened:
            self._opened[0].nvmlShutdown()
            self._opened = None

    def describe(self) -> list[GaugeMetricFamily]:
        return []  # so that to register is not to scrape

    def collect(self) -> Iterator[GaugeMetricFamily]:
        return _read(*self._opened) if self._opened else iter(())


def _read(nvml: Any, gpu: Any) -> Iterator[GaugeMetricFamily]:
    """Families in Prometheus' base units: NVML tells mW, MHz and, of the link, KB/s."""
    ask = partial(or_none, nvml)
    memory = ask(nvml.nvmlDeviceGetMemoryInfo, gpu)
    yield from _gauge("qpack_device_memory_used_bytes", "Memory in use, by all processes.", memory and memory.used)
    yield from _gauge("qpack_device_memory_total_bytes", "Memory of the GPU.", memory and memory.total)

    celsius = ask(nvml.nvmlDeviceGetTemperature, gpu, nvml.NVML_TEMPERATURE_GPU)
    yield from _gauge("qpack_gpu_temperature_celsius", "Temperature of the GPU.", celsius)
    celsius = ask(nvml.nvmlDeviceGetTemperatureThreshold, gpu, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
    yield from _gauge("qpack_gpu_slowdown_temperature_celsius", "Where the GPU slows itself down.", celsius or None)
    yield from _gauge("qpack_gpu_power_watts", "What the board draws.", ask(nvml.nvmlDeviceGetPowerUsage, gpu), 1e-3)

    clocks = {"sm": nvml.NVML_CLOCK_SM, "memory": nvml.NVML_CLOCK_MEM}
    now = {name: ask(nvml.nvmlDeviceGetClockInfo, gpu, clock) for name, clock in clocks.items()}
    yield from _gauges("qpack_gpu_clock_hertz", "Clocks now.", "clock", now, 1e6)
    most = {name: ask(nvml.nvmlDeviceGetMaxClockInfo, gpu, clock) for name, clock in clocks.items()}
    yield from _gauges("qpack_gpu_max_clock_hertz", "The highest clocks of this GPU.", "clock", most, 1e6)

    bits = ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, gpu)
    held = {
        text.replace(" ", "_"): None if bits is None else int(bits & bit != 0) for bit, text in THROTTLE_REASONS.items()
    }
    yield from _gauges("qpack_gpu_throttled", "1 while this holds the clocks back.", "reason", held)

    ways = {"rx": nvml.NVML_PCIE_UTIL_RX_BYTES, "tx": nvml.NVML_PCIE_UTIL_TX_BYTES}  # rx: what the GPU receives
    traffic = {name: ask(nvml.nvmlDeviceGetPcieThroughput, gpu, way) for name, way in ways.items()}
    yield from _gauges("qpack_gpu_pcie_bytes_per_second", "Traffic on the link.", "direction", traffic, 1e3)


def _gauge(name: str, documentation: str, value: float | None, unit: float = 1) -> Iterator[GaugeMetricFamily]:
    if value is not None:
        yield GaugeMetricFamily(name, documentation, value * unit)


def _gauges(
    name: str, documentation: str, label: str, values: Mapping[str, float | None], unit: float = 1
) -> Iterator[GaugeMetricFamily]:
    family = GaugeMetricFamily(name, documentation, labels=[label])
    for value, amount in values.items():
        if amount is not None:
            family.add_metric([value], amount * unit)
    if family.samples:
        yield family
