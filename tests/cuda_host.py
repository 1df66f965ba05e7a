"""The CUDA executor on the stub libcuda, in this process or in one of its own."""

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import numpy as np

from cuda_client import Hook, Stub, environment
from cuda_hook import Interpreter
from qpack_runtime.arenas import numeric
from qpack_runtime.cuda import executor as cuda_executor
from qpack_runtime.cuda.driver import Driver, DriverError
from qpack_runtime.engine import Engine
from qpack_schemas.bundle import Bundle, open_bundle
from qpack_schemas.manifest import compiled_targets
from qpack_schemas.program import Arena

TARGET = "cuda:sm_89"
# What may be called between the launch of a graph and its end: enqueueing more, and waiting for an event.
ALONGSIDE = {
    "cuEventSynchronize", "cuEventRecord", "cuGraphLaunch", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2",
    "stub_mark",
}  # fmt: skip
ONCE = re.compile(r"cuMem(Host)?Alloc|cuMem\w*Free|cuModule|cuFunc|cu\w+Create|cuGraphAdd|cuGraphInst|  lazily loaded")


class Machine:
    """A bundle booted on the stub: its executor and engine, the memory of the "GPU", and what the driver saw."""

    def __init__(self, stub: Stub, bundle: Bundle, log: Path, options: Mapping[str, Any]):
        self.stub, self.bundle, self.log = stub, bundle, log
        self.executor = cuda_executor.CudaExecutor(bundle, **options)
        self.engine = Engine(self.executor, bundle.manifest)
        stub.call("stub_mark", b"booted")

    def memory(self, arena: Arena) -> np.ndarray:
        """An arena on the device, uint8, in place: what is under way may not have reached it."""
        memory = self.executor.memory
        return np.ctypeslib.as_array((ctypes.c_ubyte * memory.sizes[arena]).from_address(memory.base[arena]))

    def view(self, name: str, bucket: str) -> np.ndarray:
        """A buffer of the program that a bucket runs, in place."""
        memory, (chosen,) = self.executor.memory, (b for b in self.bundle.manifest["buckets"] if b["name"] == bucket)
        kind, rows = chosen["program"], chosen["rows"]
        program, work = self.bundle.programs[kind], self.bundle.tables[self.executor.target][kind].work
        buffer = work.get(name) or program.buffers.get(name) or memory.shared[name]
        shape, dtype = buffer.extent(rows), numeric(buffer.dtype)
        raw = (ctypes.c_ubyte * (np.dtype(dtype).itemsize * prod(shape))).from_address(memory.address(name, kind, rows))
        return np.ctypeslib.as_array(raw).view(dtype).reshape(shape)

    def settle(self) -> None:
        """Waits for all that is under way. Raises what a kernel raised."""
        self.stub.status("cuCtxSynchronize")
        if self.stub.raised:
            raise self.stub.raised[0]

    def check(self) -> None:
        """The laws that hold for every run."""
        self.settle()
        assert self.stub.intact(), "a kernel wrote beside its arena"
        lines = self.log.read_text(encoding="ascii").splitlines()
        check_launches(lines)
        check_boot(lines)


@contextmanager
def machine(
    library: Path, folder: Path, log: Path, *, hook: Hook | None = None, eager: bool = False, **options: Any
) -> Iterator[Machine]:
    """Boots the bundle in `folder`; at the end the laws are checked. Kernels do nothing without a hook. `options` are
    the executor's."""
    stub = Stub(library, EAGER=eager)
    stub.call("stub_log", str(log).encode())
    stub.set_hook(hook)
    if isinstance(hook, Interpreter):
        hook.holds = stub.holds
    with patch.object(cuda_executor, "Driver", partial(Driver, str(library))):
        booted = Machine(stub, open_bundle(folder), log, options)
        try:
            yield booted
        except DriverError:
            if stub.raised:
                raise stub.raised[0] from None  # what the kernel said, not what the driver makes of it
            raise
        booted.check()
    stub.call("stub_log", None)


def interpreted(folder: Path, *, backwards: bool = False) -> Interpreter:
    """The hook that computes what the kernels of the bundle in `folder` compute."""
    targets = open_bundle(folder, digests=False).manifest["targets"]
    return Interpreter(folder, compiled_targets(targets)[TARGET], backwards=backwards)


def check_launches(lines: list[str]) -> None:
    """Nothing is allocated, loaded or waited for, but events, between the launch of a graph and its end."""
    under_way: set[str] = set()
    for number, line in enumerate(lines, 1):
        if begun := re.fullmatch(r"  graph launch (\d+)", line):
            under_way.add(begun[1])
        elif ended := re.fullmatch(r"  end graph launch (\d+)", line):
            under_way.remove(ended[1])
        elif under_way and not line.startswith(" "):
            last = line == "cuCtxSynchronize" or line.startswith("cuGetError")  # the test's own
            assert line in ALONGSIDE or last, f"line {number}: {line} while graph launch {min(under_way)} runs"


def check_boot(lines: list[str]) -> None:
    """Everything is allocated, loaded and made before the mark "booted"."""
    begin = lines.index("  mark booted")
    late = [line for line in lines[begin:] if ONCE.match(line)]
    assert not late, f"after the boot: {late}"


def stubbed(library: Path, settings: Mapping[str, int | str] = MappingProxyType({})) -> dict[str, str]:
    """What the environment of a process holds whose libcuda.so.1 is the stub, and which finds the tests' modules."""
    return {**environment(library, settings), "PYTHONPATH": str(Path(__file__).parent)}


def run_runtime(
    library: Path, *arguments: str, settings: Mapping[str, int | str], computing: bool = False
) -> subprocess.CompletedProcess[str]:
    """`qpack-runtime` in a process of its own, whose libcuda.so.1 is the stub. Kernels do nothing unless `computing`;
    the second argument is the bundle."""
    variables = {**os.environ, **stubbed(library, settings)}
    code = COMPUTING if computing else "from qpack_runtime.cli import main; main()"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=variables, capture_output=True, encoding="utf-8", check=False)


# Makes the stub compute; runs in a process of its own, before the command whose second argument is the bundle.
HOOKED = """
import sys
from pathlib import Path
from cuda_client import Stub
from cuda_host import interpreted
stub = Stub(Path("libcuda.so.1"))
stub.set_hook(interpreted(Path(sys.argv[2])))
"""
COMPUTING = f"{HOOKED}\nfrom qpack_runtime.cli import main; main()"
