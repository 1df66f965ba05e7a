"""The stub libcuda keeps the driver's rules, and shows the mistakes that it is there to show.

What it reads from a cubin is compared with what cuobjdump reads; its rules are those of the CUDA driver API's
documentation.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cubins import cuobjdump
from cuda_bundles import stand_in
from cuda_client import DriverStatus, KernelParams, NodeParams, Stub, build_stub, bytes_at, fnv, launch, pointers
from qpack_packager.cuda.compiler.compiled import CompiledKernel
from qpack_packager.cuda.spec import KernelSpec
from qpack_packager.cuda.targets import Target

SPEC = KernelSpec(
    "silu.silu_mul", (("x", "*fp32"), ("y", "*fp32"), ("R", "i32")),
    (("bias", None), ("I", 64), ("PLANES", 0), ("BLOCK", 64)), warps=2,
)  # fmt: skip
OWN = Target(89)
TARGETS = (Target(80), Target(87), OWN, Target(90), Target(110), Target(80, "ptx"))
Images = dict[Target, CompiledKernel]
Make = Callable[..., Stub]
POISON = 0xA5


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    """Of NVIDIA's assemblers; the kernel does nothing."""
    return {target: stand_in(SPEC, target, tmp_path_factory.mktemp("images")) for target in TARGETS}


@pytest.fixture
def make(stub_library: Path) -> Make:
    def made(**settings: int) -> Stub:
        stub = Stub(stub_library, **settings)
        stub.boot()
        return stub

    return made


def load(stub: Stub, images: Images, target: Target = OWN) -> int:
    module = stub.get("cuModuleLoadData", images[target].image)
    return stub.get("cuModuleGetFunction", module, SPEC.name.encode())


def arguments(x: int, y: int, rows: int = 1) -> list[Any]:
    return [ctypes.c_uint64(x), ctypes.c_uint64(y), ctypes.c_int32(rows), ctypes.c_uint64(), ctypes.c_uint64()]


def add_node(stub: Stub, graph: int, before: list[int], function: int, values: list[Any], grid: int = 1) -> int:
    dims = (ctypes.c_uint * 6)(grid, 1, 1, 64, 1, 1)
    params = NodeParams(kernel=KernelParams(function=function, dims=dims, params=pointers(values)))
    after = (ctypes.c_uint64 * max(len(before), 1))(*before)
    return stub.get("cuGraphAddNode_v2", graph, after, None, len(before), ctypes.byref(params))


def handles(stub: Stub, name: str, of: int) -> list[int]:
    count = ctypes.c_size_t()
    stub.call(name, of, None, ctypes.byref(count))
    found = (ctypes.c_uint64 * max(count.value, 1))()
    stub.call(name, of, found, ctypes.byref(count))
    return list(found[: count.value])


def test_a_cubin_says_what_cuobjdump_says(make: Make, images: Images, tmp_path: Path):
    (tmp_path / "cubin").write_bytes(images[OWN].image)
    stub = make()
    function = load(stub, images)
    offsets: list[tuple[int, int]] = []
    for index in range(5):
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        stub.call("cuFuncGetParamInfo", function, index, ctypes.byref(offset), ctypes.byref(size))
        offsets.append((offset.value, size.value))
    assert offsets == [(0, 8), (8, 8), (16, 4), (24, 8), (32, 8)]  # natural alignment, two scratch pointers behind
    assert stub.status("cuFuncGetParamInfo", function, 5, ctypes.byref(ctypes.c_size_t()), None) == "INVALID_VALUE"
    registers = f"REG:{stub.get('cuFuncGetAttribute', 4, function)} "
    assert registers in cuobjdump(tmp_path / "cubin", "-res-usage")
    assert stub.get("cuFuncGetAttribute", 0, function) == 64
    name = ctypes.c_char_p()
    stub.call("cuFuncGetName", ctypes.byref(name), function)
    assert name.value == SPEC.name.encode()


