"""A finished graph is read back from the driver and compared with its launches, node by node."""

import ctypes
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields

from qpack_runtime.cuda.driver import Driver, KernelNodeParams
from qpack_runtime.cuda.kernels import LoadedKernel, size_of
from qpack_runtime.cuda.launches import KernelLaunch
from qpack_runtime.cuda.memory import DeviceMemory
from qpack_schemas.errors import Finding, IntegrityError
from qpack_schemas.strict_json import JsonValue, dump_compact

KERNEL_NODE = 0  # CU_GRAPH_NODE_TYPE_KERNEL


class UnexpectedNode(Exception):
    """A node that no launch table can ask for; the message says which."""


def check_graph(
    driver: Driver, graph: int, launches: Sequence[KernelLaunch], kernels: Mapping[str, LoadedKernel], where: str
) -> list[KernelLaunch]:
    """The nodes of the graph in the order of the table. `where` names bucket and table.

    Raises IntegrityError naming the first node that is not what the table says."""
    try:
        nodes = read_nodes(driver, graph, kernels)
    except UnexpectedNode as error:
        raise _differs(where, str(error)) from None
    for index, (node, launch) in enumerate(zip(nodes, launches, strict=False)):
        for field in fields(KernelLaunch):
            got, wanted = getattr(node, field.name), getattr(launch, field.name)
            if got != wanted:
                name = field.name.replace("_", " ")
                got, wanted = (value.hex(" ", 8) if isinstance(value, bytes) else value for value in (got, wanted))
                raise _differs(where, f"node {index} ({launch.kernel}): {name} is {got}, the table says {wanted}")
    if len(nodes) != len(launches):
        raise _differs(where, f"has {len(nodes)} nodes, the table {len(launches)} launches")
    return nodes


def read_nodes(driver: Driver, graph: int, kernels: Mapping[str, LoadedKernel]) -> list[KernelLaunch]:
    """The kernels of a graph as the driver holds them, in the one order that their dependencies allow."""
    by_function = {kernel.function: kernel for kernel in kernels.values()}
    handles = driver.list_handles("cuGraphGetNodes", graph)  # in no promised order
    before = {handle: driver.list_handles("cuGraphNodeGetDependencies", handle) for handle in handles}
    order = _only_order(before)
    place = {handle: index for index, handle in enumerate(order)}
    nodes: list[KernelLaunch] = []
    for handle in order:
        if (kind := driver.call("cuGraphNodeGetType", handle)) != KERNEL_NODE:
            raise UnexpectedNode(f"node {len(nodes)} is no kernel but of type {kind}")
        params = KernelNodeParams()
        driver.call("cuGraphKernelNodeGetParams_v2", handle, params)
        name = driver.call("cuFuncGetName", params.func).decode("ascii") if driver.has("cuFuncGetName") else "?"
        if (kernel := by_function.get(params.func or 0) or kernels.get(name)) is None:
            raise UnexpectedNode(f"node {len(nodes)} runs a function that was not loaded: {name}")
        after = tuple(sorted(place[other] for other in before[handle]))
        nodes.append(_node(params, kernel, after))
    return nodes


def fingerprint(nodes: Sequence[KernelLaunch], kernels: Mapping[str, LoadedKernel], memory: DeviceMemory) -> str:
    """sha256 over the nodes, with addresses told as arena and offset: the same at every boot of a bundle and target."""
    facts = [
        {
            "kernel": node.kernel,
            "grid": list(node.grid),
            "block": list(node.block),
            "shared_bytes": node.shared_bytes,
            "arguments": _placed_arguments(node.arguments, kernels[node.kernel], memory),
            "after": list(node.after),
        }
        for node in nodes
    ]
    return hashlib.sha256(dump_compact(facts)).hexdigest()


def _only_order(before: Mapping[int, list[int]]) -> list[int]:
    """The nodes, each behind all that it depends on."""
    behind: dict[int, list[int]] = {node: [] for node in before}
    for node, others in before.items():
        for other in others:
            behind[other].append(node)
    waiting = {node: len(others) for node, others in before.items()}
    ready = [node for node, count in waiting.items() if count == 0]
    order: list[int] = []
    while ready:
        if len(ready) > 1:
            raise UnexpectedNode(f"{len(ready)} nodes may run behind node {len(order) - 1}, one must")
        order += ready
        ready = []
        for node in behind[order[-1]]:
            waiting[node] -= 1
            if waiting[node] == 0:
                ready.append(node)
    return order


def _node(params: KernelNodeParams, kernel: LoadedKernel, after: tuple[int, ...]) -> KernelLaunch:
    grid = params.gridDimX, params.gridDimY, params.gridDimZ
    block = params.blockDimX, params.blockDimY, params.blockDimZ
    arguments = bytearray(kernel.argument_bytes)
    values = ctypes.cast(params.kernelParams, ctypes.POINTER(ctypes.c_void_p))
    for index, (kind, offset) in enumerate(zip(kernel.types, kernel.offsets, strict=True)):
        arguments[offset : offset + size_of(kind)] = ctypes.string_at(values[index] or 0, size_of(kind))
    return KernelLaunch(kernel.name, kernel.function, grid, block, params.sharedMemBytes, bytes(arguments), after)


def _placed_arguments(arguments: bytes, kernel: LoadedKernel, memory: DeviceMemory) -> list[JsonValue]:
    """An address as [arena, offset], anything else as its number."""
    placed: list[JsonValue] = []
    for kind, offset in zip(kernel.types, kernel.offsets, strict=True):
        value = int.from_bytes(arguments[offset : offset + size_of(kind)], "little")
        arena = memory.arena_of(value) if kind.startswith("*") else None
        placed.append(list(arena) if arena else value)
    return placed


def _differs(where: str, message: str) -> IntegrityError:
    return IntegrityError(
        "the driver holds another graph than the launch table asks for:",
        [Finding(where, message)],
        remedy="report it with the driver's version; --allow-eager does not help",
    )
