"""A launch table as runs: the instructions that a few launches carry out together, and what they read and write."""

from collections.abc import Mapping
from dataclasses import dataclass

from qpack_schemas.bundle import Bundle
from qpack_schemas.launch_table import LaunchTable
from qpack_schemas.manifest import compiled_targets
from qpack_schemas.program import Instruction, Program


@dataclass(frozen=True)
class Run:
    begin: int  # its first launch
    instructions: tuple[Instruction, ...]
    kernels: tuple[str, ...]  # entry points, which say function, types and constants
    functions: str  # "delta.delta_step + delta.delta_norm"
    reads: tuple[str, ...]  # buffers that hold something before it, weights aside
    writes: tuple[str, ...]  # outputs and updates that lie in memory behind it
    updates: frozenset[str]
    elided: frozenset[str]  # outputs that never leave the registers

    @property
    def ops(self) -> str:
        return " + ".join(instruction.op for instruction in self.instructions)


def runs_of(bundle: Bundle, target: str, program: Program, table: LaunchTable) -> list[Run]:
    """In order. A run is every launch with the same `code`."""
    begins: dict[tuple[int, int], int] = {}
    kernels: dict[tuple[int, int], list[str]] = {}
    for index, launch in enumerate(table.launches):
        begins.setdefault(launch.code, index)
        kernels.setdefault(launch.code, []).append(launch.kernel)
    functions = {
        name: k["function"] for name, k in compiled_targets(bundle.manifest["targets"])[target]["kernels"].items()
    }
    return [
        _run(bundle, program, table, begin, program.code[first : last + 1], kernels[first, last], functions)
        for (first, last), begin in begins.items()
    ]


def _run(
    bundle: Bundle, program: Program, table: LaunchTable, begin: int, code: tuple[Instruction, ...],
    kernels: list[str], functions: Mapping[str, str],
) -> Run:  # fmt: skip
    reads, updates, produced = dict[str, None](), dict[str, None](), dict[str, None]()
    for instruction in code:
        for operand, name in instruction.operands():
            if operand.role == "output":
                produced[name] = None
            elif name not in bundle.tensors and name not in produced:
                reads[name] = None
                if operand.role == "update":
                    updates[name] = None
    elided = {n for n in produced if program.buffers[n].arena == "work" and n not in table.work}
    return Run(
        begin=begin,
        instructions=code,
        kernels=tuple(kernels),
        functions=" + ".join(functions[name] for name in kernels),
        reads=tuple(reads),
        writes=tuple(name for name in (*produced, *updates) if name not in elided),
        updates=frozenset(updates),
        elided=frozenset(elided),
    )
