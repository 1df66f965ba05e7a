"""Piece `timing`: how long a decode step takes as one graph and kernel by kernel, and how much that varies.

Steps of both ways take turns in one process, so that clocks and neighbours are the same for both. Every step is the
same work: its position is put back before it, to the last one of the bucket.
"""

import gc
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qpack_runtime.bench.bandwidth import copy_bandwidth
from qpack_runtime.cuda.executor import CudaExecutor
from qpack_runtime.engine import Engine
from qpack_runtime.sampling_options import SamplingOptions
from qpack_schemas.bundle import open_bundle
from qpack_schemas.bundle_rules import shared_buffers
from qpack_schemas.manifest import Bucket
from qpack_schemas.traffic import decode_traffic

from .outcome import Line, Outcome, Settings
from .steps import Launch, buckets_of, decode, fill

WARM_UP = 20  # steps of each way


@dataclass(frozen=True)
class Times:
    """Milliseconds of each step: on the device, from event to event, what it waits for the host included; and on the
    host, from launch to outputs."""

    device: np.ndarray
    host: np.ndarray

    def line(self) -> Line:
        p50, p99 = np.percentile(self.device, [50, 99])
        return {
            "mean ms": float(self.device.mean()), "p50 ms": float(p50), "p99 ms": float(p99),
            "std ms": float(self.device.std()), "host mean ms": float(self.host.mean()),
            "host p99 ms": float(np.percentile(self.host, 99)), "host std ms": float(self.host.std()),
        }  # fmt: skip


class Stopwatch:
    """Steps of one executor, timed."""

    def __init__(self, executor: CudaExecutor, scratch: int):
        self._executor, self._scratch = executor, scratch
        self._driver, self._stream = executor.queue
        self._begin, self._end = (self._driver.call("cuEventCreate", 0) for _ in range(2))
        self._positions = np.zeros(scratch + 1, np.int32)

    def rewind(self, position: int) -> None:
        """Every slot's next row is at `position`."""
        self._positions[:] = position
        address = self._executor.memory.address("slot_position", "decode", 1)
        size = self._positions.nbytes
        self._driver.call("cuMemcpyHtoDAsync_v2", address, self._positions.ctypes.data, size, self._stream)
        self._driver.call("cuStreamSynchronize", self._stream)

    def step(self, bucket: Bucket, launch: Launch) -> tuple[float, float]:
        """Milliseconds on the device and on the host."""
        self.rewind(bucket["context"] - 1)
        call, begin = self._driver.call, time.perf_counter()
        call("cuEventRecord", self._begin, self._stream)

        def recorded(name: str):
            ticket = launch(name)
            call("cuEventRecord", self._end, self._stream)
            return ticket

        decode(self._executor, bucket, range(bucket["rows"]), self._scratch, recorded)
        host = 1000 * (time.perf_counter() - begin)
        call("cuEventSynchronize", self._end)
        return call("cuEventElapsedTime", self._begin, self._end), host

    def interleaved(self, bucket: Bucket, steps: int) -> tuple[Times, Times]:
        """Graph and eager."""
        ways: list[Launch] = [self._executor.launch, self._executor.launch_eagerly]
        for _ in range(min(WARM_UP, steps)):
            for way in ways:
                self.step(bucket, way)
        taken = np.array([[self.step(bucket, way) for way in ways] for _ in range(steps)])  # [steps, 2 ways, 2 clocks]
        graph, eager = (Times(taken[:, way, 0], taken[:, way, 1]) for way in range(2))
        return graph, eager

    def back_to_back(self, bucket: Bucket, steps: int) -> tuple[float, int]:
        """Seconds of a step as the engine decodes, which launches one before it reads the one before; and how many
        positions a sequence held halfway. Ends at the bucket's context."""
        steps = min(steps, bucket["context"] - 1)
        self.rewind(bucket["context"] - 1 - steps)
        executor, pending = self._executor, None
        executor.io(bucket["name"])["slots"][:] = range(bucket["rows"])
        begin = time.perf_counter()
        for _ in range(steps):
            following = executor.launch(bucket["name"])
            if pending is not None:
                executor.read(pending)
            pending = following
        if pending is not None:
            executor.read(pending)
        return (time.perf_counter() - begin) / steps, bucket["context"] - steps // 2


def time_steps(path: Path, settings: Settings) -> Outcome:
    """All decode buckets of the bundle at `path`."""
    bundle = open_bundle(path, digests=False)
    executor = CudaExecutor(bundle, allow_ptx=settings.allow_ptx)
    fill(executor, "state", 0)  # finite, whatever position is read
    engine, slots = Engine(executor, bundle.manifest), bundle.manifest["slots"]
    for slot in range(slots):
        engine.admit(slot, SamplingOptions())
    bandwidth, shared = 1e9 * copy_bandwidth(*executor.queue), shared_buffers(bundle.manifest)
    watch, jitter, speeds, shares = Stopwatch(executor, slots), list[Line](), list[Line](), list[float]()
    gc.disable()
    for bucket in buckets_of(bundle, "decode"):
        graph, eager = watch.interleaved(bucket, settings.steps)
        seconds, positions = watch.back_to_back(bucket, settings.steps)
        moved = decode_traffic(bundle.programs["decode"], shared, bucket["rows"], positions).total
        shares.append(moved / (seconds * bandwidth))
        jitter += [
            {"bucket": bucket["name"], "way": way, **times.line()}
            for way, times in (("graph", graph), ("eager", eager))
        ]
        speeds.append({
            "bucket": bucket["name"], "tokens/s": bucket["rows"] / seconds, "MB moved": moved / 1e6,
            "of the bandwidth": shares[-1], "eager std / graph std": _ratio(eager.device, graph.device),
            "on the host": _ratio(eager.host, graph.host),
        })  # fmt: skip
    gc.enable()
    what = (
        f"eager steps vary {np.median([line['eager std / graph std'] for line in speeds]):.3g} times as much as graphs"
    )
    return Outcome(
        f"{what} (standard deviation, median of {len(speeds)} buckets); decoding takes "
        f"{min(shares):.0%} to {max(shares):.0%} of the {bandwidth / 1e9:.0f} GB/s that copies reach",
        tables={"Speed of decode buckets": speeds, "Times of a step": jitter},
    )


def _ratio(eager: np.ndarray, graph: np.ndarray) -> float:
    return float(eager.std() / max(graph.std(), 1e-9))
