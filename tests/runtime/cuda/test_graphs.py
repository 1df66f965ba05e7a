"""The graphs that the executor makes: the same however they are made, read back, refused if they are not the table's.

Kernels do nothing here; what they compute is tests/runtime/cuda/test_tokens.py's."""

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cuda_client import DriverStatus, Stub
from cuda_host import Machine, check_boot, check_launches, machine
from qpack_runtime.cuda import graph, graphs
from qpack_runtime.cuda.driver import Driver, DriverError
from qpack_runtime.cuda.launches import KernelLaunch
from qpack_schemas.errors import IntegrityError, UnsupportedError
from qpack_schemas.launch_table import grid_of

Boot = Callable[..., Any]
CALLS = {"explicit": "cuGraphAddKernelNode_v2", "captured": "cuLaunchKernel"}


@pytest.fixture(scope="module")
def folder(cuda_bundle: Callable[[str, str], Path]) -> Path:
    return cuda_bundle("tiny-qwen3", "bfloat16")


@pytest.fixture
def boot(stub_library: Path, folder: Path, tmp_path: Path) -> Boot:
    return lambda **options: machine(stub_library, folder, tmp_path / "log", **options)


def steps(booted: Machine) -> None:
    """Launches as an engine does that looks ahead: six steps over both programs, the last of three still under way."""
    engine = booted.engine
    pending = engine.launch_prefill(0, [5] * 6)
    for slots in ([0], [0], [0, 2]):
        following = engine.launch_decode(slots)
        engine.read(pending)
        pending = following
    engine.read(pending)


@pytest.mark.parametrize("eager", [False, True])
def test_captured_and_explicit_graphs_are_the_same_at_every_boot(boot: Boot, tmp_path: Path, eager: bool):
    seen: list[Any] = []
    for capture in (False, True, False):
        with boot(capture=capture, eager=eager) as booted:
            steps(booted)
            seen.append(booted.executor.facts["graphs"])
        calls = (tmp_path / "log").read_text(encoding="ascii").splitlines()
        assert (CALLS["captured"] in calls, CALLS["explicit"] in calls) == (capture, not capture)
    assert seen[0] == seen[1] == seen[2]
    assert list(seen[0]) == booted.bundle.manifest["capture_order"]
    decode = [digest for bucket, digest in seen[0].items() if bucket.startswith("decode")]
    assert len(set(decode)) == len(decode) == 4  # rows and splits of the context show


def test_a_graph_runs_the_launches_of_its_table_in_order(boot: Boot):
    """Against the table itself: kernel, grid, block."""
    seen: list[tuple[str, tuple[int, ...]]] = []
    with boot(hook=lambda name, image, dims, arguments: seen.append((name, dims))) as booted:
        booted.engine.prefill(0, [5] * 3)
        kernels = booted.bundle.manifest["targets"]["cuda:sm_89"]["kernels"]
        table = booted.bundle.tables["cuda:sm_89"]["prefill"]
    assert seen == [(one.kernel, (*grid_of(one, 4, 64), kernels[one.kernel]["block"], 1, 1)) for one in table.launches]


def test_the_arenas_are_the_planned_bytes_and_nothing_else_is_on_the_device(boot: Boot, tmp_path: Path):
    with boot() as booted:
        taken = booted.executor.facts["taken_bytes"]
    memory = booted.bundle.manifest["memory"]
    work = max(booted.bundle.manifest["targets"]["cuda:sm_89"]["work_bytes"].values())
    planned = sorted([memory["weights_bytes"], memory["state_bytes"], memory["io_bytes"], work])
    log = (tmp_path / "log").read_text(encoding="ascii")
    assert sorted(int(size) for size in re.findall(r"^  device bytes=(\d+)$", log, re.MULTILINE)) == planned
    assert taken == sum(planned)


def test_every_weight_arrives(boot: Boot):
    with boot() as booted:
        weights = booted.memory("weights")
        for path, begin in booted.executor.memory.files.items():
            data = path.read_bytes()
            assert bytes(weights[begin : begin + len(data)]) == data


