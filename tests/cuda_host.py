"""The CUDA executor on the stub libcuda, in this process or in one of its own, with every kernel interpreted.

As a program: python cuda_host.py BUNDLE ARGUMENTS... is `qpack-runtime ARGUMENTS...` where libcuda.so.1 is the stub.
"""

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cuda_client import Stub, environment
from cuda_hook import Interpreter
from qpack_runtime.arenas import DTYPES
from qpack_runtime.cuda import executor as cuda_executor
from qpack_runtime.cuda.driver import Driver
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

    def __init__(self, stub: Stub, bundle: Bundle, hook: Interpreter, log: Path, **options: Any):
        self.stub, self.bundle, self.hook, self.log = stub, bundle, hook, log
        self.executor = cuda_executor.CudaExecutor(bundle, **options)
        self.engine = Engine(self.executor, bundle.manifest)
        stub.call("stub_mark", b"booted")

    def memory(self, arena: Arena) -> np.ndarray:
        """An arena on the device, uint8, as it is now: what is under way may not have reached it."""
        memory = self.executor.memory
        return np.ctypeslib.as_array((ctypes.c_ubyte * memory.sizes[arena]).from_address(memory.base[arena]))

    def state(self, name: str) -> np.ndarray:
        """A buffer that outlives the step, in place."""
        memory = self.executor.memory
        buffer = memory.shared[name]
        begin = memory.address(name, "decode", 1) - memory.base[buffer.arena]
        raw = self.memory(buffer.arena)[begin : begin + buffer.bytes(1)]
        return raw.view(DTYPES[buffer.dtype]).reshape(buffer.extent(1))

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
    library: Path, folder: Path, log: Path, *, backwards: bool = False, settings: dict[str, int] | None = None,
    **options: Any,
) -> Iterator[Machine]:  # fmt: skip
    """Boots the bundle in `folder`; the laws are checked at the end. `options` are the executor's."""
    bundle = open_bundle(folder)
    stub = Stub(library, **(settings or {}))
    stub.call("stub_log", str(log).encode())
    hook = Interpreter(folder, compiled_targets(bundle.manifest["targets"])[TARGET], backwards=backwards)
    stub.set_hook(hook)
    whole = cuda_executor.Driver
    cuda_executor.Driver = partial(Driver, str(library))  # pyright: ignore
    try:
        booted = Machine(stub, bundle, hook, log, **options)
        yield booted
        booted.check()
    finally:
        cuda_executor.Driver = whole
        stub.call("stub_log", None)


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


def run_runtime(library: Path, *arguments: str, **settings: int | str) -> subprocess.CompletedProcess[str]:
    """`qpack-runtime` in a process of its own; the second argument must be the bundle."""
    variables = {**os.environ, **environment(library, settings), "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, env=variables, capture_output=True, encoding="utf-8", check=False)


def main(arguments: list[str]) -> None:
    from qpack_runtime.cli import main as runtime

    folder = Path(arguments[1])
    stub = Stub(Path("libcuda.so.1"), **{name[5:]: int(value) for name, value in os.environ.items() if name in SETTINGS})
    bundle = open_bundle(folder, digests=False)
    stub.set_hook(Interpreter(folder, compiled_targets(bundle.manifest["targets"])[TARGET]))
    runtime(arguments)


SETTINGS = ("STUB_CC", "STUB_MEM", "STUB_DRIVER", "STUB_INTEGRATED", "STUB_EAGER")
if __name__ == "__main__":
    main(sys.argv[1:])
