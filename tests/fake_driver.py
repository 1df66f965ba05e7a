"""The driver calls of the CUDA executor in Python: device memory is host memory, a graph runs a function of the test.

Work runs as late as the waits allow, or with `eager` at once: the first shows a missing wait, the second memory that
the device overwrites before the host has read it.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from qpack_runtime.cuda.driver import Driver, DriverError, KernelNodeParams

ATTRIBUTES = {75: 8, 76: 9, 18: 0, 97: 101_376}  # CUdevice_attribute: an L4's, sm_89
GIGABYTE = 10**9


class FakeDriver(Driver):
    """`launched(graph)` runs an executable graph, by the number of its instantiation."""

    def __init__(self, *, eager: bool = False, launched: Callable[[int], None] = lambda graph: None):
        self.eager, self.launched = eager, launched
        self.attributes, self.version, self.total, self.free = dict(ATTRIBUTES), 12_080, 24 * GIGABYTE, 20 * GIGABYTE
        self.failing: dict[str, int] = {}  # call -> CUresult
        self.names: list[str] = []  # of all calls
        self.memory: list[np.ndarray] = []
        self._queue: list[Callable[[], None]] = []
        self._done: dict[int, bool] = {}  # event -> whether its last record has run
        self._handle = 1000
        self._functions: dict[int, str] = {}
        self.graphs: dict[int, dict[int, tuple[KernelNodeParams, Any, tuple[int, ...]]]] = {}
        self._capturing = 0
        self._executables: list[int] = []

    def call(self, name: str, *arguments: Any) -> Any:
        self.names.append(name)
        if name in self.failing:
            raise DriverError(name, self.failing[name], "CUDA_ERROR_OF_THE_TEST")
        return getattr(self, f"_{name.removesuffix('_v2')}")(*arguments)

    def has(self, name: str) -> bool:
        return name != "cuFuncGetName"

    def list_handles(self, name: str, handle: int) -> list[int]:
        if name == "cuGraphGetNodes":
            return list(reversed(self.graphs[handle]))  # the driver promises no order
        return list(next(nodes for nodes in self.graphs.values() if handle in nodes)[handle][2])

    def run_until(self, done: Callable[[], bool]) -> None:
        while self._queue and not done():
            self._queue.pop(0)()

    def _new(self) -> int:
        self._handle += 8
        return self._handle

    def _submit(self, work: Callable[[], None]) -> None:
        self._queue.append(work)
        if self.eager:
            self.run_until(lambda: False)

    def _allocate(self, size: int) -> int:
        raw = np.full(size + 256, 0xA5, np.uint8)
        self.memory.append(raw[-raw.ctypes.data % 256 :][:size])
        return self.memory[-1].ctypes.data

    def _copy(self, target: int, source: int, size: int) -> None:
        self._submit(lambda: (ctypes.memmove(target, source, size), None)[1])

    def _cuInit(self, flags: int) -> None: ...
    def _cuDriverGetVersion(self) -> int:
        return self.version

    def _cuDeviceGet(self, ordinal: int) -> int:
        return ordinal

    def _cuDeviceGetName(self, text: Any, size: int, device: int) -> None:
        text.value = b"Fake L4"

    def _cuDeviceGetAttribute(self, attribute: int, device: int) -> int:
        return self.attributes[attribute]

    def _cuDeviceTotalMem(self, device: int) -> int:
        return self.total

    def _cuDevicePrimaryCtxRetain(self, device: int) -> int:
        return self._new()

    def _cuCtxSetCurrent(self, context: int) -> None: ...
    def _cuMemGetInfo(self) -> tuple[int, int]:
        return self.free, self.total

    def _cuMemAlloc(self, size: int) -> int:
        self.free -= size
        return self._allocate(size)

    def _cuMemHostAlloc(self, size: int, flags: int) -> int:
        return self._allocate(size)

    def _cuMemFreeHost(self, address: int) -> None: ...
    def _cuMemsetD8Async(self, address: int, value: int, size: int, stream: int) -> None:
        self._submit(lambda: (ctypes.memset(address, value, size), None)[1])

    def _cuMemcpyHtoDAsync(self, target: int, source: int, size: int, stream: int) -> None:
        self._copy(target, source, size)

    def _cuMemcpyDtoHAsync(self, target: int, source: int, size: int, stream: int) -> None:
        self._copy(target, source, size)

    def _cuStreamCreate(self, flags: int) -> int:
        return self._new()

    def _cuStreamSynchronize(self, stream: int) -> None:
        self.run_until(lambda: False)

    def _cuEventCreate(self, flags: int) -> int:
        event = self._new()
        self._done[event] = True
        return event

    def _cuEventRecord(self, event: int, stream: int) -> None:
        self._done[event] = False
        self._submit(lambda: self._done.update({event: True}))

    def _cuEventSynchronize(self, event: int) -> None:
        self.run_until(lambda: self._done[event])

    def _cuModuleLoadData(self, image: Any) -> int:
        return self._new()

    def _cuModuleGetFunction(self, module: int, name: bytes) -> int:
        function = self._new()
        self._functions[function] = name.decode()
        return function

    def _cuFuncSetAttribute(self, function: int, attribute: int, value: int) -> None: ...
    def _cuLaunchKernel(self, function: int, *rest: Any) -> None:
        dims, shared, pointers = rest[:6], rest[6], rest[8]
        if self._capturing:
            nodes = self.graphs[self._capturing]
            params = KernelNodeParams(function, *dims, shared, pointers)
            self._add(self._capturing, tuple(list(nodes)[-1:]), params)
        else:
            self._submit(lambda: self.launched(-1))

    def _cuStreamBeginCapture(self, stream: int, mode: int) -> None:
        self._capturing = self._cuGraphCreate(0)

    def _cuStreamEndCapture(self, stream: int) -> int:
        graph, self._capturing = self._capturing, 0
        return graph

    def _cuGraphCreate(self, flags: int) -> int:
        graph = self._new()
        self.graphs[graph] = {}
        return graph

    def _cuGraphAddKernelNode(self, graph: int, before: Any, count: int, params: KernelNodeParams) -> int:
        return self._add(graph, tuple(before[index] for index in range(count)), params)

    def _add(self, graph: int, before: tuple[int, ...], params: KernelNodeParams) -> int:
        """Keeps copies of the arguments, as the driver does; their sizes are those of a test's kernel."""
        kept = KernelNodeParams.from_buffer_copy(params)
        given = ctypes.cast(params.kernelParams or 0, ctypes.POINTER(ctypes.c_void_p))
        sizes = self.argument_sizes[self._functions[params.func or 0]]
        values = [ctypes.create_string_buffer(ctypes.string_at(given[i] or 0, n), n) for i, n in enumerate(sizes)]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        kept.kernelParams = ctypes.addressof(pointers)
        node = self._new()
        self.graphs[graph][node] = (kept, (values, pointers), before)
        return node

    argument_sizes: dict[str, list[int]] = {}  # kernel -> bytes of each argument  # noqa: RUF012

    def _cuGraphNodeGetType(self, node: int) -> int:
        return 0

    def _cuGraphKernelNodeGetParams(self, node: int, params: KernelNodeParams) -> None:
        kept = next(nodes for nodes in self.graphs.values() if node in nodes)[node][0]
        ctypes.memmove(ctypes.byref(params), ctypes.byref(kept), ctypes.sizeof(kept))

    def _cuGraphInstantiateWithFlags(self, graph: int, flags: int) -> int:
        self._executables.append(self._new())
        return self._executables[-1]

    def _cuGraphUpload(self, executable: int, stream: int) -> None: ...
    def _cuGraphDestroy(self, graph: int) -> None: ...
    def _cuGraphLaunch(self, executable: int, stream: int) -> None:
        self._submit(lambda: self.launched(self._executables.index(executable)))
