"""One CUDA graph per bucket: built from its launches, or captured while they are enqueued; both give the same nodes."""

import ctypes
from collections.abc import Mapping, Sequence

from qpack_runtime.cuda.driver import Driver, KernelNodeParams, argument_pointers
from qpack_runtime.cuda.kernels import LoadedKernel
from qpack_runtime.cuda.launches import DirectLaunch, KernelLaunch

GLOBAL = 0  # CU_STREAM_CAPTURE_MODE_GLOBAL: a call that could spoil the capture fails in any thread


def build_graph(driver: Driver, launches: Sequence[KernelLaunch], kernels: Mapping[str, LoadedKernel]) -> int:
    """A graph with one kernel node per launch and its `after` as dependencies. The driver copies the arguments."""
    graph = driver.call("cuGraphCreate", 0)
    nodes: list[int] = []
    for launch in launches:
        arguments = ctypes.create_string_buffer(launch.arguments, len(launch.arguments))
        pointers = argument_pointers(arguments, kernels[launch.kernel].offsets)
        params = KernelNodeParams(
            launch.function, *launch.grid, *launch.block, launch.shared_bytes, ctypes.addressof(pointers)
        )
        before = (ctypes.c_void_p * max(len(launch.after), 1))(*(nodes[index] for index in launch.after))
        nodes.append(driver.call("cuGraphAddKernelNode_v2", graph, before, len(launch.after), params))
    return graph


def capture_graph(
    driver: Driver, stream: int, launches: Sequence[KernelLaunch], kernels: Mapping[str, LoadedKernel]
) -> int:
    """The same graph out of a stream, where each launch follows the one before."""
    direct = [DirectLaunch(launch, kernels[launch.kernel].offsets) for launch in launches]
    driver.call("cuStreamBeginCapture_v2", stream, GLOBAL)
    for launch in direct:
        launch.enqueue(driver, stream)
    return driver.call("cuStreamEndCapture", stream)


def instantiate(driver: Driver, stream: int, graph: int) -> int:
    """The executable graph, already on the device: its first launch uploads nothing."""
    executable = driver.call("cuGraphInstantiateWithFlags", graph, 0)
    driver.call("cuGraphUpload", executable, stream)
    driver.call("cuStreamSynchronize", stream)
    driver.call("cuGraphDestroy", graph)
    return executable
