"""Which buffers the launches of a run of instructions must name, and which they may.

A launch may keep a value in registers that only its own run uses. A linear may hold its output as planes without the
bias; then whoever reads the planes adds the bias, and the linear itself must not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from qpack_schemas.errors import Finding
from qpack_schemas.launch_table import SCRATCH_MARK, LaunchTable
from qpack_schemas.program import Instruction, Program

Run = tuple[int, int]  # first and last instruction
LINEARS = frozenset({"linear", "linear_int4", "linear_int8"})  # whose outputs may be held as planes


@dataclass(frozen=True)
class _Linear:
    """A linear with a bias whose output is a work buffer."""

    index: int
    bias: str


def check_operands(table: LaunchTable, program: Program, where: str) -> Iterator[Finding]:
    """For a table whose runs are in order and whose arguments are known."""
    launches: dict[Run, list[int]] = {}
    for index, launch in enumerate(table.launches):
        launches.setdefault(launch.code, []).append(index)
    spans = program.lifetimes()
    biased = _biased(program)
    planes = {n for n, b in table.work.items() if n in program.buffers and b.shape != program.buffers[n].shape}
    for run, indices in launches.items():
        code = program.code[run[0] : run[1] + 1]
        needed = _needed(code, run, biased, planes)
        inner = {name for name in needed if name in spans and run[0] <= spans[name][0] and spans[name][1] <= run[1]}
        owners = {
            name for instruction in code for name in (*instruction.outputs.values(), *instruction.updates.values())
        }
        named: set[str] = set()
        for index in indices:
            for position, name in enumerate(table.launches[index].args):
                if not isinstance(name, str):
                    continue
                named.add(name)
                owner, mark, _ = name.partition(SCRATCH_MARK)
                if name in needed or (mark and owner in owners):
                    continue
                what = f"is scratch of {owner!r}, no output" if mark else "is no operand"
                message = f"{name!r} {what} of instructions {_shown(run, code)}"
                yield Finding(f"{where}#/launches/{index}/args/{position}", message)
        for name in sorted(needed - inner - named):
            message = f"none of the launches of instructions {_shown(run, code)} names their operand {name!r}"
            yield Finding(f"{where}#/launches/{indices[0]}", message)


def _needed(code: tuple[Instruction, ...], run: Run, biased: Mapping[str, _Linear], planes: set[str]) -> set[str]:
    """All operands of a run, with each bias where it is added."""
    needed = {name for instruction in code for _, name in instruction.operands()}
    reads = {name for instruction in code for name in instruction.inputs.values()}
    for y in needed & biased.keys() & planes:
        linear = biased[y]
        if y in reads:
            needed = needed | {linear.bias}
        elif run[0] <= linear.index <= run[1]:
            needed = needed - {linear.bias}
    return needed


def _biased(program: Program) -> dict[str, _Linear]:
    return {
        instruction.outputs["y"]: _Linear(index, instruction.inputs["bias"])
        for index, instruction in enumerate(program.code)
        if instruction.op in LINEARS and "bias" in instruction.inputs
    }


def _shown(run: Run, code: tuple[Instruction, ...]) -> str:
    return f"{run[0]} to {run[1]} ({', '.join(instruction.op for instruction in code)})"
