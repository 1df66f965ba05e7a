"""The rules a program must keep before any executor may run it; each broken one is a finding with its place.

Kernels trust these rules: they index memory by the sizes checked here.
"""

from collections.abc import Iterator, Mapping

from qpack_schemas.errors import Finding
from qpack_schemas.instructions import CONSTRAINTS, INSTRUCTIONS, Role, evaluate
from qpack_schemas.program import ALIGNMENT, Buffer, Instruction, Program

_ROLE_PARTS: tuple[tuple[Role, str], ...] = (("input", "inputs"), ("update", "updates"), ("output", "outputs"))


def check_code(program: Program, shared: Mapping[str, Buffer], where: str) -> list[Finding]:
    """Signatures, arenas and order. `shared` holds the weights and the buffers that outlive a step, by name."""
    findings = [
        Finding(f"{where}#/buffers/{name}", "has the name of a buffer shared by both programs")
        for name in sorted(set(program.buffers) & set(shared))
    ]
    buffers = {**shared, **program.buffers}
    made = {name for i in program.code for name in i.outputs.values()}
    written: set[str] = set()
    for index, instruction in enumerate(program.code):
        place = f"{where}#/code/{index}"
        messages = list(_shape_of_instruction(instruction))
        if not messages:
            absent = [name for _, name in instruction.operands() if name not in buffers]
            messages = [f"{instruction.op} names the unknown buffer {name!r}" for name in absent]
        if not messages:
            messages = [
                *_arena_messages(instruction, buffers, shared, made, written),
                *_size_messages(instruction, buffers, program.activation),
            ]
        findings += [Finding(place, message) for message in messages]
        written |= set(instruction.outputs.values())
    unused = sorted(set(program.buffers) - {n for i in program.code if i.op in INSTRUCTIONS for _, n in i.operands()})
    findings += [Finding(f"{where}#/buffers/{name}", "is used by no instruction") for name in unused]
    return findings


def _shape_of_instruction(instruction: Instruction) -> Iterator[str]:
    """Is it a known operation with exactly the operands and attributes of its line?"""
    signature = INSTRUCTIONS.get(instruction.op)
    if signature is None:
        yield f"unknown operation {instruction.op!r}"
        return
    for role, part in _ROLE_PARTS:
        given: Mapping[str, str] = getattr(instruction, part)
        required = {n for n in signature.names(role) if not signature.operands[n].optional}
        for name in sorted(required - set(given)):
            yield f"{instruction.op} lacks {name!r} in {part}"
        for name in sorted(set(given) - set(signature.names(role))):
            yield f"{instruction.op} has no {name!r} in {part}"
    for name, kind in signature.attributes.items():
        if name not in instruction.attrs:
            yield f"{instruction.op} lacks the attribute {name!r}"
        elif type(instruction.attrs[name]) is not kind:
            yield f"{instruction.op}: attribute {name!r} is {instruction.attrs[name]!r}, not {kind.__name__}"
    for name in sorted(set(instruction.attrs) - set(signature.attributes)):
        yield f"{instruction.op} has no attribute {name!r}"
    if instruction.op == "rms_norm" and ("delta" in instruction.inputs) != ("sum" in instruction.outputs):
        yield "rms_norm writes 'sum' exactly when it reads 'delta'"


def _arena_messages(
    instruction: Instruction, buffers: Mapping[str, Buffer], shared: Mapping[str, Buffer], made: set[str], written: set[str]
) -> Iterator[str]:
    """Who may read, update and write what: work is written once and before it is read, only state is updated."""
    outputs = list(instruction.outputs.values())
    for operand, name in instruction.operands():
        arena = buffers[name].arena
        at = f"{instruction.op}.{operand.name}={name!r}"
        if operand.is_weight != (arena == "weights"):
            yield f"{at} is in arena {arena}, " + ("not weights" if operand.is_weight else "which only weights may name")
        elif operand.role == "input" and name not in written and (arena == "work" or name in made):
            yield f"{at} is read before it is written"
        elif operand.role == "update" and arena != "state":
            yield f"{at} is updated in place but lies in {arena}; only state is updated"
        elif operand.role == "output" and (name in shared or arena not in ("io", "work")):
            yield f"{at} may not be written: it outlives the step"
        elif operand.role == "output" and (name in written or outputs.count(name) > 1):
            yield f"{at} is written a second time"


