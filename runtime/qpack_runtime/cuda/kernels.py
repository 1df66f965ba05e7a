"""The kernels of a target: loaded once at boot, from bytes that are the manifest's to the bit."""

import ctypes
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qpack_runtime.cuda.driver import Driver
from qpack_schemas.errors import Finding, IntegrityError
from qpack_schemas.manifest import Kernel

MAX_DYNAMIC_SHARED_BYTES = 8  # CUfunction_attribute
SHARED_BYTES_WITHOUT_ASKING = 47 * 1024  # 48 less the one that the system takes from sm_90 on
SCRATCH_POINTERS = ("*", "*")  # behind the arguments of every Triton kernel: global and profile scratch, unused


@dataclass(frozen=True)
class LoadedKernel:
    name: str  # the entry point
    function: int  # CUfunction
    block: tuple[int, int, int]
    shared_bytes: int
    types: tuple[str, ...]  # of the arguments, the scratch pointers included; "*..." is a pointer
    offsets: tuple[int, ...]  # of the arguments, in bytes

    @property
    def argument_bytes(self) -> int:
        return self.offsets[-1] + size_of(self.types[-1])


def load_kernels(driver: Driver, root: Path, kernels: Mapping[str, Kernel]) -> dict[str, LoadedKernel]:
    """Every kernel by name. Raises IntegrityError if a file is not the manifest's, DriverError if it is not loaded."""
    return {name: _load(driver, root, name, kernel) for name, kernel in kernels.items()}


def _load(driver: Driver, root: Path, name: str, kernel: Kernel) -> LoadedKernel:
    image = (root / kernel["file"]).read_bytes()
    if (digest := hashlib.sha256(image).hexdigest()) != kernel["sha256"]:
        finding = Finding(kernel["file"], f"has sha256 {digest}, the manifest says {kernel['sha256']}")
        raise IntegrityError("a kernel was changed:", [finding], where=str(root), remedy="copy the bundle again")
    module = driver.call("cuModuleLoadData", ctypes.c_char_p(image))  # PTX ends with the NUL that bytes end with
    function = driver.call("cuModuleGetFunction", module, name.encode("ascii"))
    if kernel["shared_bytes"] > SHARED_BYTES_WITHOUT_ASKING:
        driver.call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED_BYTES, kernel["shared_bytes"])
    types = (*(kind for _, kind in kernel["params"]), *SCRATCH_POINTERS)
    block = (kernel["block"], 1, 1)
    return LoadedKernel(name, function, block, kernel["shared_bytes"], types, offsets_of(types))


def size_of(kind: str) -> int:
    """Bytes of an argument: a pointer, or an i32."""
    return 8 if kind.startswith("*") else 4


def offsets_of(types: Sequence[str]) -> tuple[int, ...]:
    """Where each argument lies: in order, each at a multiple of its own size."""
    offsets: list[int] = []
    end = 0
    for kind in types:
        offsets.append(-(-end // size_of(kind)) * size_of(kind))
        end = offsets[-1] + size_of(kind)
    return tuple(offsets)
