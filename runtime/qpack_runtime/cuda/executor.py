"""Runs a bundle's programs on a GPU: one graph per bucket, launched while the step before is still running.

Everything is allocated, loaded and checked when the object is made. It lives as long as the process, and all its calls
come from the thread that made it.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from qpack_runtime.arenas import OPAQUE, numeric
from qpack_runtime.boot_watch import BootWatch
from qpack_runtime.cuda.driver import Driver
from qpack_runtime.cuda.graphs import Graphs
from qpack_runtime.cuda.host import choose_target, read_host
from qpack_runtime.cuda.kernels import load_kernels
from qpack_runtime.cuda.memory import DeviceMemory
from qpack_runtime.cuda.pinned import PinnedRows, Row
from qpack_runtime.cuda.seats import Seats
from qpack_runtime.cuda.step_io import StepIo, plan_step
from qpack_runtime.cuda.upload import upload_files
from qpack_schemas.bundle import Bundle
from qpack_schemas.manifest import Bucket, compiled_targets
from qpack_schemas.program import Buffer, Program

NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: no order with the legacy stream
AHEAD = 2  # steps that may be under way: as many rows to send from and to receive in


@dataclass
class Ticket:
    """A launched step. `outputs` are here as soon as they have been read, or another step needs the row."""

    bucket: str
    row: Row
    outputs: dict[str, np.ndarray] | None = None


class CudaExecutor:
    """The Engine's executor on GPU 0. Raises UnsupportedError, FitError or IntegrityError if the bundle can't run here.

    `watch` is told of each phase, and of each bucket whose graph is ready."""

    lookahead = True
    same_bits = False  # prefill and decode sum in different orders

    def __init__(
        self,
        bundle: Bundle,
        *,
        allow_eager: bool = False,
        allow_ptx: bool = False,
        capture: bool = False,
        watch: BootWatch | None = None,
    ):
        watch = watch or BootWatch()
        watch.begin("host")
        self._bundle = bundle
        self._buckets: dict[str, Bucket] = {bucket["name"]: bucket for bucket in bundle.manifest["buckets"]}
        self._driver = driver = Driver()
        self.host = read_host(driver)
        self.target = choose_target(bundle, self.host, allow_ptx=allow_ptx)
        watch.begin("allocate")
        free_before, _ = driver.call("cuMemGetInfo_v2")
        self._stream = driver.call("cuStreamCreate", NON_BLOCKING)
        self.memory = DeviceMemory(driver, bundle, self.target)
        self._host_io = np.zeros(self.memory.sizes["io"], np.uint8)  # the io arena as the host sees it
        self._steps = {name: plan_step(*self._program(name)) for name in self._buckets}
        self._inputs = PinnedRows(driver, self._stream, max(step.input_bytes for step in self._steps.values()), AHEAD)
        self._outputs = PinnedRows(driver, self._stream, max(step.output_bytes for step in self._steps.values()), AHEAD)
        self._io = {name: self._host_views(name) for name in self._buckets}
        self._seats = Seats(driver, self._stream, self.memory, self._tables())
        watch.begin("upload")
        self._upload_seconds = self._upload()
        watch.begin("modules")
        target = compiled_targets(bundle.manifest["targets"])[self.target]
        kernels = load_kernels(driver, bundle.path, target["kernels"])
        watch.begin("graphs")
        self._graphs = Graphs(
            driver, self._stream, bundle, self.target, kernels, self.memory, watch, allow_eager=allow_eager,
            capture=capture,
        )  # fmt: skip
        watch.end()
        self._taken_bytes = free_before - driver.call("cuMemGetInfo_v2")[0]
        self._holders: dict[int, Ticket] = {}  # address of a row -> the last step that it received the outputs of
        self._resident: tuple[str, bytes] | None = None  # program and inputs that the io arena holds

    def io(self, bucket: str) -> Mapping[str, np.ndarray]:
        """What the host writes before a launch: the inputs of the bucket, and the sampling tables."""
        return self._io[bucket]

    def seat_written(self, slot: int) -> None:
        """Sends a slot's line of the sampling tables. Steps launched before don't see it, those launched after do."""
        self._seats.send(slot)

    def launch(self, bucket: str) -> Ticket:
        """Enqueues a step: inputs, graph, outputs. Waits only for the step before the last one, whose rows it uses."""
        return self._step(bucket, partial(self._graphs.launch, bucket))

    def launch_eagerly(self, bucket: str, before: Callable[[int], object] | None = None) -> Ticket:
        """The same step without its graph, kernel by kernel: for checks and measurements. `before` is called with the
        number of each launch of the table before it is enqueued, behind the inputs; it may read values and wait."""
        return self._step(bucket, partial(self._graphs.launch_eagerly, bucket, before))

    def _step(self, bucket: str, enqueue_kernels: Callable[[], None]) -> Ticket:
        step, call = self._steps[bucket], self._driver.call
        given, received = self._inputs.take(), self._outputs.take()
        if (before := self._holders.get(received.address)) is not None:
            self._keep_outputs(before)
        self._send_inputs(bucket, step, given)
        self._inputs.enqueued(given)
        enqueue_kernels()
        base = self.memory.base["io"]
        for span in step.outputs:
            call("cuMemcpyDtoHAsync_v2", received.address + span.place, base + span.begin, span.bytes, self._stream)
        self._outputs.enqueued(received)
        ticket = self._holders[received.address] = Ticket(bucket, received)
        return ticket

    def read(self, ticket: Ticket) -> dict[str, np.ndarray]:
        """The outputs of a step by name, once it has ended. Steps may be read in any order, or never."""
        if ticket.outputs is None:
            self._driver.call("cuEventSynchronize", ticket.row.event)
        return self._keep_outputs(ticket)

    def logits(self, bucket: str) -> np.ndarray:
        """A copy: no step brings them to the host by itself."""
        return self.value(bucket, "logits")

    def run(self, bucket: str) -> dict[str, np.ndarray]:
        """One step from beginning to end."""
        return self.read(self.launch(bucket))

    def state(self, name: str) -> np.ndarray:
        """A copy of a buffer that outlives the step, such as `slot_token` [slots + 1]. Waits for all that is under
        way."""
        buffer = self.memory.shared[name]
        return self._download(self.memory.address(name, "decode", 1), buffer.dtype, buffer.extent(1))

    def value(self, bucket: str, name: str) -> np.ndarray:
        """A copy of a buffer of the bucket's program or table, such as `logits`. Waits for all that is under way."""
        kind, rows = self._buckets[bucket]["program"], self._buckets[bucket]["rows"]
        work = self._bundle.tables[self.target][kind].work
        buffer = work[name] if name in work else self._bundle.programs[kind].buffers[name]
        return self._download(self.memory.address(name, kind, rows), buffer.dtype, buffer.extent(rows))

    @property
    def queue(self) -> tuple[Driver, int]:
        """The driver, and the stream in which all steps run: for who records events or fills memory between them."""
        return self._driver, self._stream

    @property
    def fallbacks(self) -> int:
        return self._graphs.eager_launches

    @property
    def notes(self) -> list[str]:
        """What somebody who watches the boot should know."""
        return [
            f"{self.target} on {self.host}",
            *(["the driver compiled its PTX at boot"] if self.target.startswith("cuda:ptx") else []),
            *self._graphs.notes,
        ]

    @property
    def facts(self) -> dict[str, Any]:
        """What was measured and decided, for machines."""
        gigabytes = self.memory.sizes["weights"] / 1e9
        return {
            "target": self.target,
            "gpu": self.host.name,
            "sm": self.host.sm,
            "driver": self.host.driver,
            "arena_bytes": dict(self.memory.sizes),
            "taken_bytes": self._taken_bytes,  # of the whole device: other processes show in it
            "upload_gb_per_s": round(gigabytes / self._upload_seconds, 3),
            "graphs": dict(self._graphs.fingerprints),
            "eager_launches": self._graphs.eager_launches,
        }

    def _upload(self) -> float:
        """Seconds for the weights. The io arena starts as zeros; state and work need no first value."""
        base, sizes = self.memory.base, self.memory.sizes
        self._driver.call("cuMemsetD8Async", base["io"], 0, sizes["io"], self._stream)
        begin = time.perf_counter()
        upload_files(self._driver, self._stream, base["weights"], self.memory.files)
        return time.perf_counter() - begin

    def _keep_outputs(self, ticket: Ticket) -> dict[str, np.ndarray]:
        """Out of the row, which must have been waited for, into the ticket."""
        if ticket.outputs is None:
            values = self._steps[ticket.bucket].values
            ticket.outputs = {name: output.of(ticket.row.array) for name, output in values.items()}
        return ticket.outputs

    def _send_inputs(self, bucket: str, step: StepIo, row: Row) -> None:
        """Unless the device has them still: decode steps of the same slots, one behind the other, send nothing."""
        given = b"".join(self._host_io[span.begin : span.end].tobytes() for span in step.inputs)
        if self._resident == (self._buckets[bucket]["program"], given):
            return
        for span in step.inputs:
            row.array[span.place : span.place + span.bytes] = self._host_io[span.begin : span.end]
            target = self.memory.base["io"] + span.begin
            self._driver.call("cuMemcpyHtoDAsync_v2", target, row.address + span.place, span.bytes, self._stream)
        self._resident = self._buckets[bucket]["program"], given

    def _program(self, bucket: str) -> tuple[Program, int]:
        return self._bundle.programs[self._buckets[bucket]["program"]], self._buckets[bucket]["rows"]

    def _tables(self) -> dict[str, np.ndarray]:
        shared = self.memory.shared.items()
        return {name: self._host_view(buffer, 1) for name, buffer in shared if buffer.arena == "io"}

    def _host_views(self, bucket: str) -> dict[str, np.ndarray]:
        program, rows = self._program(bucket)
        written = {name for instruction in program.code for name in instruction.outputs.values()}
        own = {name: b for name, b in program.buffers.items() if b.arena == "io" and name not in written}
        return {**self._tables(), **{name: self._host_view(buffer, rows) for name, buffer in own.items()}}

    def _host_view(self, buffer: Buffer, rows: int) -> np.ndarray:
        raw = self._host_io[buffer.offset : buffer.offset + buffer.bytes(rows)]
        return raw.view(OPAQUE[buffer.dtype]).reshape(buffer.extent(rows))

    def _download(self, address: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        array = np.empty(shape, np.int64 if dtype == "int64" else numeric(dtype))
        self._driver.call("cuMemcpyDtoHAsync_v2", array.ctypes.data, address, array.nbytes, self._stream)
        self._driver.call("cuStreamSynchronize", self._stream)
        return array