def _size_messages(instruction: Instruction, buffers: Mapping[str, Buffer], activation: str) -> Iterator[str]:
    """Dtypes and dimensions: single letters bind first, then expressions are compared, then relations."""
    sizes: dict[str, int | str] = {"R": "R"}
    pairs = [(operand, buffers[name]) for operand, name in instruction.operands()]
    broken = False
    for operand, buffer in pairs:
        if buffer.dtype not in operand.dtypes(activation):
            yield f"{instruction.op}.{operand.name} is {buffer.dtype}, not {' or '.join(operand.dtypes(activation))}"
        if len(buffer.shape) != len(operand.dims):
            yield f"{instruction.op}.{operand.name} has {len(buffer.shape)} dimensions, not {len(operand.dims)}"
            broken = True
    if broken:
        return
    for exact in (True, False):
        for operand, buffer in pairs:
            for dim, actual in zip(operand.dims, buffer.shape, strict=True):
                if dim.isalpha() != exact:
                    continue
                numbers = {letter: size for letter, size in sizes.items() if isinstance(size, int)}
                expected = sizes.setdefault(dim, actual) if exact else evaluate(dim, numbers)
                if expected != actual:
                    yield f"{instruction.op}.{operand.name}: dimension {dim} is {actual}, not {expected}"
                    broken = True
                if dim == "T" and actual not in ("R", 1):
                    yield f"{instruction.op}.{operand.name}: dimension T is {actual}, not R or 1"
                    broken = True
    numbers = {letter: size for letter, size in sizes.items() if isinstance(size, int)}
    numbers |= {name: value for name, value in instruction.attrs.items() if type(value) is int}
    if not broken:
        for text, holds in CONSTRAINTS.get(instruction.op, ()):
            if not all(numbers.values()) or not holds(numbers):
                yield f"{instruction.op}: {text} does not hold for {numbers}"


def check_work_plan(program: Program, where: str) -> list[Finding]:
    """Work buffers are aligned, and no two overlap while both are live; offsets are per row, so this holds for all buckets."""
    findings: list[Finding] = []
    spans = program.lifetimes()
    placed = sorted(spans, key=lambda name: (program.buffers[name].offset, name))
    for position, name in enumerate(placed):
        buffer = program.buffers[name]
        if buffer.offset < 0 or buffer.offset % ALIGNMENT:
            findings.append(
                Finding(f"{where}#/buffers/{name}/offset", f"{buffer.offset} is not a multiple of {ALIGNMENT}")
            )
        end = buffer.offset + buffer.bytes()
        for other in placed[position + 1 :]:
            if program.buffers[other].offset >= end:
                break
            if spans[name][0] <= spans[other][1] and spans[other][0] <= spans[name][1]:
                findings.append(
                    Finding(
                        f"{where}#/buffers/{other}/offset",
                        f"overlaps {name!r} while both are live: {program.buffers[other].offset} < {end} (bytes per row)",
                    )
                )
    return findings


def check_arena(arena: str, buffers: Mapping[str, tuple[str, Buffer]], rows: int) -> list[Finding]:
    """Buffers of an arena that is not reused: aligned and disjoint. `buffers` maps a name to (its place, buffer)."""
    findings: list[Finding] = []
    end, before = 0, ""
    for name, (place, buffer) in sorted(buffers.items(), key=lambda item: (item[1][1].offset, item[0])):
        if buffer.offset < 0 or buffer.offset % ALIGNMENT:
            findings.append(Finding(f"{place}/offset", f"{buffer.offset} is not a multiple of {ALIGNMENT}"))
        if buffer.offset < end:
            message = f"overlaps {before!r} in arena {arena}: begins at {buffer.offset}, that one ends at {end}"
            findings.append(Finding(f"{place}/offset", message))
        if (last := buffer.offset + buffer.bytes(rows)) >= end:
            end, before = last, name
    return findings
