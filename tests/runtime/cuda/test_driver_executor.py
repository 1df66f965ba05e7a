"""The executor's own work, without kernels: a graph of the fake driver runs the reference program on device memory.

Everything else is real: exchange of inputs and outputs, pinned rows, seats, order, what is allocated and when. Each run
is made with a device that works as late as it may and with one that works at once.
"""

import ctypes
import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_driver import FakeDriver
from qpack_runtime.boot import Booted, boot
from qpack_runtime.cuda import executor as executor_module
from qpack_runtime.cuda.driver import DriverError
from qpack_runtime.cuda.executor import CudaExecutor
from qpack_runtime.cuda.pinned import PinnedRows
from qpack_runtime.cuda.seats import Seats
from qpack_runtime.cuda.step_io import plan_step
from qpack_runtime.engine import Engine
from qpack_runtime.generate import generate
from qpack_runtime.reference.executor import ReferenceExecutor
from qpack_runtime.sampling_options import SamplingOptions
from qpack_schemas.bundle import Bundle
from qpack_schemas.errors import FitError, IntegrityError, UnsupportedError
from qpack_schemas.launch_table import Launch, LaunchTable, Scalar, TargetBuffer

TARGET = "cuda:sm_89"
IMAGE = "programs/decode.json"  # any file of the bundle: the fake driver reads no code
STEP_CALLS = {
    "cuEventSynchronize", "cuEventRecord", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuGraphLaunch"
}  # fmt: skip


def with_target(bundle: Bundle) -> Bundle:
    """The bundle with a target of two kernels, which read and write nothing but are told where things lie."""
    digest = hashlib.sha256((bundle.path / IMAGE).read_bytes()).hexdigest()
    entry = {"file": IMAGE, "sha256": digest, "block": 128, "params": [["x", "*bf16"], ["R", "i32"]]}
    buckets, memory = bundle.manifest["buckets"], bundle.manifest["memory"]
    work = {bucket["name"]: 512 * bucket["rows"] for bucket in buckets}
    fixed = memory["weights_bytes"] + memory["state_bytes"] + memory["io_bytes"]
    target = {
        "architecture": "sm_89", "scope": "major", "format": "cubin", "toolkit": 129, "min_driver": 12_000,
        "max_shared_bytes": 65_536, "work_bytes": work,
        "minimum_device_bytes": fixed + max(work.values()),
        "kernels": {"first": {**entry, "shared_bytes": 65_536}, "second": {**entry, "shared_bytes": 0}},
    }  # fmt: skip
    buffers = {"h": TargetBuffer("float32", ("R", 64), 0), "h~x": TargetBuffer("float32", (2, "R", 32), 256)}
    weight = next(iter(bundle.tensors))
    tables = {
        kind: LaunchTable(kind, TARGET, buffers, (
            Launch("first", (0, 0), ("R", 1, 1), ("h~x", Scalar("R")), ()),
            Launch("second", (1, 1), ("R/8", 1, 1), (weight, Scalar(3)), (0,)),
            Launch("first", (2, 2), ("C/256", 1, 1), ("ids", Scalar("R")), (1,)),
        ))
        for kind in bundle.programs
    }  # fmt: skip
    manifest = {**bundle.manifest, "targets": {**bundle.manifest["targets"], TARGET: target}}
    return replace(bundle, manifest=manifest, tables={TARGET: tables})


class Device:
    """A fake GPU on which the n-th graph is the n-th bucket of the capture order."""

    def __init__(self, bundle: Bundle, reference: ReferenceExecutor, *, eager: bool):
        self.bundle, self.reference = bundle, reference
        self.driver = FakeDriver(eager=eager, launched=self._run)
        self.driver.argument_sizes = {"first": [8, 4, 8, 8], "second": [8, 4, 8, 8]}
        self.base: dict[Any, int] = {}
        self.steps = 0

    def _run(self, graph: int) -> None:
        arenas = self.reference.arenas
        for name, array in (("state", arenas.state), ("io", arenas.io)):
            ctypes.memmove(array.ctypes.data, self.base[name], array.nbytes)
        self.reference.run(self.bundle.manifest["capture_order"][graph])
        for name, array in (("state", arenas.state), ("io", arenas.io)):
            ctypes.memmove(self.base[name], array.ctypes.data, array.nbytes)
        self.steps += 1

    def boot(self, **options: Any) -> CudaExecutor:
        executor = CudaExecutor(self.bundle, **options)
        self.base = executor.memory.base
        return executor


