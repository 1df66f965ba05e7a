"""What a step exchanges with the host: spans of the io arena, and where they lie in a pinned row."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from qpack_runtime.arenas import OPAQUE
from qpack_schemas.program import Buffer, Program, align


@dataclass(frozen=True)
class Span:
    """Bytes `begin` to `end` of the io arena, and where they begin in a pinned row."""

    begin: int
    end: int
    place: int

    @property
    def bytes(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class Output:
    """One output within a pinned row."""

    begin: int  # bytes
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def of(self, row: np.ndarray) -> np.ndarray:
        """A copy, since the row is used again."""
        size = np.dtype(self.dtype).itemsize * prod(self.shape)
        return row[self.begin : self.begin + size].view(self.dtype).reshape(self.shape).copy()


@dataclass(frozen=True)
class StepIo:
    """One bucket's inputs, which nobody but the host writes, and the outputs of `sample`. Logits stay on the device."""

    inputs: tuple[Span, ...]
    outputs: tuple[Span, ...]
    values: dict[str, Output]  # ids, status, logprobs, top_ids, top_logprobs

    @property
    def input_bytes(self) -> int:
        return _end(self.inputs)

    @property
    def output_bytes(self) -> int:
        return _end(self.outputs)


def plan_step(program: Program, rows: int) -> StepIo:
    """The exchange of a bucket of `rows` rows."""
    io = {name: buffer for name, buffer in program.buffers.items() if buffer.arena == "io"}
    written = {name for instruction in program.code for name in instruction.outputs.values()}
    (sample,) = (instruction for instruction in program.code if instruction.op == "sample")
    chosen = set(sample.outputs.values())
    inputs = tuple(_runs(io, io.keys() - written, rows))
    outputs = tuple(_runs(io, chosen, rows))
    values: dict[str, Output] = {}
    for name in sorted(chosen):
        span = next(span for span in outputs if span.begin <= io[name].offset < span.end)
        begin = span.place + io[name].offset - span.begin
        values[name] = Output(begin, OPAQUE[io[name].dtype], io[name].extent(rows))
    return StepIo(inputs, outputs, values)


def _runs(io: dict[str, Buffer], wanted: set[str], rows: int) -> Iterator[Span]:
    """Neighbours in the arena are one span, and so one copy: nobody needs what lies between them."""
    ordered = sorted(io, key=lambda name: io[name].offset)
    runs: list[list[str]] = [[]]
    for name in ordered:
        if name in wanted:
            runs[-1].append(name)
        else:
            runs.append([])
    place = 0
    for run in filter(None, runs):
        span = Span(io[run[0]].offset, io[run[-1]].offset + io[run[-1]].bytes(rows), place)
        yield span
        place += align(span.bytes)


def _end(spans: tuple[Span, ...]) -> int:
    return max((span.place + align(span.bytes) for span in spans), default=0)
