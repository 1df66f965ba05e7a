"""Which programs the CUDA kernels cover: what is static in each instruction, and what is refused and why.

`qpack doctor` shows the table; a build for a CUDA target stops at the first refusal.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from qpack_schemas.errors import UnsupportedError
from qpack_schemas.instructions import evaluate
from qpack_schemas.program import Buffer, Program

HEAD_SIZES = (16, 32, 64, 128, 256)  # blocks of Triton are powers of two; a program holds a whole head

STATIC: Mapping[str, str] = {
    "rows_decode": "slot and position of every row come from device memory, so a replay needs no host",
    "rows_prefill": "prompt, slot, start and length are read from device memory",
    "embed": "ids are data, the table is fixed",
    "embed_int8": "ids are data, codes and scales are fixed",
    "rms_norm": "one program a row",
    "linear_int4": "tile and planes follow the weight's shape, the rows are in the grid",
    "linear_int8": "tile follows the weight's shape, the rows are in the grid",
    "linear": "tile follows the weight's shape, the rows are in the grid",
    "rope_kv_write": "the line of the cache is computed on the device from slot and position",
    "attention": "key blocks at absolute positions; the grid covers the bucket's context, empty blocks do nothing",
    "silu_mul": "element by element",
    "causal_conv1d": "a ring of columns: no shift, no reset",
    "gated_delta": "the state is updated in place; reset where position is 0",
    "take_rows": "the row's index is read from device memory",
    "sample": "parameters are tables in device memory; noise is counted, not drawn from a state",
}


@dataclass(frozen=True)
class Refusal:
    """One size of one instruction that no kernel has."""

    index: int
    op: str
    size: str  # what the size is
    value: int
    needs: str


def refusals(program: Program, shared: Mapping[str, Buffer]) -> Iterator[Refusal]:
    """What of `program` cannot become a graph of these kernels. `shared`: weights and state by name."""
    buffers = {**shared, **program.buffers}
    for index, instruction in enumerate(program.code):
        sizes: dict[str, int] = {}
        for operand, name in instruction.operands():
            for dim, size in zip(operand.dims, buffers[name].extent(1), strict=True):
                if evaluate(dim, {}) is None and dim.isalpha():
                    sizes[dim] = size
        powers = {
            "rope_kv_write": {"D": "head_dim"},
            "attention": {"D": "head_dim"},
            "gated_delta": {"D": "key_head_dim", "E": "value_head_dim"},
        }.get(instruction.op, {})
        for letter, what in powers.items():
            if sizes[letter] not in HEAD_SIZES:
                yield Refusal(index, instruction.op, what, sizes[letter], "a power of two from 16 to 256")


def check_graphable(program: Program, shared: Mapping[str, Buffer], target: str) -> None:
    """Raises UnsupportedError at the first refusal."""
    for refusal in refusals(program, shared):
        raise UnsupportedError(
            f"{refusal.op} has a {refusal.size} of {refusal.value}, the kernels of {target} need {refusal.needs}",
            where=f"{program.kind} program, instruction {refusal.index}",
            remedy="build without --target cuda; the CPU runs every size",
        )