@pytest.fixture(scope="module")
def plain(tiny_bundle: Callable[[str], Path]) -> Booted:
    return boot(tiny_bundle("tiny-qwen3_5"))


@pytest.fixture(scope="module")
def reference(plain: Booted) -> ReferenceExecutor:
    """Computes for every fake device: what its arenas hold is copied in and out."""
    return ReferenceExecutor(plain.bundle)


@pytest.fixture(scope="module")
def wanted(plain: Booted) -> list[Any]:
    return trace(Engine(ReferenceExecutor(plain.bundle), plain.bundle.manifest))


@pytest.fixture(params=["late", "eager"])
def device(
    request: pytest.FixtureRequest, plain: Booted, reference: ReferenceExecutor, monkeypatch: pytest.MonkeyPatch
) -> Device:
    device = Device(with_target(plain.bundle), reference, eager=request.param == "eager")
    monkeypatch.setattr(executor_module, "Driver", lambda: device.driver)
    return device


def trace(engine: Engine) -> list[Any]:
    """Chunked prompts, padded batches, seats taken while steps are under way, buckets of both programs in turn."""
    seen: list[Any] = []
    options = [SamplingOptions(temperature=0.9, seed=slot, top_k=30, logprobs=slot == 2) for slot in range(4)]
    pending = [engine.launch_prefill(slot, [7 + slot, 8] * 33, options[slot]) for slot in (1, 3, 0)]  # six chunks
    while pending:
        seen += engine.read(pending.pop(0))
    for step in range(9):
        pending.append(engine.launch_decode([0]))
        if step == 3:
            seen += engine.read(pending.pop())
            seen += engine.read(engine.launch_prefill(2, [5, 6, 7], options[2]))
        if step == 5:
            seen += engine.read(pending.pop(0))
            pending.append(engine.launch_decode([2, 0, 1, 3]))
        while len(pending) > 1:
            seen += engine.read(pending.pop(0))
    return seen + [choice for one in pending for choice in engine.read(one)]


def test_the_exchange_loses_nothing_and_the_arrays_are_the_hosts_own(device: Device, wanted: list[Any]):
    executor = device.boot()
    assert trace(Engine(executor, device.bundle.manifest)) == wanted
    assert device.steps > 10


def test_text_is_the_references(device: Device, plain: Booted):
    executor = device.boot()
    ahead = replace(plain, executor=executor, engine=Engine(executor, device.bundle.manifest))
    options = SamplingOptions(temperature=0.7, seed=5, repetition_penalty=1.2)
    (*_, wanted) = generate(plain, [40, 41, 42] * 9, max_tokens=12, options=options)
    (*_, got) = generate(ahead, [40, 41, 42] * 9, max_tokens=12, options=options)
    assert (got.output_ids, got.text) == (wanted.output_ids, wanted.text)


def test_after_boot_nothing_is_allocated_loaded_or_waited_for_but_events(device: Device):
    executor = device.boot()
    engine = Engine(executor, device.bundle.manifest)
    device.driver.names.clear()
    trace(engine)
    names = device.driver.names
    assert set(names) == STEP_CALLS
    begins = [index for index, name in enumerate(names) if name == "cuGraphLaunch"]
    assert all(names[index + 1] == "cuMemcpyDtoHAsync_v2" for index in begins)


def test_a_decode_step_of_the_same_slots_sends_nothing(device: Device):
    executor = device.boot()
    engine = Engine(executor, device.bundle.manifest)
    engine.prefill(0, [5, 6, 7])
    engine.decode([0])
    device.driver.names.clear()
    engine.decode([0])
    assert "cuMemcpyHtoDAsync_v2" not in device.driver.names
    engine.prefill(1, [5])  # lies where the slots of decode lie
    engine.decode([0])
    device.driver.names.clear()
    engine.decode([1])
    assert "cuMemcpyHtoDAsync_v2" in device.driver.names


def test_arenas_take_the_planned_bytes_and_hold_the_weight_files(device: Device):
    executor = device.boot()
    memory, planned = executor.memory, device.bundle.manifest["memory"]
    assert memory.sizes["weights"] == planned["weights_bytes"]
    assert (memory.sizes["state"], memory.sizes["io"]) == (planned["state_bytes"], planned["io_bytes"])
    assert device.driver.names.count("cuMemAlloc_v2") == 4
    for name, (path, span) in device.bundle.tensors.items():
        raw = ctypes.string_at(memory.address(name, "decode", 1), span.bytes)
        assert raw == path.read_bytes()[span.begin : span.begin + span.bytes], name
    assert memory.address("h~x", "decode", 4) == memory.base["work"] + 4 * 256
    assert executor.facts["arena_bytes"] == memory.sizes