@pytest.mark.parametrize(
    ("target", "cc", "driver", "status"),
    [
        (Target(80), 89, 13000, "SUCCESS"),  # a higher minor version of the same major
        (Target(89), 80, 13000, "NO_BINARY_FOR_GPU"),
        (Target(89), 90, 13000, "NO_BINARY_FOR_GPU"),
        (Target(80), 87, 13000, "NO_BINARY_FOR_GPU"),  # Tegra
        (Target(87), 89, 13000, "NO_BINARY_FOR_GPU"),
        (Target(87), 87, 12000, "SUCCESS"),
        (Target(90), 90, 12000, "SUCCESS"),
        (Target(110), 110, 13000, "SUCCESS"),
        (Target(110), 110, 12090, "INVALID_IMAGE"),  # the toolkit is of a newer major release
        (Target(80, "ptx"), 120, 13000, "SUCCESS"),
        (Target(80, "ptx"), 75, 13000, "NO_BINARY_FOR_GPU"),
    ],
)
def test_code_loads_where_it_runs(make: Make, images: Images, target: Target, cc: int, driver: int, status: str):
    stub = make(CC=cc, DRIVER=driver)
    assert stub.status("cuModuleLoadData", ctypes.byref(ctypes.c_uint64()), images[target].image) == status


def test_ptx_has_the_parameters_and_the_block_of_the_cubin(make: Make, images: Images):
    stub = make()
    functions = [load(stub, images, target) for target in (Target(80), Target(80, "ptx"))]
    seen = [[stub.get("cuFuncGetParamInfo", f, i, None, place=2) for i in range(5)] for f in functions]
    assert seen[0] == seen[1]
    assert [stub.get("cuFuncGetAttribute", 0, f) for f in functions] == [64, 64]


def test_the_hook_tells_modules_with_kernels_of_one_name_apart(make: Make, images: Images):
    stub, seen = make(EAGER=1), []
    stub.set_hook(lambda name, image, dims, values: seen.append((name, image, dims, values)))
    memory = stub.get("cuMemAlloc_v2", 1024)
    for target in (Target(80), Target(89)):
        stub.call("cuLaunchKernel", *launch(load(stub, images, target), (2, 3, 1), 64, 0, arguments(memory, 0, 3)))
    values = memory.to_bytes(8, "little") + bytes(8) + (3).to_bytes(4, "little") + bytes(20)
    assert seen == [
        (SPEC.name, fnv(images[target].image), (2, 3, 1, 64, 1, 1), values) for target in (Target(80), Target(89))
    ]


def test_a_copy_reads_its_source_when_it_is_waited_for(make: Make):
    stub = make()
    source, memory, stream = stub.host(b"first"), stub.get("cuMemAlloc_v2", 5), stub.get("cuStreamCreate", 1)
    stub.call("cuMemcpyHtoDAsync_v2", memory, source, 5, stream)
    ctypes.memmove(source, b"later", 5)
    assert bytes_at(memory, 5) == bytes([POISON] * 5)
    stub.call("cuStreamSynchronize", stream)
    assert bytes_at(memory, 5) == b"later"


def test_in_eager_mode_a_copy_is_done_when_the_call_returns(make: Make):
    stub = make(EAGER=1)
    memory = stub.get("cuMemAlloc_v2", 5)
    stub.call("cuMemcpyHtoDAsync_v2", memory, stub.host(b"first"), 5, stub.get("cuStreamCreate", 1))
    assert bytes_at(memory, 5) == b"first"


def test_waiting_for_an_event_runs_what_came_before_it_and_nothing_else(make: Make):
    stub = make()
    memory, (one, other), event = stub.get("cuMemAlloc_v2", 4), streams(stub, 2), stub.get("cuEventCreate", 2)
    for place, stream in enumerate((one, other, one)):
        if place == 2:
            stub.call("cuEventRecord", event, one)
        stub.call("cuMemsetD8Async", memory + place, place, 1, stream)
    assert stub.status("cuEventQuery", event) == "NOT_READY"
    stub.call("cuEventSynchronize", event)
    assert list(bytes_at(memory, 4)) == [0, POISON, POISON, POISON]