def test_a_kernel_that_needs_much_shared_memory_asks_for_it_once(boot: Boot, tmp_path: Path):
    with boot() as booted:
        kernels = booted.bundle.manifest["targets"]["cuda:sm_89"]["kernels"]
    much = [name for name, kernel in kernels.items() if kernel["shared_bytes"] > 48 << 10]
    calls = (tmp_path / "log").read_text(encoding="ascii").splitlines()
    assert calls.count("cuFuncSetAttribute") == len(much) > 0


CHANGES: dict[str, Callable[[list[KernelLaunch]], list[KernelLaunch]]] = {
    "grid": lambda all_of: [all_of[0], replace(all_of[1], grid=(99, 1, 1)), *all_of[2:]],
    "arguments": lambda all_of: [replace(all_of[0], arguments=b"\1" * len(all_of[0].arguments)), *all_of[1:]],
    "after": lambda all_of: [*all_of[:3], replace(all_of[3], after=(1,)), *all_of[4:]],
    "order": lambda all_of: [all_of[0], replace(all_of[2], after=(0,)), replace(all_of[1], after=(1,)), *all_of[3:]],
    "shared bytes": lambda all_of: [replace(all_of[0], shared_bytes=64), *all_of[1:]],
    "launches": lambda all_of: all_of[:-1],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_graph_that_is_not_the_tables_is_refused_by_its_first_node(
    boot: Boot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
):
    whole = graph.build_graph
    monkeypatch.setattr(
        graphs, "build_graph", lambda driver, all_of, kernels: whole(driver, CHANGES[change](all_of), kernels)
    )
    with pytest.raises(IntegrityError) as caught, boot():
        pass
    (finding,) = caught.value.findings
    first = {"grid": "node 1 ", "arguments": "node 0 ", "after": "run behind", "order": "node 1 ",
             "shared bytes": "node 0 ", "launches": "nodes"}  # fmt: skip
    assert first[change] in finding.message
    assert "cuGraphLaunch" not in (tmp_path / "log").read_text(encoding="ascii")


@pytest.mark.parametrize("allowed", [False, True])
def test_without_a_graph_there_is_no_boot_unless_it_is_allowed_and_then_it_is_counted(
    boot: Boot, monkeypatch: pytest.MonkeyPatch, allowed: bool
):
    def fails(driver: Driver, *_: Any) -> int:
        raise DriverError("cuGraphInstantiateWithFlags", 2, "CUDA_ERROR_OUT_OF_MEMORY")

    monkeypatch.setattr(graphs, "instantiate", fails)
    launched: list[str] = []
    with (
        nullcontext() if allowed else pytest.raises(UnsupportedError, match="--allow-eager"),
        boot(allow_eager=allowed, hook=lambda name, *_: launched.append(name)) as booted,
    ):
        steps(booted)
        facts = booted.executor.facts
        assert facts["eager_launches"] == len(launched) > 0
        assert facts["graphs"] == {}
    assert bool(launched) == allowed


def test_the_laws_are_not_kept_by_chance():
    """Logs that break them."""
    begun, ended, booted = "  graph launch 7", "  end graph launch 7", "  mark booted"
    for call in ("cuMemAlloc_v2", "cuStreamSynchronize", "cuModuleLoadData", "cuMemGetInfo_v2"):
        with pytest.raises(AssertionError, match=call):
            check_launches(["cuGraphLaunch", begun, call, "cuEventSynchronize", ended])
        check_launches(["cuGraphLaunch", begun, "cuEventSynchronize", ended, call])
    for line in (
        "cuMemAlloc_v2",
        "cuMemHostAlloc",
        "cuEventCreate",
        "cuGraphInstantiateWithFlags",
        "  lazily loaded f",
    ):
        with pytest.raises(AssertionError, match="after the boot"):
            check_boot([booted, line])
        check_boot([line, booted])


def test_a_stub_that_was_reset_forgets_its_handles(stub_library: Path):
    stub = Stub(stub_library)
    stub.boot()
    event = stub.get("cuEventCreate", 2)
    stub = Stub(stub_library)
    with pytest.raises(DriverStatus, match="NOT_INITIALIZED"):
        stub.call("cuEventQuery", event)
