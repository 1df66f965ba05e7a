"""A graph is what its launches say, and any difference is found when it is read back."""

import ctypes
from dataclasses import fields, replace
from typing import Any

import pytest

from fake_driver import FakeDriver
from qpack_runtime.cuda.driver import KernelNodeParams
from qpack_runtime.cuda.graph import build_graph, capture_graph
from qpack_runtime.cuda.graph_check import check_graph, fingerprint
from qpack_runtime.cuda.kernels import SCRATCH_POINTERS, LoadedKernel, offsets_of
from qpack_runtime.cuda.launches import KernelLaunch
from qpack_schemas.errors import IntegrityError

WHERE = "kernels/sm_89/decode.json for decode-b1-c64"
TYPES = ("*bf16", "i32", *SCRATCH_POINTERS)


class Arenas:
    """`arena_of` of DeviceMemory, with arenas that lie elsewhere in every process."""

    def __init__(self, base: int):
        self.base = base

    def arena_of(self, address: int) -> tuple[str, int] | None:
        return ("work", address - self.base) if self.base <= address < self.base + 4096 else None


def loaded(driver: FakeDriver, *names: str) -> dict[str, LoadedKernel]:
    kernels: dict[str, LoadedKernel] = {}
    for name in names:
        driver.argument_sizes = {**driver.argument_sizes, name: [8, 4, 8, 8]}
        function = driver.call("cuModuleGetFunction", 0, name.encode())
        kernels[name] = LoadedKernel(name, function, (128, 1, 1), 0, TYPES, offsets_of(TYPES))
    return kernels


def launches(kernels: dict[str, LoadedKernel], base: int = 0x1000) -> list[KernelLaunch]:
    made: list[KernelLaunch] = []
    for index in range(6):
        kernel = list(kernels.values())[index % len(kernels)]
        arguments = (base + 256 * index).to_bytes(8, "little") + index.to_bytes(4, "little") + bytes(4 + 16)
        after = (index - 1,) if index else ()
        made.append(
            KernelLaunch(kernel.name, kernel.function, (index + 1, 2, 3), (128, 1, 1), 64 * index, arguments, after)
        )
    return made


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


def test_a_built_and_a_captured_graph_have_the_nodes_of_the_table(driver: FakeDriver):
    kernels = loaded(driver, "a", "b", "c")
    wanted = launches(kernels)
    built = check_graph(driver, build_graph(driver, wanted, kernels), wanted, kernels, WHERE)
    captured = check_graph(driver, capture_graph(driver, 1, wanted, kernels), wanted, kernels, WHERE)
    assert built == captured == wanted


def test_the_fingerprint_tells_places_in_arenas_and_not_addresses(driver: FakeDriver):
    kernels = loaded(driver, "a", "b")
    seen = {fingerprint(launches(kernels, base), kernels, Arenas(base)) for base in (0x1000, 0x7F00_0000_0000)}  # type: ignore
    assert len(seen) == 1
    for field in ("grid", "block", "shared_bytes", "after", "kernel", "arguments"):
        changed = launches(kernels)
        other = {"grid": (9, 9, 9), "block": (64, 1, 1), "shared_bytes": 0, "after": (0,), "kernel": "b"}
        value = other.get(field, changed[3].arguments)
        changed[2] = replace(changed[2], **{field: value})
        assert fingerprint(changed, kernels, Arenas(0x1000)) not in seen, field  # type: ignore


CHANGES: dict[str, Any] = {
    "kernel": "other",
    "function": 4711,
    "grid": (1, 1, 1),
    "block": (64, 1, 1),
    "shared_bytes": 4096,
    "arguments": bytes(32),
    "after": (0,),
}


@pytest.mark.parametrize("field", [field.name for field in fields(KernelLaunch)])
def test_the_first_node_that_differs_is_named_with_both_values(driver: FakeDriver, field: str):
    kernels = loaded(driver, "a", "b")
    wanted = launches(kernels)
    graph = build_graph(driver, wanted, kernels)
    wanted[3] = replace(wanted[3], **{field: CHANGES[field]})
    wanted[5] = replace(wanted[5], grid=(7, 7, 7))
    with pytest.raises(IntegrityError, match="node 3") as raised:
        check_graph(driver, graph, wanted, kernels, WHERE)
    assert field.replace("_", " ") in str(raised.value)
    assert WHERE in str(raised.value)
    assert raised.value.exit_code == 5


def damaged(driver: FakeDriver, how: str) -> tuple[int, list[KernelLaunch], dict[str, LoadedKernel]]:
    kernels = loaded(driver, "a", "b")
    wanted = launches(kernels)
    graph = build_graph(driver, wanted[:-1] if how == "short" else wanted, kernels)
    nodes = driver.graphs[graph]
    last = list(nodes)[-1]
    params, keep, before = nodes[last]
    if how == "loose":  # no longer behind the others
        nodes[last] = params, keep, ()
    elif how == "long":
        extra = KernelNodeParams.from_buffer_copy(params)
        driver.graphs[graph][last + 1] = extra, keep, (last,)
    elif how == "stranger":
        kept = KernelNodeParams.from_buffer_copy(params)
        kept.func = 4711
        nodes[last] = kept, keep, before
    elif how == "bytes":
        ctypes.memset(keep[0][1], 0xFF, 1)
    return graph, wanted, kernels


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("short", "has 5 nodes, the table 6 launches"),
        ("long", "has 7 nodes, the table 6 launches"),
        ("loose", "2 nodes may run"),
        ("stranger", "not loaded"),
        ("bytes", "node 5 .*arguments"),
    ],
)
def test_what_a_driver_could_do_to_a_graph_is_found(driver: FakeDriver, how: str, message: str):
    graph, wanted, kernels = damaged(driver, how)
    with pytest.raises(IntegrityError, match=message):
        check_graph(driver, graph, wanted, kernels, WHERE)
