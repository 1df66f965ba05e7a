"""What the GPU and its driver are: asked before anything is allocated, compared with what the bundle needs."""

import ctypes
from dataclasses import dataclass
from pathlib import Path

from qpack_runtime.cuda.driver import Driver
from qpack_schemas.bundle import Bundle
from qpack_schemas.errors import FitError, UnsupportedError
from qpack_schemas.manifest import compiled_targets
from qpack_schemas.targets import choose, cuda_version

DEVICE = 0  # the first that CUDA_VISIBLE_DEVICES shows
# CUdevice_attribute
INTEGRATED, MAJOR, MINOR, MAX_SHARED_BYTES = 18, 75, 76, 97
MEMORY_INFO = Path("/proc/meminfo")


@dataclass(frozen=True)
class Host:
    name: str  # "NVIDIA L4"
    sm: int  # 10 * major + minor of the compute capability
    driver: int  # as cuDriverGetVersion counts: 12040 = CUDA 12.4
    total_bytes: int
    free_bytes: int  # an integrated GPU shares its memory with the host: at most what the host has available
    integrated: bool
    max_shared_bytes: int  # of a block, after its kernel has asked for it

    def __str__(self) -> str:
        free = f"{self.free_bytes:,} of {self.total_bytes:,} bytes free"
        return f"{self.name} (sm_{self.sm}, CUDA {cuda_version(self.driver)}, {free})"


def read_host(driver: Driver) -> Host:
    """Initializes the driver and makes the context of device 0 current in this thread. Raises DriverError."""
    driver.call("cuInit", 0)
    device = driver.call("cuDeviceGet", DEVICE)
    name = ctypes.create_string_buffer(256)
    driver.call("cuDeviceGetName", name, len(name), device)
    integrated = bool(driver.call("cuDeviceGetAttribute", INTEGRATED, device))
    major, minor = (driver.call("cuDeviceGetAttribute", attribute, device) for attribute in (MAJOR, MINOR))
    driver.call("cuCtxSetCurrent", driver.call("cuDevicePrimaryCtxRetain", device))
    free, _ = driver.call("cuMemGetInfo_v2")
    return Host(
        name=name.value.decode("utf-8", "replace"),
        sm=10 * major + minor,
        driver=driver.call("cuDriverGetVersion"),
        total_bytes=driver.call("cuDeviceTotalMem_v2", device),
        free_bytes=min(free, available_bytes(MEMORY_INFO)) if integrated else free,
        integrated=integrated,
        max_shared_bytes=driver.call("cuDeviceGetAttribute", MAX_SHARED_BYTES, device),
    )


def available_bytes(file: Path) -> int:
    """MemAvailable of /proc/meminfo: free memory, and what the page cache would give up."""
    for line in file.read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise UnsupportedError("names no MemAvailable", where=str(file), remedy="boot a Linux kernel of 3.14 or newer")


def choose_target(bundle: Bundle, host: Host, *, allow_ptx: bool) -> str:
    """The name of the bundle's target that runs here.

    Raises UnsupportedError if none does, FitError if its arenas are larger than the GPU's free memory."""
    targets = bundle.manifest["targets"]
    name = choose(targets, host.sm, host.driver, host.total_bytes, allow_ptx)
    target = compiled_targets(targets)[name]
    if target["max_shared_bytes"] > host.max_shared_bytes:
        needs = f"{name} needs {target['max_shared_bytes']:,} bytes of shared memory in a block"
        raise UnsupportedError(
            f"{needs}, {host.name} gives {host.max_shared_bytes:,}", remedy=f"build with --target cuda:sm_{host.sm}"
        )
    if target["minimum_device_bytes"] > host.free_bytes:
        source = "the host has available" if host.integrated else "are free on the GPU"
        raise FitError(
            f"{name} needs {target['minimum_device_bytes']:,} bytes of device memory; of {host.total_bytes:,} bytes "
            f"{host.free_bytes:,} {source}",
            remedy="end other processes that use the GPU, or build with smaller --slots, --context or --batch",
        )
    return name