def test_inputs_and_outputs_are_the_hosts_and_logits_stay_on_the_device(device: Device):
    executor = device.boot()
    for bucket in device.bundle.manifest["buckets"]:
        program, rows = device.bundle.programs[bucket["program"]], bucket["rows"]
        step = plan_step(program, rows)
        places = {name: (b.offset, b.offset + b.bytes(rows)) for name, b in program.buffers.items() if b.arena == "io"}
        inside = {
            direction: {n for n, (begin, end) in places.items() if any(s.begin < end and begin < s.end for s in spans)}
            for direction, spans in (("in", step.inputs), ("out", step.outputs))
        }
        wanted = {"slots"} if bucket["program"] == "decode" else {"prompt", "slot", "start", "length"}
        assert inside["in"] == wanted
        assert inside["out"] == {"ids", "status", "logprobs", "top_ids", "top_logprobs"}
        assert {name for name in executor.io(bucket["name"]) if not name.startswith("sampling.")} == wanted


def test_the_state_and_the_logits_can_be_looked_at(device: Device, plain: Booted):
    executor = device.boot()
    engine = Engine(executor, device.bundle.manifest)
    engine.prefill(3, [5, 6, 7])
    assert executor.state("slot_position")[3] == 3
    reference = Engine(ReferenceExecutor(plain.bundle), plain.bundle.manifest)
    reference.prefill(3, [5, 6, 7])
    wanted = reference.executor.io("prefill-t16-c64")["logits"]
    assert np.array_equal(executor.value("prefill-t16-c64", "logits"), wanted)


def plant_missing_wait_before_a_row_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(self: PinnedRows) -> Any:
        self._taken += 1
        return self._rows[self._taken % len(self._rows)]

    monkeypatch.setattr(PinnedRows, "take", take)


def plant_missing_wait_before_outputs_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaExecutor, "read", lambda self, ticket: self._keep_outputs(ticket))


def plant_one_row_for_all_steps_and_nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made, launch = PinnedRows.__init__, CudaExecutor.launch
    monkeypatch.setattr(
        PinnedRows, "__init__", lambda self, driver, stream, size, count=2: made(self, driver, stream, size, 1)
    )

    def forgetful(self: CudaExecutor, bucket: str) -> Any:
        self._holders.clear()
        return launch(self, bucket)

    monkeypatch.setattr(CudaExecutor, "launch", forgetful)


def plant_event_recorded_before_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    take = PinnedRows.take

    def early(self: PinnedRows) -> Any:
        row = take(self)
        self._driver.call("cuEventRecord", row.event, self._stream)
        return row

    monkeypatch.setattr(PinnedRows, "take", early)
    monkeypatch.setattr(PinnedRows, "enqueued", lambda self, row: None)


def plant_seats_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Seats, "send", lambda self, slot: None)


def plant_inputs_taken_for_resident(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = CudaExecutor._send_inputs

    def send(self: CudaExecutor, bucket: str, step: Any, row: Any) -> None:
        kept = self._resident if bucket.startswith("prefill") else None
        sent(self, bucket, step, row)
        if kept and kept[0] == "decode":  # forgets that a prefill was written over the slots
            self._resident = kept

    monkeypatch.setattr(CudaExecutor, "_send_inputs", send)


PLANTED = [value for name, value in list(globals().items()) if name.startswith("plant_")]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__.removeprefix("plant_"))
def test_a_planted_bug_shows_on_one_of_the_two_devices(
    plain: Booted, reference: ReferenceExecutor, wanted: list[Any], monkeypatch: pytest.MonkeyPatch, plant: Any
):
    """Holds the tests above to account: none of these may pass them."""
    plant(monkeypatch)
    outcomes: list[bool] = []
    for eager in (False, True):
        device = Device(with_target(plain.bundle), reference, eager=eager)
        monkeypatch.setattr(executor_module, "Driver", lambda device=device: device.driver)
        try:
            outcomes.append(trace(Engine(device.boot(), device.bundle.manifest)) == wanted)
        except IndexError:  # a slot number that was never written
            outcomes.append(False)
        if not outcomes[-1]:
            break
    assert not all(outcomes)


