"""What the bytes of each arena are for. The same split for a bundle and for one that is only planned."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Set

from qpack_packager.commands.typeset import bar, bytes_text, columns, percent
from qpack_schemas.manifest import Memory
from qpack_schemas.program import Buffer, Program, align

Weight = tuple[str, str, Buffer]  # name, form as in the manifest or of a module, tensor as stored
Parts = Mapping[str, Mapping[str, int]]  # arena -> purpose -> bytes

_WEIGHT_PURPOSES = ("int4 codes and scales", "embedding and head", "other dense", "RoPE table")
# Operand that a program updates -> what it keeps in the state arena.
_KEEPS = {
    "k": "KV cache",
    "v": "KV cache",
    "ring": "convolution",
    "memory": "recurrent",
    "counts": "sampling counts",
    "slot_token": "token and position",
    "slot_position": "token and position",
}


def memory_parts(
    memory: Memory,
    weights: Iterable[Weight],
    shared: Mapping[str, Buffer],
    programs: Collection[Program],
) -> Parts:
    """Each arena's bytes by purpose, alignment included, so that they add up to the arena."""
    held = Counter[str](dict.fromkeys(_WEIGHT_PURPOSES, 0))
    vocabulary = {name for program in programs for name in _vocabulary(program)}
    for name, form, tensor in weights:
        held[_weight_purpose(name, form, vocabulary)] += tensor.bytes()
    held["headers and padding"] = memory["weights_bytes"] - held.total()
    return {
        "weights": dict(held),
        "state": _state(shared, programs),
        "io": {"requests and results": memory["io_bytes"]},
        "work": {"activations": max(memory["work_bytes"].values())},
    }


def _vocabulary(program: Program) -> Iterator[str]:
    """The weights that have a line per token: read by token, or giving the logits."""
    logits = program.code[-1].inputs["logits"]
    for instruction in program.code:
        if "tokens" in instruction.inputs or logits in instruction.outputs.values():
            yield from (name for operand, name in instruction.operands() if operand.is_weight)


def _weight_purpose(name: str, form: str, vocabulary: Set[str]) -> str:
    int4, tokens, dense, rope = _WEIGHT_PURPOSES
    if name in vocabulary:
        return tokens
    return int4 if form.startswith("marlin") else rope if form == "rope_table" else dense


def _state(shared: Mapping[str, Buffer], programs: Iterable[Program]) -> dict[str, int]:
    purposes = {
        name: _KEEPS[operand.name]
        for program in programs
        for instruction in program.code
        for operand, name in instruction.operands()
        if operand.name in _KEEPS and operand.role == "update"
    }
    held = Counter[str](dict.fromkeys(_KEEPS.values(), 0))
    for name, buffer in shared.items():
        if buffer.arena == "state":
            held[purposes.get(name, "other")] += align(buffer.bytes())
    return dict(held)


def memory_lines(memory: Memory, parts: Parts) -> list[str]:
    whole = memory["minimum_device_bytes"]

    def cells(name: str, size: int, mark: str) -> tuple[str, ...]:
        return name, bytes_text(size), percent(size / whole), bar(size, whole, mark)

    rows: list[tuple[str, ...]] = []
    for arena, purposes in parts.items():
        rows.append(cells(arena, sum(purposes.values()), "#"))
        if len(purposes) > 1:
            rows += [cells(f"  {name}", size, "-") for name, size in purposes.items() if size]
    return [f"Memory: {bytes_text(whole)}, all of it taken at boot", *columns(rows, right={1, 2})]
