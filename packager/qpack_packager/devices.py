"""What NVIDIA's data sheets say about the devices that bundles run on: devices.json."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Device:
    """`memory_bytes` takes the data sheet's GB for 10^9 bytes; the rest of it is left to driver and display."""

    name: str
    architecture: str  # of its kernels: sm_89
    sms: int  # streaming multiprocessors
    memory_bytes: int
    bytes_per_second: float
    source: str
    typical: bool  # the one that tiles of its architecture are chosen for


def _read() -> tuple[Device, ...]:
    entries = json.loads(Path(__file__).with_name("devices.json").read_text(encoding="utf-8"))
    return tuple(
        Device(
            entry["name"],
            entry["architecture"],
            entry["sms"],
            entry["memory_gb"] * 10**9,
            entry["bandwidth_gbs"] * 1e9,
            f"NVIDIA, {entry['source']}",
            entry.get("typical", False),
        )
        for entry in entries
    )


DEVICES = _read()


def typical(architecture: str) -> Device:
    """The device whose figures stand for an architecture; one cubin serves them all."""
    (device,) = (device for device in DEVICES if device.typical and device.architecture == architecture)
    return device
