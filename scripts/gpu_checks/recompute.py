"""A run of instructions by the functions of the reference, on values that were downloaded from the device."""

from collections.abc import Mapping

import numpy as np

from qpack_runtime.arenas import numeric
from qpack_runtime.cuda.executor import CudaExecutor
from qpack_runtime.reference import int8
from qpack_runtime.reference.executor import FUNCTIONS
from qpack_runtime.reference.marlin import dequantize
from qpack_schemas.bundle import Bundle
from qpack_schemas.launch_table import LaunchTable
from qpack_schemas.program import Instruction, Program

from .runs import Run

ROW_BY_ROW = frozenset(  # a few rows will do
    {"embed", "embed_int8", "rms_norm", "linear_int4", "linear_int8", "linear", "attention", "silu_mul"}
)
IN_ORDER = frozenset({"rope_kv_write", "causal_conv1d", "gated_delta"})  # a row reads what the one before wrote
LINES = 8192  # of a dense matrix that are float32 at a time

Values = dict[str, np.ndarray]


class Recompute:
    """One program of a bundle; `rows` of a bucket, the first `live` of them not padding."""

    def __init__(self, bundle: Bundle, program: Program, table: LaunchTable):
        self._bundle, self._program, self._table = bundle, program, table
        self._matrices: dict[str, np.ndarray] = {}
        self._made_by = {name: one for one in program.code for name in one.outputs.values()}

    def download(self, executor: CudaExecutor, bucket: str, name: str) -> np.ndarray:
        """A buffer as the program knows it: planes are added up, the bias behind them, and rounded."""
        if name in executor.memory.shared:
            return executor.state(name)
        held = executor.value(bucket, name)
        buffer = self._program.buffers[name]
        if buffer.arena != "work" or self._table.work[name].shape == buffer.shape:
            return held
        total = np.zeros(held.shape[1:], np.float32)
        for plane in held:
            total += plane
        bias = self._made_by[name].inputs.get("bias")
        if bias is not None:
            total += self._weight(bias).astype(np.float32)
        return total.astype(numeric(buffer.dtype))

    def run(self, run: Run, before: Mapping[str, np.ndarray], rows: int, live: int, most: int) -> tuple[Values, Values]:
        """What the reference makes of `before`, and which lines of each output it made; of instructions that go row by
        row at most `most` rows, the first and the last among them."""
        values: Values = {name: before[name].copy() for name in run.reads}
        lines: Values = {}
        few = np.unique(np.linspace(0, live - 1, min(live, most)).astype(int))
        for instruction in run.instructions:
            picked = few if instruction.op in ROW_BY_ROW else np.arange(live if instruction.op in IN_ORDER else rows)
            self._instruction(instruction, values, picked, rows)
            for name in instruction.outputs.values():
                lines[name] = picked if self._by_row(name) else np.arange(len(values[name]))
        return values, lines

    def _instruction(self, instruction: Instruction, values: Values, picked: np.ndarray, rows: int) -> None:
        views: Values = {}
        for operand, name in instruction.operands():
            if operand.role == "output":
                buffer = self._program.buffers[name]
                values.setdefault(name, np.zeros(buffer.extent(rows), numeric(buffer.dtype)))
            if name in self._bundle.tensors:
                views[operand.name] = self._operand(instruction, operand.name, name)
            else:
                views[operand.name] = values[name][picked] if self._by_row(name) else values[name]
        with np.errstate(all="ignore"):  # padding may hold anything
            if instruction.op == "linear":
                _dense(**views)
            elif instruction.op == "linear_int8":
                _int8(**views)
            else:
                FUNCTIONS[instruction.op](**views, **instruction.attrs)
        for operand, name in instruction.operands():
            if operand.role == "output" and self._by_row(name):
                values[name][picked] = views[operand.name]

    def _by_row(self, name: str) -> bool:
        return name in self._program.buffers and self._program.buffers[name].shape[0] == "R"

    def _operand(self, instruction: Instruction, operand: str, name: str) -> np.ndarray:
        """A weight as the reference executor binds it."""
        if (instruction.op, operand) == ("linear_int4", "q"):
            if name not in self._matrices:
                k, n = (self._program.buffers[instruction.inputs["x"]].shape[1], self._columns(instruction))
                zero = instruction.inputs.get("zero")
                groups = self._weight(instruction.inputs["scale"]), self._weight(zero) if zero else None
                self._matrices[name] = np.ascontiguousarray(dequantize(self._weight(name), *groups)[:k, :n])
            return self._matrices[name]
        weight = self._weight(name)
        return weight.astype(np.float32) if (instruction.op, operand) == ("gated_delta", "ba") else weight

    def _columns(self, instruction: Instruction) -> int:
        return int(self._program.buffers[instruction.outputs["y"]].shape[1])

    def _weight(self, name: str) -> np.ndarray:
        path, span = self._bundle.tensors[name]
        raw = np.memmap(path, np.uint8, mode="r")[span.begin : span.begin + span.bytes].view(np.ndarray)
        return raw.view(numeric(self._bundle.manifest["tensors"][name]["dtype"])).reshape(span.shape)


def _dense(x: np.ndarray, weight: np.ndarray, y: np.ndarray, bias: np.ndarray | None = None) -> None:
    """`linear`, a part of the matrix at a time: a head in float32 takes a gigabyte."""
    for begin in range(0, len(weight), LINES):
        part = slice(begin, begin + LINES)
        FUNCTIONS["linear"](x, weight[part].astype(np.float32), y[:, part], bias=None if bias is None else bias[part])


def _int8(x: np.ndarray, q: np.ndarray, scale: np.ndarray, y: np.ndarray, bias: np.ndarray | None = None) -> None:
    """`linear_int8` in the same way."""
    for begin in range(0, len(q), LINES):
        part = slice(begin, begin + LINES)
        weight = int8.dequantize(q[part], scale[part])[:, : x.shape[1]]
        FUNCTIONS["linear_int8"](x, weight, scale[part], y[:, part], bias=None if bias is None else bias[part])
