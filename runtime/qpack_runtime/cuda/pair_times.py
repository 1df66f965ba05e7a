"""How long an int4 linear and its reader take on this GPU: graphs of such pairs, each over weights that no cache holds.

In a model every weight is read once a step, from memory. So a weight lies in memory so often that all its copies are
several times as large as the L2 cache, and a graph walks over them; its activations are as hot as they are in a model.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from qpack_runtime.cuda.driver import Driver
from qpack_runtime.cuda.graph import build_graph, instantiate
from qpack_runtime.cuda.host import DEVICE, Host
from qpack_runtime.cuda.kernels import LoadedKernel
from qpack_runtime.cuda.launches import bind
from qpack_runtime.cuda.pinned import PinnedRows
from qpack_schemas.errors import FitError
from qpack_schemas.launch_table import Launch, LaunchTable, Scalar
from qpack_schemas.program import align
from qpack_schemas.tuning_kit import Candidate, Weight, padded

L2_BYTES = 38  # CUdevice_attribute
NON_BLOCKING, TIMED = 1, 0  # CU_STREAM_NON_BLOCKING, CU_EVENT_DEFAULT
CACHES, LEAST_BYTES = 4, 64 << 20  # the copies of a weight take as many L2 caches, and at least these bytes
MOST_COPIES = 2048  # even of a tiny weight: each is two nodes of a graph
LEAST_PAIRS = 32  # of a graph: beside them, the few microseconds that its launch takes don't count
WARM_SECONDS = 0.3  # before a shape is measured: an idle GPU takes that long to raise its clocks
REPLAYS = 21  # of each graph; their median counts
PIECE_BYTES = 2 << 20
MIDDLING = 0x3C  # twice it is 0.0115 in bfloat16, 1.06 in float16, four times 0.0115 in float32
CODE_BYTES, PLANE_BYTES = 4, 4  # int32 words of codes, float32 planes
FLOAT_BYTES = {"*fp32": 4, "*bf16": 2, "*fp16": 2}

Times = dict[int, float]  # rows of the step -> microseconds of a pair


@dataclass(frozen=True)
class Walk:
    """The copies of a weight in memory, and the pairs of a graph, which use one copy after the other."""

    code_bytes: int
    scale_bytes: int
    copies: int

    @property
    def weight_bytes(self) -> int:
        return self.code_bytes + self.scale_bytes

    @property
    def pairs(self) -> int:
        """A multiple of the copies, so that the next graph doesn't find those it begins with in the cache."""
        return self.copies * -(-LEAST_PAIRS // self.copies)


def plan_walk(weight: Weight, scale_item: int, cache_bytes: int) -> Walk:
    """`scale_item`: bytes of one scale; `cache_bytes`: of the L2 cache."""
    k, n = padded(weight)
    codes, scales = CODE_BYTES * (k // 16) * (2 * n), scale_item * (k // 128) * n
    wanted = max(CACHES * cache_bytes, LEAST_BYTES)
    return Walk(codes, scales, min(MOST_COPIES, max(2, -(-wanted // (codes + scales)))))


class PairTimes:
    """Device memory for every weight of a kit, and times of its candidates. Raises FitError without room for them.

    `kernels` are those of the target by name, `rows` of the steps that are measured."""

    def __init__(
        self,
        driver: Driver,
        host: Host,
        kernels: Mapping[str, LoadedKernel],
        weights: Mapping[str, Weight],
        rows: Sequence[int],
    ):
        self._driver, self._kernels, self._rows = driver, kernels, rows
        self._stream = driver.call("cuStreamCreate", NON_BLOCKING)
        self._begin, self._end = (driver.call("cuEventCreate", TIMED) for _ in range(2))
        cache = driver.call("cuDeviceGetAttribute", L2_BYTES, driver.call("cuDeviceGet", DEVICE))
        self.walks = {shape: plan_walk(one, self._item(one, "scale"), cache) for shape, one in weights.items()}
        sizes = {name: max(self._need(name, shape, one) for shape, one in weights.items()) for name in _BUFFERS}
        if (total := sum(sizes.values())) > host.free_bytes:
            raise FitError(
                f"weights that no cache holds take {total:,} bytes; of the GPU's {host.total_bytes:,} bytes "
                f"{host.free_bytes:,} are free",
                remedy="end other processes on the GPU, or make the kit with a smaller --batch",
            )
        self._base = {name: driver.call("cuMemAlloc_v2", size) for name, size in sizes.items()}
        for name in ("scale", "x"):
            driver.call("cuMemsetD8Async", self._base[name], MIDDLING, sizes[name], self._stream)
        self._fill(self._base["q"], sizes["q"])

    def measure(self, shape: str, weight: Weight) -> list[Times]:
        """Of each candidate. All take turns in every round, so that a clock that changes, changes for all of them."""
        walk = self.walks[shape]
        graphs = [
            [(rows, self._graph(candidate, rows, walk)) for rows in self._rows] for candidate in weight["candidates"]
        ]
        begin = time.perf_counter()
        while time.perf_counter() - begin < WARM_SECONDS:
            self._round(graphs)
        rounds = [self._round(graphs) for _ in range(REPLAYS)]
        for graph in (graph for pair in graphs for _, graph in pair):
            self._driver.call("cuGraphExecDestroy", graph)
        return [
            {rows: 1000 / walk.pairs * median(one[index][rows] for one in rounds) for rows in self._rows}
            for index in range(len(graphs))
        ]

    def _round(self, graphs: list[list[tuple[int, int]]]) -> list[dict[int, float]]:
        """Milliseconds of every graph, by candidate and rows."""
        return [{rows: self._milliseconds(graph) for rows, graph in one} for one in graphs]

    def _milliseconds(self, graph: int) -> float:
        self._driver.call("cuEventRecord", self._begin, self._stream)
        self._driver.call("cuGraphLaunch", graph, self._stream)
        self._driver.call("cuEventRecord", self._end, self._stream)
        self._driver.call("cuEventSynchronize", self._end)
        return self._driver.call("cuEventElapsedTime", self._begin, self._end)

    def _graph(self, candidate: Candidate, rows: int, walk: Walk) -> int:
        launches: list[Launch] = []
        for pair in range(walk.pairs):
            copy = pair % walk.copies
            for kernel, grid, args in (
                (candidate["gemm"], candidate["gemm_grid"], ("x", f"q {copy}", f"scale {copy}", "y", Scalar("R"))),
                (candidate["reader"], candidate["reader_grid"], ("y", "read", Scalar("R"))),
            ):
                x, y, z = grid
                after = (len(launches) - 1,) if launches else ()
                launches.append(Launch(kernel, (pair, pair), (x, y, z), args, after))
        table = LaunchTable("decode", "", {}, tuple(launches))

        def address(name: str) -> int:
            buffer, _, copy = name.partition(" ")
            step = {"q": walk.code_bytes, "scale": walk.scale_bytes}.get(buffer, 0)
            return self._base[buffer] + int(copy or 0) * align(step)

        bound = bind(table, self._kernels, rows, 0, address)
        return instantiate(self._driver, self._stream, build_graph(self._driver, bound, self._kernels))

    def _need(self, name: str, shape: str, weight: Weight) -> int:
        """Bytes of a buffer for one weight."""
        walk, rows, item = self.walks[shape], max(self._rows), self._item(weight, "x")
        planes = max(candidate["planes"] for candidate in weight["candidates"])
        return {
            "q": walk.copies * align(walk.code_bytes),
            "scale": walk.copies * align(walk.scale_bytes),
            "x": item * rows * weight["k"],
            "y": PLANE_BYTES * planes * rows * weight["n"],
            "read": item * rows * (weight["n"] // 2),
        }[name]

    def _item(self, weight: Weight, operand: str) -> int:
        """Bytes of an element of `operand` of the linear."""
        gemm = self._kernels[weight["candidates"][0]["gemm"]]
        return FLOAT_BYTES[gemm.types[("x", "q", "scale").index(operand)]]

    def _fill(self, address: int, size: int) -> None:
        """Codes like those of a model, none like the others: what a GPU draws, and so its clock, depends on them."""
        pieces = PinnedRows(self._driver, self._stream, PIECE_BYTES, 1)
        piece = pieces.take()
        piece.array[:] = np.random.default_rng(0).integers(0, 256, PIECE_BYTES, np.uint8)
        for begin in range(0, size, PIECE_BYTES):
            part = min(PIECE_BYTES, size - begin)
            self._driver.call("cuMemcpyHtoDAsync_v2", address + begin, piece.address, part, self._stream)
        self._driver.call("cuStreamSynchronize", self._stream)
        pieces.free()


_BUFFERS = ("q", "scale", "x", "y", "read")
