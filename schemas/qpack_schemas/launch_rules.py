"""The rules a launch table must keep before any of it may run on a GPU; each broken one is a finding with its place.

What a kernel does with its arguments cannot be seen from here. What can: that every launch gets as many arguments as
its kernel takes, of the right types; that it names only what its instructions work on; that no instruction and no
operand is forgotten; and that nothing lies where something else is still needed.
"""

from collections.abc import Iterator, Mapping, Sequence

from qpack_schemas.errors import Finding
from qpack_schemas.launch_operands import LINEARS, check_operands
from qpack_schemas.launch_table import SCRATCH_MARK, Launch, LaunchTable, Scalar, TargetBuffer, grid_of
from qpack_schemas.manifest import Bucket, Kernel
from qpack_schemas.program import ALIGNMENT, Buffer, Program

TRITON_TYPES: Mapping[str, str] = {
    "float32": "*fp32", "bfloat16": "*bf16", "float16": "*fp16", "int8": "*i8", "int16": "*i16", "int32": "*i32",
    "int64": "*i64",
}  # fmt: skip
MOST_BLOCKS = (2**31 - 1, 65535, 65535)  # of a grid, per dimension: "Technical Specifications per Compute Capability"


def check_table(
    table: LaunchTable,
    program: Program,
    shared: Mapping[str, Buffer],
    kernels: Mapping[str, Kernel],
    buckets: Sequence[Bucket],
    where: str,
) -> list[Finding]:
    """`table` against the sound `program` that it carries out. `shared` holds the weights and the buffers that outlive
    a step, `kernels` those of the table's target, `buckets` all of the manifest."""
    findings = [*_order(table, program, where), *_grids(table, buckets, where), *_work(table, program, shared, where)]
    io = {name: buffer for name, buffer in program.buffers.items() if buffer.arena == "io"}
    dtypes = {name: buffer.dtype for name, buffer in {**shared, **io, **table.work}.items()}
    for index, launch in enumerate(table.launches):
        findings += _arguments(launch, kernels, dtypes, program, f"{where}#/launches/{index}")
    return findings or [*check_operands(table, program, where), *_overlaps(table, where)]


def _order(table: LaunchTable, program: Program, where: str) -> Iterator[Finding]:
    """Runs of instructions ascend and leave nothing out; each launch waits for the one before it."""
    run = (0, -1)
    for index, launch in enumerate(table.launches):
        place = f"{where}#/launches/{index}"
        if launch.code != run:
            first, last = launch.code
            if first != run[1] + 1 or last < first:
                message = f"is {[first, last]}; a run begins at instruction {run[1] + 1}, or is {list(run)} once more"
                yield Finding(f"{place}/code", message)
            run = launch.code
        expected = (index - 1,) if index else ()
        if launch.after != expected:
            yield Finding(f"{place}/after", f"is {list(launch.after)}; launches are a chain, so it is {list(expected)}")
    if run[1] != (end := len(program.code) - 1):
        yield Finding(f"{where}#/launches", f"end with instruction {run[1]}, the program with {end}")


def _grids(table: LaunchTable, buckets: Sequence[Bucket], where: str) -> Iterator[Finding]:
    own = [bucket for bucket in buckets if bucket["program"] == table.kind]
    for index, launch in enumerate(table.launches):
        for bucket in own:
            grid = grid_of(launch, bucket["rows"], bucket["context"])
            if any(size > most for size, most in zip(grid, MOST_BLOCKS, strict=True)):
                message = f"is {list(grid)} in {bucket['name']}, a GPU takes at most {list(MOST_BLOCKS)}"
                yield Finding(f"{where}#/launches/{index}/grid", message)
                break


def _arguments(
    launch: Launch, kernels: Mapping[str, Kernel], dtypes: Mapping[str, str], program: Program, place: str
) -> Iterator[Finding]:
    """As many as the kernel has parameters, each of the parameter's type."""
    kernel = kernels.get(launch.kernel)
    if kernel is None:
        yield Finding(f"{place}/kernel", f"{launch.kernel!r} is not among the target's kernels")
        return
    params = kernel["params"]
    if len(launch.args) != len(params):
        yield Finding(f"{place}/args", f"are {len(launch.args)}, {launch.kernel} takes {len(params)}")
        return
    for index, (argument, (name, kind)) in enumerate(zip(launch.args, params, strict=True)):
        if isinstance(argument, Scalar):
            given, what = "i32", f"{argument.value}"
        elif argument in dtypes:
            given, what = TRITON_TYPES[dtypes[argument]], repr(argument)
        else:
            known = argument in program.buffers
            what = "is a work buffer that this target does not hold" if known else "is an unknown buffer"
            yield Finding(f"{place}/args/{index}", f"{argument!r} {what}")
            continue
        if given != kind:
            yield Finding(f"{place}/args/{index}", f"{what} is {given}, {name!r} of {launch.kernel} is {kind}")


def _work(table: LaunchTable, program: Program, shared: Mapping[str, Buffer], where: str) -> Iterator[Finding]:
    """A work buffer is one of the program, held as the program says or as planes, or scratch."""
    linear = {i.outputs.get("y") for i in program.code if i.op in LINEARS}
    used = table.lifetimes()
    for name, buffer in table.work.items():
        place = work_place(where, name)
        if buffer.offset % ALIGNMENT:
            yield Finding(f"{place}/offset", f"{buffer.offset} is not a multiple of {ALIGNMENT}")
        if name not in used:
            yield Finding(place, "is named by no launch")
        if SCRATCH_MARK in name:
            continue
        said = program.buffers.get(name)
        if said is None or said.arena != "work":
            owner = "the manifest" if name in shared else f"arena {said.arena}" if said else ""
            message = f"is a buffer of {owner}" if owner else "is no work buffer of the program"
            yield Finding(place, f"{message}; scratch has {SCRATCH_MARK!r} in its name")
        elif not _holds(buffer, said, planes_allowed=name in linear):
            exact = f"{said.dtype} {list(said.shape)}"
            also = f", or float32 planes [planes, {', '.join(map(str, said.shape))}]" if name in linear else ""
            yield Finding(place, f"is {buffer.dtype} {list(buffer.shape)}, the program says {exact}{also}")


def _holds(buffer: TargetBuffer, said: Buffer, *, planes_allowed: bool) -> bool:
    if buffer.shape == said.shape:
        return buffer.dtype == said.dtype
    return planes_allowed and buffer.dtype == "float32" and buffer.shape[1:] == said.shape


def _overlaps(table: LaunchTable, where: str) -> Iterator[Finding]:
    """Offsets are per row, so what holds for one row holds in all buckets."""
    spans = table.lifetimes()
    placed = sorted(spans, key=lambda name: (table.work[name].offset, name))
    for position, name in enumerate(placed):
        end = table.work[name].offset + table.work[name].bytes_per_row()
        for other in placed[position + 1 :]:
            begin = table.work[other].offset
            if begin >= end:
                break
            if spans[name][0] <= spans[other][1] and spans[other][0] <= spans[name][1]:
                message = f"overlaps {name!r} while both are live: {begin} < {end} (bytes per row)"
                yield Finding(f"{work_place(where, other)}/offset", message)


def work_place(where: str, name: str) -> str:
    """The JSON pointer of a work buffer."""
    return "/".join((f"{where}#", "work", name.replace("~", "~0")))
