"""Which target of a bundle runs on a host: binary compatibility of GPU code, and the oldest driver it needs.

Rules (CUDA C++ Programming Guide, "Binary Compatibility"; CUDA Compatibility, "Minor Version Compatibility"):
a cubin for sm_XY runs on GPUs of major number X with a minor number of at least Y, unless it was assembled for an
architecture-specific feature set (sm_90a), and never between desktop and Tegra GPUs; PTX is compiled by the driver
for its own architecture and all newer ones.
"""

from collections.abc import Iterator, Mapping

from qpack_schemas.errors import FitError, UnsupportedError
from qpack_schemas.manifest import Target, compiled_targets
from qpack_schemas.strict_json import JsonValue

TEGRA = frozenset({53, 62, 72, 87, 101, 110})  # compute capabilities of integrated GPUs: Jetson, DRIVE
# Release of CUDA -> the first Linux driver for it: "CUDA Toolkit and Corresponding Driver Versions", release notes.
LINUX_DRIVERS = {12000: 525, 12080: 570, 12090: 575, 13000: 580}


def architecture_number(architecture: str) -> int:
    """89 of "sm_89", 90 of "sm_90a"."""
    return int(architecture.removeprefix("sm_").removesuffix("a"))


def cuda_version(driver: int) -> str:
    """12.4 of 12040, as cuDriverGetVersion counts."""
    return f"{driver // 1000}.{driver % 1000 // 10}"


def runs_on(target: Target, sm: int) -> bool:
    """Whether the GPU `sm` (10 * major + minor) can run the code of `target`, whatever its driver is."""
    own = architecture_number(target["architecture"])
    if target["scope"] == "newer":
        return sm >= own
    if target["scope"] == "exact" or sm == own:
        return sm == own
    return sm // 10 == own // 10 and sm > own and not {sm, own} & TEGRA


def choose(
    targets: Mapping[str, JsonValue], sm: int, driver: int, total_memory: int | None, allow_ptx: bool = False
) -> str:
    """The name of the target that a host shall run, of a manifest's `targets`.

    `sm` is 10 * major + minor of the GPU's compute capability, `driver` what cuDriverGetVersion reports,
    `total_memory` the bytes of device memory that the arenas may take (None: not known, not checked). Code for exactly
    this GPU comes first, then the nearest older cubin of its major number, last, and only with `allow_ptx`, PTX.

    Raises UnsupportedError if nothing in the bundle runs here, FitError if the arenas are larger than the memory.
    """
    compiled = compiled_targets(targets)
    able = [name for name, target in compiled.items() if runs_on(target, sm)]
    able = [name for name in able if allow_ptx or compiled[name]["format"] != "ptx"]
    ready = [name for name in able if compiled[name]["min_driver"] <= driver]
    if not ready:
        raise _unsupported(compiled, able, sm, driver)
    best = max(ready, key=lambda name: _preference(compiled[name]))
    need = compiled[best]["minimum_device_bytes"]
    if total_memory is not None and need > total_memory:
        raise _does_not_fit(best, compiled[best], sm, total_memory)
    return best


def _preference(target: Target) -> tuple[bool, int, bool]:
    """Cubins before PTX, the nearest architecture first, and of one architecture the code made for it alone."""
    return target["format"] == "cubin", architecture_number(target["architecture"]), target["scope"] == "exact"


def fitting_buckets(target: Target, memory: int) -> list[str]:
    """The buckets with which the arenas take at most `memory` bytes, smallest work first. The work arena is as large as
    the largest bucket that is kept; weights, state and io are needed by all."""
    others = target["minimum_device_bytes"] - max(target["work_bytes"].values(), default=0)
    order = sorted(target["work_bytes"].items(), key=lambda item: (item[1], item[0]))
    return [name for name, work in order if others + work <= memory]


def _unsupported(targets: Mapping[str, Target], able: list[str], sm: int, driver: int) -> UnsupportedError:
    host = f"this GPU is sm_{sm}, its driver supports CUDA {cuda_version(driver)}"
    if not targets:
        return UnsupportedError(
            f"the bundle has no kernels for GPUs; {host}", remedy=f"build it with --target cuda:sm_{sm}"
        )
    lines = [f"no target of the bundle runs here: {host}", *_table(targets, sm, driver)]
    if able:
        needed = min(targets[name]["min_driver"] for name in able)
        remedy = f"update the driver to one for CUDA {cuda_version(needed)} or newer"
        if enough := [linux for version, linux in LINUX_DRIVERS.items() if version >= needed]:
            remedy += f"; on Linux {min(enough)} or newer"
    else:
        remedy = f"build the bundle with --target cuda:sm_{sm}"
        if any(runs_on(target, sm) for target in targets.values()):
            remedy += ", or allow the driver to compile its PTX with --allow-ptx"
    return UnsupportedError("\n".join(lines), remedy=remedy)


def _table(targets: Mapping[str, Target], sm: int, driver: int) -> Iterator[str]:
    """One line per target: what it is, where it runs, and why not here."""
    rows = [("target", "runs on", "needs CUDA", "here")]
    for name, target in targets.items():
        if not runs_on(target, sm):
            here = "another architecture"
        elif target["min_driver"] > driver:
            here = "the driver is too old"
        else:
            here = "not allowed: compiled by the driver at boot"
        rows.append((name, _reach(target), cuda_version(target["min_driver"]), here))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        yield "  " + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])


def _reach(target: Target) -> str:
    own = architecture_number(target["architecture"])
    if target["scope"] == "newer":
        return f"sm_{own} and newer"
    if target["scope"] == "exact" or own in TEGRA or own % 10 == 9:
        return f"sm_{own} only"
    return f"sm_{own} to sm_{own // 10}9, no Tegra"


def _does_not_fit(name: str, target: Target, sm: int, memory: int) -> FitError:
    need, fitting = target["minimum_device_bytes"], fitting_buckets(target, memory)
    message = f"{name} needs {need:,} bytes of device memory, this GPU (sm_{sm}) has {memory:,}"
    kinds = {bucket.partition("-")[0] for bucket in fitting}
    if kinds < {"decode", "prefill"}:
        smallest = need - max(target["work_bytes"].values(), default=0)
        message += f"; weights, state and io alone take {smallest:,}, too much for a decode and a prefill bucket beside"
        remedy = "build with fewer slots or a shorter context, or take a smaller model or a larger GPU"
    else:
        message += f"\n  would fit: {', '.join(fitting)}"
        remedy = "build with these buckets only (--batch, --context, --prefill), or take a larger GPU"
    return FitError(message, remedy=remedy)
