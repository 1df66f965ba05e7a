"""`qpack-runtime doctor`: this host against a bundle, before anything is allocated. Each finding has its remedy."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from qpack_runtime.cuda.driver import Driver
from qpack_runtime.cuda.host import Host, choose_target, read_host
from qpack_runtime.cuda.nvml import Gauges, read_gauges
from qpack_schemas.bundle import Bundle, open_bundle
from qpack_schemas.errors import QpackError
from qpack_schemas.manifest import compiled_targets
from qpack_schemas.targets import cuda_version

Level = Literal["ok", "warning", "failure"]


@dataclass(frozen=True)
class Diagnosis:
    check: str
    level: Level
    found: str
    remedy: str = ""
    exit_code: int = 0  # of a failure: what a boot would end with


# How the driver's refusals to make a graph show, and what they come from: CUDA Driver API, "Graph Management".
CAPTURE_FAILURES = (
    ("cuGraphAddKernelNode: INVALID_VALUE (1)", "a grid, block or shared memory that this GPU doesn't take",
     "the bundle is for another GPU: build with its --target"),
    ("cuGraphInstantiate: OUT_OF_MEMORY (2)", "graphs take memory of the device beside the arenas",
     "end other processes on the GPU, or build with fewer buckets"),
    ("cuStreamEndCapture: STREAM_CAPTURE_INVALIDATED (901)", "another library in the process used the legacy stream",
     "run the runtime in a process of its own"),
    ("cuModuleLoadData during capture: STREAM_CAPTURE_UNSUPPORTED (900)", "kernels loaded lazily, on first launch",
     "leave CUDA_MODULE_LOADING unset: the runtime sets EAGER"),
    ("node N differs from the launch table", "a tool or a driver rewrote the graph",
     "leave profilers and injection libraries (CUDA_INJECTION64_PATH, LD_PRELOAD) out"),
    ("every step fails: ILLEGAL_ADDRESS (700)", "a kernel reached beyond its arena",
     "validate the bundle, then run scripts/gpu_check.py under compute-sanitizer"),
)  # fmt: skip


def diagnose(path: Path, *, allow_ptx: bool = False) -> list[Diagnosis]:
    """All that can be said of booting the bundle at `path` on GPU 0 of this host."""
    try:
        bundle = open_bundle(path)
    except QpackError as error:
        return [_failure("bundle", error)]
    found = [Diagnosis("bundle", "ok", f"whole; bundle_id {bundle.bundle_id}")]
    try:
        host = read_host(Driver())
    except QpackError as error:
        return [*found, _failure("driver", error)]
    found.append(Diagnosis("driver", "ok", f"supports CUDA {cuda_version(host.driver)}"))
    found.append(Diagnosis("GPU", "ok", str(host)))
    found.append(_target(bundle, host, allow_ptx))
    gauges = read_gauges()
    if isinstance(gauges, str):
        level: Level = "ok" if host.integrated else "warning"
        return [*found, Diagnosis("gauges", level, gauges, "" if host.integrated else "install it to see clocks")]
    return [*found, *judge(gauges)]


def _target(bundle: Bundle, host: Host, allow_ptx: bool) -> Diagnosis:
    try:
        name = choose_target(bundle, host, allow_ptx=allow_ptx)
    except QpackError as error:
        return _failure("target", error)
    need = compiled_targets(bundle.manifest["targets"])[name]["minimum_device_bytes"]
    found = f"{name}; its arenas take {need:,} of {host.free_bytes:,} free bytes"
    if need > 0.95 * host.free_bytes:
        return Diagnosis("target", "warning", found, "graphs and the driver need memory beside the arenas: free some")
    return Diagnosis("target", "ok", found)


def judge(gauges: Gauges) -> Iterator[Diagnosis]:
    """What the gauges mean for a decoder, whose speed is that of the memory."""
    clocks = f"SM {gauges.sm_mhz} of {gauges.max_sm_mhz} MHz, memory {gauges.memory_mhz} of {gauges.max_memory_mhz} MHz"
    if gauges.throttled_by:
        remedy = "cool the GPU or raise its power limit (nvidia-smi -pl)"
        yield Diagnosis("clocks", "warning", f"{clocks}; held back by {', '.join(gauges.throttled_by)}", remedy)
    else:
        yield Diagnosis("clocks", "ok", f"{clocks} (low while idle)")
    limit = f" of {gauges.slowdown_c}" if gauges.slowdown_c else ""
    hot = gauges.slowdown_c is not None and gauges.temperature_c > gauges.slowdown_c - 5
    remedy = "improve the airflow: steps take longer above the limit" if hot else ""
    yield Diagnosis("temperature", "warning" if hot else "ok", f"{gauges.temperature_c}{limit} degrees C", remedy)
    link = f"PCIe {gauges.pcie_generation} x{gauges.pcie_lanes}"
    if gauges.pcie_lanes < gauges.max_pcie_lanes:
        most = f"of PCIe {gauges.max_pcie_generation} x{gauges.max_pcie_lanes}"
        yield Diagnosis("link", "warning", f"{link} {most}", "reseat the card or use another slot: boots upload slower")
    else:
        yield Diagnosis("link", "ok", f"{link} (the generation drops while idle)")
    if gauges.persistent:
        yield Diagnosis("persistence", "ok", "on")
    else:
        remedy = "nvidia-smi -pm 1, or run nvidia-persistenced: boots then don't wait for the driver"
        yield Diagnosis("persistence", "warning", "off", remedy)
    if gauges.exclusive:
        yield Diagnosis("compute mode", "ok", "exclusive: no second process can use the GPU")
    if gauges.mig:
        yield Diagnosis(
            "MIG", "warning", "the GPU is cut into instances", "plan with the instance's memory and bandwidth"
        )


def _failure(check: str, error: QpackError) -> Diagnosis:
    where = f"{error.where}: " if error.where else ""
    return Diagnosis(check, "failure", where + error.message, error.remedy, error.exit_code)


def as_json(found: list[Diagnosis]) -> str:
    return json.dumps({"findings": [asdict(one) for one in found]}, ensure_ascii=True)


def as_text(found: list[Diagnosis]) -> str:
    """One line a finding and one for its remedy; behind them, if a boot could begin, how graphs fail and why."""
    marks = {"ok": "ok     ", "warning": "warning", "failure": "FAILURE"}
    lines: list[str] = []
    for one in found:
        lines.append(f"{marks[one.level]}  {one.check:12} {one.found}")
        if one.remedy:
            lines.append(f"{'':23}remedy: {one.remedy}")
    if not any(one.level == "failure" for one in found):
        lines += ["", "If the driver makes no graph at boot:"]
        for shown, cause, remedy in CAPTURE_FAILURES:
            lines += [f"  {shown}", f"    {cause}; {remedy}"]
    return "\n".join(lines)
