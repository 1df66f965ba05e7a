"""The rules a program must keep before any executor may run it; each broken one is a finding with its place.

Kernels trust these rules: they index memory by the sizes checked here.
"""

from collections.abc import Iterator, Mapping

from qpack_schemas.errors import Finding
from qpack_schemas.instructions import CONSTRAINTS, FIXED, INSTRUCTIONS, STATE, TOGETHER, Role, evaluate
from qpack_schemas.program import Buffer, Instruction, Program

_ROLE_PARTS: tuple[tuple[Role, str], ...] = (("input", "inputs"), ("update", "updates"), ("output", "outputs"))


def check_code(program: Program, shared: Mapping[str, Buffer], where: str) -> list[Finding]:
    """Signatures, arenas and order. `shared` holds the weights and the buffers that outlive a step, by name."""
    findings = [
        Finding(f"{where}#/buffers/{name}", "has the name of a buffer shared by both programs")
        for name in sorted(set(program.buffers) & set(shared))
    ]
    findings += [Finding(f"{where}#/code/{index}", message) for index, message in _frame_messages(program)]
    buffers = {**shared, **program.buffers}
    # What the host writes before a step: inputs of the rows instruction, and tables that outlive the step.
    written = {name for name, buffer in shared.items() if buffer.arena == "io"} | set(program.code[0].inputs.values())
    for index, instruction in enumerate(program.code):
        messages = list(_shape_of_instruction(instruction))
        if not messages:
            absent = [name for _, name in instruction.operands() if name not in buffers]
            messages = [f"{instruction.op} names the unknown buffer {name!r}" for name in absent]
        if not messages:
            messages = [
                *_arena_messages(instruction, buffers, shared, written),
                *_size_messages(instruction, buffers, program.activation),
            ]
        findings += [Finding(f"{where}#/code/{index}", message) for message in messages]
        written |= set(instruction.outputs.values())
    unused = sorted(set(program.buffers) - {n for i in program.code if i.op in INSTRUCTIONS for _, n in i.operands()})
    findings += [Finding(f"{where}#/buffers/{name}", "is used by no instruction") for name in unused]
    return findings


def _frame_messages(program: Program) -> Iterator[tuple[int, str]]:
    """A program begins with the rows of its kind and ends with the choice of a token, and does each once."""
    rows, last = f"rows_{program.kind}", len(program.code) - 1
    for index, instruction in enumerate(program.code):
        if index == 0 and instruction.op != rows:
            yield index, f"is {instruction.op}; a {program.kind} program begins with {rows}"
        elif index == last and instruction.op != "sample":
            yield index, f"is {instruction.op}; a program ends with sample"
        elif 0 < index < last and (instruction.op == "sample" or instruction.op.startswith("rows_")):
            yield index, f"is {instruction.op}, which stands only at the begin or the end of a program"
    if program.kind == "prefill" and "last" not in program.code[-1].inputs:
        yield last, "lacks 'last' in inputs: of a prompt's rows only the last one is sampled"


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
    one, other = TOGETHER.get(instruction.op, ("", ""))
    present = {**instruction.inputs, **instruction.outputs}
    if (one in present) != (other in present):
        yield f"{instruction.op} has one of {one!r} and {other!r} without the other"


def _arena_messages(
    instruction: Instruction, buffers: Mapping[str, Buffer], shared: Mapping[str, Buffer], written: set[str]
) -> Iterator[str]:
    """Who may read, update and write what: a value is written once and before it is read, only state is updated."""
    outputs = list(instruction.outputs.values())
    host_role = {"rows_decode": "input", "rows_prefill": "input", "sample": "output"}.get(instruction.op)
    for operand, name in instruction.operands():
        arena, at = buffers[name].arena, f"{instruction.op}.{operand.name}={name!r}"
        is_state = operand.name in STATE
        if operand.is_weight or is_state:
            allowed = ("weights",) if operand.is_weight else ("state",)
        else:
            allowed = ("io",) if operand.role == host_role else ("io", "work")
        if arena not in allowed:
            yield f"{at} is in arena {arena}, not {' or '.join(allowed)}"
        elif operand.name in FIXED and name != FIXED[operand.name]:
            yield f"{at}: this operand is always the buffer {FIXED[operand.name]!r}"
        elif is_state and name.rpartition(".")[2] != operand.name:
            yield f"{at}: the last part of a state buffer's name says which operand it is"
        elif operand.dims[0] == "S" and name not in shared:
            yield f"{at} is kept per slot and outlives the step, so the manifest must place it"
        elif operand.role == "output" and name in shared:
            yield f"{at} may not be written: it outlives the step"
        elif operand.role == "output" and (name in written or outputs.count(name) > 1):
            yield f"{at} is written a second time"
        elif operand.role == "input" and not operand.is_weight and not is_state and name not in written:
            yield f"{at} is read before it is written"


def _size_messages(instruction: Instruction, buffers: Mapping[str, Buffer], activation: str) -> Iterator[str]:
    """Dtypes and dimensions: single letters bind first, then expressions are compared, then relations."""
    pairs = [(operand, buffers[name]) for operand, name in instruction.operands()]
    for operand, buffer in pairs:
        if buffer.dtype not in operand.dtypes(activation):
            yield f"{instruction.op}.{operand.name} is {buffer.dtype}, not {' or '.join(operand.dtypes(activation))}"
    misshapen = [
        f"{instruction.op}.{operand.name} has {len(buffer.shape)} dimensions, not {len(operand.dims)}"
        for operand, buffer in pairs
        if len(buffer.shape) != len(operand.dims)
    ]
    yield from misshapen
    if misshapen:
        return
    sizes: dict[str, int | str] = {"R": "R"}
    broken = False
    for exact in (True, False):
        for operand, buffer in pairs:
            for dim, actual in zip(operand.dims, buffer.shape, strict=True):
                if dim.isalpha() != exact:
                    continue
                expected = sizes.setdefault(dim, actual) if exact else evaluate(dim, _numbers(sizes))
                if expected != actual:
                    yield f"{instruction.op}.{operand.name}: dimension {dim} is {actual}, not {expected}"
                    broken = True
                if dim == "T" and actual not in ("R", 1):
                    yield f"{instruction.op}.{operand.name}: dimension T is {actual}, not R or 1"
                    broken = True
    if broken:
        return
    if instruction.op == "sample" and "last" not in instruction.inputs and sizes["T"] != "R":
        yield "sample has no 'last', so there must be logits for every row: T is R"
    numbers = _numbers({**sizes, **instruction.attrs})
    for text, holds in CONSTRAINTS.get(instruction.op, ()):
        if not holds(numbers):
            yield f"{instruction.op}: {text} does not hold for {numbers}"


def _numbers(sizes: Mapping[str, object]) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if type(size) is int}
