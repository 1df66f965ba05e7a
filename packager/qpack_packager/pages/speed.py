"""How fast memory lets the bundle be: the roofline of every device that qpack has a data sheet of."""

from collections.abc import Sequence
from dataclasses import dataclass

from qpack_packager.commands.roofline import step_seconds, tokens_per_second
from qpack_packager.devices import DEVICES, Device
from qpack_packager.pages.axes import logarithmic
from qpack_packager.pages.charts import Point, Series, scatter
from qpack_packager.pages.render import Figure
from qpack_schemas.bundle import Bundle
from qpack_schemas.errors import UnsupportedError
from qpack_schemas.manifest import compiled_targets
from qpack_schemas.targets import architecture_number, choose
from qpack_schemas.traffic import Traffic

ANY_DRIVER = 99_990  # newer than what any target needs


@dataclass(frozen=True)
class DeviceSpeed:
    """One device: what the bundle has for it, and what no step can beat there, for each batch."""

    device: Device
    target: str | None  # whose kernels would run
    needs: int  # bytes of device memory
    seconds: Sequence[float]  # of a step, with its launches where the bundle has any
    tokens: Sequence[float]  # per second, of all sequences together, likewise
    tokens_by_bandwidth: Sequence[float]  # if launches took no time

    @property
    def share(self) -> float:
        """Of the device's memory, that the bundle takes; above 1 it doesn't fit."""
        return self.needs / self.device.memory_bytes

    @property
    def gigabytes_per_second(self) -> float:
        return self.device.bytes_per_second / 1e9


def decode_launches(bundle: Bundle) -> int:
    """Kernels of a decode step, the most of any target; 0 if the bundle has none."""
    return max((len(tables["decode"].launches) for tables in bundle.tables.values()), default=0)


def device_speeds(bundle: Bundle, steps: Sequence[Traffic]) -> list[DeviceSpeed]:
    """Of every known device, slowest memory first. One that the bundle has no kernels for is taken to need as many
    launches as those that it has kernels for."""
    devices = sorted(DEVICES, key=lambda device: (device.bytes_per_second, device.name))
    return [_speed(bundle, device, steps) for device in devices]


def _speed(bundle: Bundle, device: Device, steps: Sequence[Traffic]) -> DeviceSpeed:
    targets = compiled_targets(bundle.manifest["targets"])
    name = _target(bundle, device)
    launches = len(bundle.tables[name]["decode"].launches) if name else decode_launches(bundle)
    return DeviceSpeed(
        device,
        name,
        targets[name]["minimum_device_bytes"] if name else bundle.manifest["memory"]["minimum_device_bytes"],
        [step_seconds(step, device, launches) for step in steps],
        [tokens_per_second(step, device, launches) for step in steps],
        [tokens_per_second(step, device) for step in steps],
    )


def _target(bundle: Bundle, device: Device) -> str | None:
    try:
        number = architecture_number(device.architecture)
        return choose(bundle.manifest["targets"], number, ANY_DRIVER, None, allow_ptx=True)
    except UnsupportedError:
        return None


def roofline(speeds: Sequence[DeviceSpeed], steps: Sequence[Traffic], launches: int) -> Figure:
    """Tokens per second over bandwidth, both logarithmic, a line for each batch. `launches`: of a step, if known."""
    series: list[Series] = []
    named_first = sorted(speeds, key=lambda one: (one.target is None, not one.device.typical))
    for batch, step in enumerate(steps):
        points = [
            Point(
                one.gigabytes_per_second,
                one.tokens[batch],
                f"{one.device.name}, batch {step.rows}: at most {one.tokens[batch]:,.0f} tokens/s",
                one.device.name if batch == 0 else "",
                hollow=one.target is None,
            )
            for one in named_first
        ]
        line = [(one.gigabytes_per_second, one.tokens[batch]) for one in speeds]
        series.append(Series(_colour(batch), points, line))
    if launches:
        roof = [(one.gigabytes_per_second, one.tokens_by_bandwidth[0]) for one in speeds]
        series.insert(0, Series(_colour(0), (), roof, dashed=True))
    x = logarithmic((one.gigabytes_per_second for one in speeds), _rate, "memory bandwidth, GB/s")
    rates = [rate for one in series for _, rate in one.line]
    bent = f", until the {launches} launches of a step take longer than its bytes (dashed: without them)"
    hollow = any(one.target is None for one in speeds)
    return Figure(
        "Roofline",
        scatter(
            f"Tokens per second of {len(speeds)} devices over their memory bandwidth, in {len(steps)} batch sizes",
            series,
            x,
            logarithmic(rates, _rate, "tokens/s at most"),
            height=300,
        ),
        f"Decoding is bound by memory: the faster it is read, the more tokens{bent if launches else ''}."
        f"{' Hollow: the bundle has no kernels for this device.' if hollow else ''}",
        [(_colour(batch), f"batch {step.rows}") for batch, step in enumerate(steps)],
    )


def seconds_text(seconds: float) -> str:
    """Three digits, in the unit that suits them."""
    unit, size = ("ms", 1e-3) if seconds >= 1e-3 else ("μs", 1e-6)
    return f"{seconds / size:.3g} {unit}" if seconds < 1 else f"{seconds:,.2f} s"


def _colour(batch: int) -> int:
    return (1, 3, 2, 4, 6, 5, 8, 7)[batch % 8]


def _rate(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:,.3g}M"
    return f"{value / 1000:,.3g}k" if value >= 1000 else f"{value:,.0f}"
