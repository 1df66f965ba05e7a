"""Bugs that the host side of a CUDA program is known for, planted one by one: each must be noticed without a GPU.

A run of six steps, launched as an engine does that looks ahead, is compared with the reference executor. Some bugs show
when the device is as late as it may be, some when it is as early."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from triton.runtime.errors import InterpreterError

from checkpoints import random_checkpoint
from cuda_bundles import build_cuda_bundle
from cuda_host import TARGET, interpreted, machine
from qpack_packager.serving import Options
from qpack_runtime.cuda import executor, graphs, launches
from qpack_runtime.cuda.executor import CudaExecutor, Ticket
from qpack_runtime.cuda.kernels import LoadedKernel
from qpack_runtime.cuda.launches import KernelLaunch
from qpack_runtime.cuda.pinned import PinnedRows, Row
from qpack_runtime.cuda.seats import Seats
from qpack_runtime.engine import Choice, Engine
from qpack_runtime.reference.executor import ReferenceExecutor
from qpack_runtime.sampling_options import SamplingOptions
from qpack_schemas.bundle import open_bundle
from qpack_schemas.errors import QpackError

OPTIONS = Options(batches=(1, 2), contexts=(64,), prefills=(1, 4), slots=3, dtype="float32", targets=(TARGET,))
DRAWN = [SamplingOptions(temperature=5.0, seed=seed, logprobs=True) for seed in (3, 4)]  # close to any token at all
LATE, EARLY = False, True  # whether the stub runs work at once

Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("host_bugs")
    model = random_checkpoint(work / "model", "qwen2", num_hidden_layers=1, intermediate_size=128)
    return build_cuda_bundle(model, work / "bundle", OPTIONS)


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[Choice]:
    bundle = open_bundle(folder)
    return choices_of(Engine(ReferenceExecutor(bundle), bundle.manifest))


def choices_of(engine: Engine) -> list[Choice]:
    """A prompt of three chunks; a step before it is read; a second sequence; a step of both."""
    choices: list[Choice] = []

    def read(pending: Any) -> None:
        choices.extend(engine.read(pending))

    prompt = engine.launch_prefill(0, [41, 7, 300, 12, 9, 77, 5, 18, 60], DRAWN[0])
    step = engine.launch_decode([0])
    read(prompt)
    other = engine.launch_prefill(2, [77], DRAWN[1])
    read(step)
    both = engine.launch_decode([2, 0])
    read(other)
    read(both)
    return choices


def run(library: Path, folder: Path, log: Path, eager: bool) -> list[Choice]:
    with machine(library, folder, log, hook=interpreted(folder), eager=eager) as booted:
        return choices_of(booted.engine)


def alike(choices: list[Choice], expected: list[Choice]) -> bool:
    """The same tokens for the same reasons: a log-probability tells what the noise of a high temperature hides."""
    return [one.token for one in choices] == [one.token for one in expected] and all(
        abs(one.logprob - other.logprob) < 1e-4 for one, other in zip(choices, expected, strict=True)
    )


@pytest.mark.parametrize("eager", [LATE, EARLY])
def test_without_a_bug_the_tokens_are_the_references(
    stub_library: Path, folder: Path, tmp_path: Path, expected: list[Choice], eager: bool
):
    assert len({choice.token for choice in expected}) == len(expected) == 5
    assert alike(run(stub_library, folder, tmp_path / "log", eager), expected)


def outputs_not_waited_for(patch: Patch) -> None:
    def read(self: CudaExecutor, ticket: Ticket) -> Mapping[str, Any]:
        return {name: output.of(ticket.row.array) for name, output in self._steps[ticket.bucket].values.items()}

    patch.setattr(CudaExecutor, "read", read)


def staging_reused_early(patch: Patch) -> None:
    def take(self: PinnedRows) -> Row:
        self._taken += 1
        return self._rows[self._taken % len(self._rows)]

    patch.setattr(PinnedRows, "take", take)


def one_pinned_row(patch: Patch) -> None:
    """And nobody keeps what it holds before it is used again."""
    rows, launch = PinnedRows.__init__, CudaExecutor.launch
    patch.setattr(
        PinnedRows, "__init__", lambda self, driver, stream, size, count=2: rows(self, driver, stream, size, 1)
    )
    patch.setattr(CudaExecutor, "launch", lambda self, bucket: (self._holders.clear(), launch(self, bucket))[1])


def inputs_sent_once(patch: Patch) -> None:
    whole = CudaExecutor._send_inputs
    patch.setattr(CudaExecutor, "_send_inputs", lambda self, *of: None if self._resident else whole(self, *of))


def seat_forgotten(patch: Patch) -> None:
    patch.setattr(Seats, "send", lambda self, slot: None)


def seat_of_the_slot_below(patch: Patch) -> None:
    whole = Seats.send
    patch.setattr(Seats, "send", lambda self, slot: whole(self, max(slot - 1, 0)))


def one_row_of_the_grid(patch: Patch) -> None:
    whole = launches.grid_of
    patch.setattr(launches, "grid_of", lambda launch, rows, context: whole(launch, 1, context))


def arguments_swapped(patch: Patch) -> None:
    """Keys for values."""
    whole = launches.pack

    def pack(kernel: LoadedKernel, args: Any, rows: int, address: Any) -> bytes:
        swapped = (args[0], args[2], args[1], *args[3:]) if kernel.name.startswith("attention_split") else args
        return whole(kernel, swapped, rows, address)

    patch.setattr(launches, "pack", pack)


def rows_of_another_bucket(patch: Patch) -> None:
    """Work buffers at the places of a bucket of one row."""
    whole = launches.bind
    patch.setattr(
        graphs, "bind",
        lambda table, kernels, rows, context, address: [
            replace(one, arguments=other.arguments)
            for one, other in zip(
                whole(table, kernels, rows, context, address), whole(table, kernels, 1, context, address), strict=True
            )
        ],
    )  # fmt: skip


def launches_swapped(patch: Patch) -> None:
    whole = launches.bind

    def bind(*of: Any) -> list[KernelLaunch]:
        bound = whole(*of)
        bound[3], bound[4] = replace(bound[4], after=bound[3].after), replace(bound[3], after=bound[4].after)
        return bound

    patch.setattr(graphs, "bind", bind)


def kernels_mixed_up(patch: Patch) -> None:
    """Two with the same arguments."""
    whole = executor.load_kernels

    def load(*of: Any) -> dict[str, LoadedKernel]:
        loaded = whole(*of)
        one, other = [k for k in loaded.values() if k.name.startswith("linear_int4_decode")][:2]
        return {
            **loaded,
            one.name: replace(one, function=other.function),
            other.name: replace(other, function=one.function),
        }

    patch.setattr(executor, "load_kernels", load)


def waits_within_a_launch(patch: Patch) -> None:
    whole = CudaExecutor.launch

    def launch(self: CudaExecutor, bucket: str) -> Ticket:
        ticket = whole(self, bucket)
        self._driver.call("cuStreamSynchronize", self._stream)
        return ticket

    patch.setattr(CudaExecutor, "launch", launch)


def allocates_in_a_step(patch: Patch) -> None:
    whole = CudaExecutor.launch

    def launch(self: CudaExecutor, bucket: str) -> Ticket:
        self._driver.call("cuMemAlloc_v2", 1)
        return whole(self, bucket)

    patch.setattr(CudaExecutor, "launch", launch)


BUGS: dict[Callable[[Patch], None], bool] = {
    outputs_not_waited_for: LATE,
    staging_reused_early: LATE,
    one_pinned_row: EARLY,
    inputs_sent_once: LATE,
    seat_forgotten: LATE,
    seat_of_the_slot_below: LATE,
    one_row_of_the_grid: LATE,
    arguments_swapped: LATE,
    rows_of_another_bucket: LATE,
    launches_swapped: LATE,
    kernels_mixed_up: LATE,
    waits_within_a_launch: LATE,
    allocates_in_a_step: EARLY,
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_noticed(
    stub_library: Path, folder: Path, tmp_path: Path, monkeypatch: Patch, expected: list[Choice],
    bug: Callable[[Patch], None],
):  # fmt: skip
    bug(monkeypatch)
    try:
        choices = run(stub_library, folder, tmp_path / "log", BUGS[bug])
    except (AssertionError, QpackError, InterpreterError):
        return  # one of the laws, of the driver's rules, or of the kernels' memory is broken
    assert not alike(choices, expected)