def test_fingerprints_are_the_same_at_every_boot_and_by_capture(device: Device, monkeypatch: pytest.MonkeyPatch):
    first = device.boot().facts["graphs"]
    assert list(first) == device.bundle.manifest["capture_order"]
    rows = {name: name.rpartition("-")[0] for name in first}  # 64 or 128 positions make no other grid here
    assert len(set(first.values())) == len(set(rows.values()))
    for options in ({}, {"capture": True}):
        other = Device(device.bundle, device.reference, eager=False)
        monkeypatch.setattr(executor_module, "Driver", lambda other=other: other.driver)
        assert other.boot(**options).facts["graphs"] == first


def test_without_a_graph_the_boot_ends_unless_kernel_by_kernel_is_allowed(device: Device):
    device.driver.failing["cuGraphAddKernelNode_v2"] = 801
    with pytest.raises(UnsupportedError, match="makes no graph of prefill-t64-c128") as raised:
        device.boot()
    assert "--allow-eager" in raised.value.remedy
    executor = device.boot(allow_eager=True)
    device.driver.launched = lambda graph: None
    assert executor.facts["eager_launches"] == 0
    executor.run("decode-b1-c64")
    assert executor.facts["eager_launches"] == 3
    assert executor.facts["graphs"] == {}
    assert sum("without a graph" in note for note in executor.notes) == len(device.bundle.manifest["buckets"])


def test_a_graph_that_the_driver_changed_ends_the_boot_even_where_eager_is_allowed(
    device: Device, monkeypatch: pytest.MonkeyPatch
):
    add = FakeDriver._add

    def wider(self: FakeDriver, graph: int, before: tuple[int, ...], params: Any) -> int:
        params.gridDimY += len(self.graphs[graph]) == 1
        return add(self, graph, before, params)

    monkeypatch.setattr(FakeDriver, "_add", wider)
    with pytest.raises(IntegrityError, match=r"decode-b4-c128|prefill-t64-c128") as raised:
        device.boot(allow_eager=True)
    assert "node 1 (second): grid is" in str(raised.value)


def test_a_kernel_that_is_not_the_manifests_is_never_loaded(device: Device):
    device.bundle.manifest["targets"][TARGET]["kernels"]["second"]["sha256"] = "0" * 64
    with pytest.raises(IntegrityError, match="a kernel was changed"):
        device.boot()
    assert device.driver.names.count("cuModuleLoadData") == 1


def test_an_arena_that_the_gpu_does_not_give_is_told_with_its_size(device: Device):
    device.driver.failing["cuMemAlloc_v2"] = 2
    with pytest.raises(FitError, match="arena of weights takes") as raised:
        device.boot()
    assert raised.value.exit_code == 6
    device.driver.failing["cuMemAlloc_v2"] = 700
    with pytest.raises(DriverError, match="cuMemAlloc_v2 failed"):
        device.boot()


def test_steps_may_be_read_late_and_in_any_order(device: Device, plain: Booted):
    engine = Engine(ReferenceExecutor(plain.bundle), plain.bundle.manifest)
    wanted = [engine.prefill(0, [5, 6]), *(engine.decode([0])[0] for _ in range(5))]
    engine = Engine(device.boot(), device.bundle.manifest)
    pending = [engine.launch_prefill(0, [5, 6]), *(engine.launch_decode([0]) for _ in range(5))]
    got = {place: engine.read(pending[place])[0] for place in (3, 0, 5, 1, 4, 2)}
    assert [got[place] for place in range(6)] == wanted
    assert engine.read(pending[0])[0] == wanted[0]


def test_ptx_runs_only_where_it_is_allowed_and_is_told(device: Device):
    manifest, tables = device.bundle.manifest, device.bundle.tables
    target = {**manifest["targets"].pop(TARGET), "format": "ptx", "scope": "newer", "architecture": "sm_80"}
    manifest["targets"]["cuda:ptx_80"] = target
    device.bundle = replace(device.bundle, tables={"cuda:ptx_80": tables[TARGET]})
    with pytest.raises(UnsupportedError) as raised:
        device.boot()
    assert "--allow-ptx" in raised.value.remedy
    executor = device.boot(allow_ptx=True)
    assert executor.target == "cuda:ptx_80"
    assert any("PTX" in note for note in executor.notes)