def test_a_stream_runs_what_it_waits_for_on_another(make: Make):
    stub = make()
    memory, (one, other), event = stub.get("cuMemAlloc_v2", 2), streams(stub, 2), stub.get("cuEventCreate", 2)
    stub.call("cuMemsetD8Async", memory, 1, 2, one)
    stub.call("cuEventRecord", event, one)
    stub.call("cuStreamWaitEvent", other, event, 0)
    stub.call("cuEventRecord", event, other)  # the wait is for what the event was when the wait was asked for
    stub.call("cuMemsetD8Async", memory, 2, 1, other)
    stub.call("cuStreamSynchronize", other)
    assert list(bytes_at(memory, 2)) == [2, 1]


def test_who_polls_an_event_gets_there(make: Make):
    stub = make()
    memory, stream, event = stub.get("cuMemAlloc_v2", 1), stub.get("cuStreamCreate", 1), stub.get("cuEventCreate", 2)
    stub.call("cuMemsetD8Async", memory, 1, 1, stream)
    stub.call("cuEventRecord", event, stream)
    assert [stub.status("cuEventQuery", event) for _ in range(3)] == ["NOT_READY", "NOT_READY", "SUCCESS"]


def test_the_blocking_copy_waits_for_no_stream_that_does_not_block(make: Make):
    stub = make()
    memory, result = stub.get("cuMemAlloc_v2", 1), stub.host(b"?")
    stub.call("cuMemsetD8Async", memory, 1, 1, stub.get("cuStreamCreate", 1))
    stub.call("cuMemcpyDtoH_v2", result, memory, 1)
    assert list(bytes_at(result, 1)) == [POISON]
    stub.call("cuMemsetD8Async", memory, 2, 1, stub.get("cuStreamCreate", 0))
    stub.call("cuMemcpyDtoH_v2", result, memory, 1)
    assert list(bytes_at(result, 1)) == [2]


def test_memory_has_bounds(make: Make):
    stub = make(MEM=1000)
    memory, host = stub.get("cuMemAlloc_v2", 600), stub.host(bytes(600))
    assert stub.status("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), 401) == "OUT_OF_MEMORY"
    for destination, source, count in ((memory + 1, host, 600), (memory, host + 1, 600), (host, host, 1)):
        assert stub.status("cuMemcpyHtoDAsync_v2", destination, source, count, 0) == "INVALID_VALUE"
    assert stub.status("cuMemcpyDtoHAsync_v2", host, memory + 599, 2, 0) == "INVALID_VALUE"
    assert stub.intact()
    ctypes.memset(memory + 600, 0, 1)
    assert not stub.intact()
    assert stub.status("cuMemFree_v2", memory) == "ILLEGAL_ADDRESS"
    assert stub.status("cuMemFree_v2", memory) == "INVALID_VALUE"


def test_a_launch_keeps_its_arguments_and_its_limits(make: Make, images: Images):
    stub, seen = make(), []
    stub.set_hook(lambda name, image, dims, values: seen.append(int.from_bytes(values[16:20], "little")))
    function, stream = load(stub, images), stub.get("cuStreamCreate", 1)
    memory = stub.get("cuMemAlloc_v2", 1024)
    values = arguments(memory, memory, 7)
    stub.call("cuLaunchKernel", *launch(function, (1, 1, 1), 64, stream, values))
    values[2].value = 8
    assert stub.status("cuLaunchKernel", *launch(function, (1, 1, 1), 32, stream, values)) == "INVALID_VALUE"
    assert stub.status("cuLaunchKernel", *launch(function, (1, 65536, 1), 64, stream, values)) == "INVALID_VALUE"
    large = launch(function, (1, 1, 1), 64, stream, values, shared=(48 << 10) + 1)
    assert stub.status("cuLaunchKernel", *large) == "INVALID_VALUE"
    assert stub.status("cuFuncSetAttribute", function, 8, (99 << 10) + 1) == "INVALID_VALUE"
    stub.call("cuFuncSetAttribute", function, 8, 99 << 10)
    stub.call("cuLaunchKernel", *large)
    stub.call("cuStreamSynchronize", stream)
    assert seen == [7, 8]


def test_the_kilobyte_that_the_system_takes_counts_until_a_kernel_asks_for_more(make: Make, images: Images):
    """From 9.0 on cubins have 1 kB of static shared memory. The limit that is asked for is of dynamic memory alone."""
    stub = make(CC=90)
    function, stream = load(stub, images, Target(90)), stub.get("cuStreamCreate", 1)
    reserved = stub.get("cuFuncGetAttribute", 1, function) & 0xFFFFFFFF
    memory = stub.get("cuMemAlloc_v2", 1024)
    for shared, status in (((48 << 10) - reserved, "SUCCESS"), ((48 << 10) - reserved + 1, "INVALID_VALUE")):
        wanted = launch(function, (1, 1, 1), 64, stream, arguments(memory, memory), shared=shared)
        assert stub.status("cuLaunchKernel", *wanted) == status
    stub.call("cuFuncSetAttribute", function, 8, 50 << 10)
    for shared, status in ((50 << 10, "SUCCESS"), ((50 << 10) + 1, "INVALID_VALUE")):
        wanted = launch(function, (1, 1, 1), 64, stream, arguments(memory, memory), shared=shared)
        assert stub.status("cuLaunchKernel", *wanted) == status


def test_a_pointer_to_nowhere_and_a_failing_hook_fail_all_that_follows(make: Make, images: Images):
    for pointer, status in ((12345, "ILLEGAL_ADDRESS"), (0, "LAUNCH_FAILED")):
        stub = make()

        def fails(*_: object) -> None:
            raise ZeroDivisionError

        stub.set_hook(fails)
        stream = stub.get("cuStreamCreate", 1)
        stub.call("cuLaunchKernel", *launch(load(stub, images), (1, 1, 1), 64, stream, arguments(pointer, 0)))
        assert stub.status("cuStreamSynchronize", stream) == status
        assert stub.status("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), 1) == status
        assert len(stub.raised) == (pointer == 0)


def test_a_graph_is_read_back_as_it_was_built(make: Make, images: Images):
    stub = make()
    function, graph, memory = load(stub, images), stub.get("cuGraphCreate", 0), stub.get("cuMemAlloc_v2", 1024)
    first = add_node(stub, graph, [], function, arguments(memory, 0, 1))
    second = add_node(stub, graph, [first], function, arguments(memory, 0, 2), grid=5)
    third = add_node(stub, graph, [first, second], function, arguments(memory, 0, 3))
    assert handles(stub, "cuGraphGetNodes", graph) == [third, second, first]  # the driver promises no order
    assert handles(stub, "cuGraphNodeGetDependencies", third) == [first, second]
    params = KernelParams()
    stub.call("cuGraphKernelNodeGetParams_v2", second, ctypes.byref(params))
    assert (params.function, list(params.dims), params.shared) == (function, [5, 1, 1, 64, 1, 1], 0)
    assert ctypes.cast(params.params[2], ctypes.POINTER(ctypes.c_int32))[0] == 2
    other = stub.get("cuGraphCreate", 0)
    with pytest.raises(DriverStatus, match="INVALID_VALUE"):
        add_node(stub, other, [first], function, arguments(memory, 0))


def run_graph(stub: Stub, graph: int, stream: int) -> None:
    executable = stub.get("cuGraphInstantiateWithFlags", graph, 0)
    stub.call("cuGraphDestroy", graph)
    stub.call("cuGraphUpload", executable, stream)
    stub.call("cuGraphLaunch", executable, stream)
    stub.call("cuStreamSynchronize", stream)


@pytest.mark.parametrize(("edges", "order"), [([[], [0], [1]], [0, 1, 2]), ([[], [], [0]], [1, 0, 2])])
def test_a_missing_edge_shows(make: Make, images: Images, edges: list[list[int]], order: list[int]):
    stub, seen = make(), []
    stub.set_hook(lambda name, image, dims, values: seen.append(values[16]))
    function, graph, memory = load(stub, images), stub.get("cuGraphCreate", 0), stub.get("cuMemAlloc_v2", 1024)
    nodes: list[int] = []
    for index, before in enumerate(edges):
        nodes.append(add_node(stub, graph, [nodes[i] for i in before], function, arguments(memory, 0, index)))
    run_graph(stub, graph, stub.get("cuStreamCreate", 1))
    assert seen == order


def test_a_capture_gives_the_graph_of_its_calls(make: Make, images: Images):
    stub, seen = make(EAGER=1), []
    stub.set_hook(lambda name, image, dims, values: seen.append(values[16]))
    function, (stream, side) = load(stub, images), streams(stub, 2)
    event, memory = stub.get("cuEventCreate", 2), stub.get("cuMemAlloc_v2", 1024)
    stub.call("cuStreamBeginCapture_v2", stream, 0)
    stub.call("cuLaunchKernel", *launch(function, (1, 1, 1), 64, stream, arguments(memory, 0, 1)))
    stub.call("cuEventRecord", event, stream)
    stub.call("cuStreamWaitEvent", side, event, 0)
    stub.call("cuLaunchKernel", *launch(function, (1, 1, 1), 64, side, arguments(memory, 0, 2)))
    stub.call("cuEventRecord", event, side)
    stub.call("cuStreamWaitEvent", stream, event, 0)
    stub.call("cuLaunchKernel", *launch(function, (1, 1, 1), 64, stream, arguments(memory, 0, 3)))
    graph = stub.get("cuStreamEndCapture", stream, place=1)
    third, second, first = handles(stub, "cuGraphGetNodes", graph)
    before = [sorted(handles(stub, "cuGraphNodeGetDependencies", node)) for node in (first, second, third)]
    assert before == [[], [first], sorted([first, second])]
    assert seen == []
    run_graph(stub, graph, stream)
    assert seen == [1, 2, 3]


def test_what_a_capture_forbids(make: Make, images: Images):
    stub = make()
    function, (stream, side) = load(stub, images), streams(stub, 2)
    stub.call("cuStreamBeginCapture_v2", stream, 0)
    result = ctypes.byref(ctypes.c_uint64())
    assert stub.status("cuMemAlloc_v2", result, 1) == "STREAM_CAPTURE_UNSUPPORTED"
    assert stub.status("cuModuleLoadData", result, b"") == "STREAM_CAPTURE_UNSUPPORTED"
    assert stub.status("cuCtxSynchronize") == "STREAM_CAPTURE_UNSUPPORTED"
    assert stub.status("cuStreamSynchronize", stream) == "STREAM_CAPTURE_UNSUPPORTED"
    assert stub.status("cuStreamEndCapture", stream, result) == "STREAM_CAPTURE_INVALIDATED"
    event = stub.get("cuEventCreate", 2)
    stub.call("cuStreamBeginCapture_v2", stream, 0)
    stub.call("cuEventRecord", event, stream)
    stub.call("cuStreamWaitEvent", side, event, 0)
    stub.call("cuLaunchKernel", *launch(function, (1, 1, 1), 64, side, arguments(0, 0)))
    assert stub.status("cuStreamEndCapture", stream, result) == "STREAM_CAPTURE_UNJOINED"
    stub.call("cuStreamSynchronize", side)


def test_a_handle_that_is_none_is_refused(make: Make):
    stub = make()
    event = stub.get("cuEventCreate", 2)
    assert stub.status("cuStreamSynchronize", event) == "INVALID_HANDLE"
    assert stub.status("cuGraphLaunch", 4096, 0) == "INVALID_HANDLE"
    stub.call("cuEventDestroy_v2", event)
    assert stub.status("cuEventRecord", event, 0) == "INVALID_HANDLE"
    stub.call("cuCtxSetCurrent", None)
    assert stub.status("cuEventCreate", ctypes.byref(ctypes.c_uint64()), 2) == "INVALID_CONTEXT"


def test_the_log_holds_calls_and_what_came_of_them(make: Make, tmp_path: Path):
    stub = make()
    stub.call("stub_log", str(tmp_path / "log").encode())
    stub.call("stub_mark", b"here")
    stub.get("cuMemAlloc_v2", 24)
    stub.status("cuMemFree_v2", 1)
    stub.call("stub_log", None)
    lines = [line for line in (tmp_path / "log").read_text(encoding="ascii").splitlines() if "GetError" not in line]
    assert lines == [
        "stub_mark", "  mark here", "cuMemAlloc_v2", "  device bytes=24", "cuMemFree_v2",
        "  refused: that address was not allocated",
    ]  # fmt: skip


EXERCISE = """
import ctypes, sys
from pathlib import Path
from cuda_client import Stub, launch
library, image, kernel = Path(sys.argv[1]), Path(sys.argv[2]).read_bytes(), sys.argv[3].encode()
for eager in (0, 1):
    stub = Stub(library, EAGER=eager)
    stub.boot()
    stub.set_hook(lambda *_: None)
    memory, host, stream = stub.get("cuMemAlloc_v2", 64), stub.host(bytes(64)), stub.get("cuStreamCreate", 1)
    function = stub.get("cuModuleGetFunction", stub.get("cuModuleLoadData", image), kernel)
    values = [ctypes.c_uint64(memory), ctypes.c_uint64(memory), ctypes.c_int32(1), ctypes.c_uint64(), ctypes.c_uint64()]
    stub.call("cuStreamBeginCapture_v2", stream, 0)
    for _ in range(50):
        stub.call("cuLaunchKernel", *launch(function, (1, 1, 1), 64, stream, values))
    graph = stub.get("cuGraphInstantiateWithFlags", stub.get("cuStreamEndCapture", stream, place=1), 0)
    event = stub.get("cuEventCreate", 2)
    for _ in range(5):
        stub.call("cuMemcpyHtoDAsync_v2", memory, host, 64, stream)
        stub.call("cuGraphLaunch", graph, stream)
        stub.call("cuMemcpyDtoHAsync_v2", host, memory, 64, stream)
        stub.call("cuEventRecord", event, stream)
        stub.call("cuEventSynchronize", event)
    assert stub.status("cuModuleLoadData", ctypes.byref(ctypes.c_uint64()), b"\\x7fELF" + bytes(200)) == "INVALID_IMAGE"
    stub.call("cuMemFree_v2", memory)
    stub.call("stub_reset")
print("whole")
"""


def test_the_stub_itself_is_sound(images: Images, tmp_path: Path):
    """Under the sanitizers for addresses and undefined behaviour."""
    library = build_stub(tmp_path, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    image = tmp_path / "image"
    image.write_bytes(images[Target(89)].image + bytes(16))
    ran = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, encoding="utf-8", check=True)
    environment = {
        **os.environ, "LD_PRELOAD": ran.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }  # fmt: skip
    command = [sys.executable, "-c", EXERCISE, str(library), str(image), SPEC.name]
    ran = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "whole\n"


def streams(stub: Stub, count: int) -> list[int]:
    return [stub.get("cuStreamCreate", 1) for _ in range(count)]
