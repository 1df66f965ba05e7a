"""What a decode step moves, as drawings: per token and batch, layer by layer, and by kind of instruction."""

from collections import Counter

from qpack_packager.commands.typeset import bytes_text, percent
from qpack_packager.pages.axes import linear
from qpack_packager.pages.charts import Bar, Part, Stack, bars, columns, stacked_bars
from qpack_packager.pages.layers import layer_of
from qpack_packager.pages.render import Figure
from qpack_packager.pages.text import short_bytes
from qpack_schemas.bundle import Bundle
from qpack_schemas.bundle_rules import shared_buffers
from qpack_schemas.traffic import Traffic, decode_traffic, decode_traffic_by_instruction

MOVED = {"weights": 1, "kv": 3, "recurrent": 4}  # fields of Traffic, with their colours
_NAMES = {"weights": "weights", "kv": "keys and values", "recurrent": "recurrent state"}


def batches(bundle: Bundle) -> list[int]:
    """The rows that a decode step may have."""
    return sorted({bucket["rows"] for bucket in bundle.manifest["buckets"] if bucket["program"] == "decode"})


def halfway(bundle: Bundle) -> int:
    """Positions of a sequence in the middle of its context."""
    return max(1, bundle.manifest["context"] // 2)


def decode_steps(bundle: Bundle) -> list[Traffic]:
    """The traffic of a step of each batch, every sequence halfway through the context."""
    program, shared = bundle.programs["decode"], shared_buffers(bundle.manifest)
    return [decode_traffic(program, shared, rows, halfway(bundle)) for rows in batches(bundle)]


def traffic_figures(bundle: Bundle) -> list[Figure]:
    """Per token, by layer and by operation."""
    program, rows = bundle.programs["decode"], min(batches(bundle))
    each = decode_traffic_by_instruction(program, shared_buffers(bundle.manifest), rows, halfway(bundle))
    by_layer: dict[str, Counter[str]] = {}
    by_op: dict[str, Counter[str]] = {}
    place = "in"
    for instruction, step in zip(program.code, each, strict=True):
        layer = layer_of(instruction)
        place = str(layer) if layer is not None else "out" if place != "in" else place
        for held, key in ((by_layer, place), (by_op, instruction.op)):
            held.setdefault(key, Counter()).update({field: getattr(step, field) for field in MOVED})
    used = [field for field in MOVED if any(getattr(step, field) for step in each)]
    legend = [(MOVED[field], _NAMES[field]) for field in used]
    return [_per_token(decode_steps(bundle), legend), _by_layer(by_layer, legend, rows), _by_op(by_op, rows)]


def _per_token(steps: list[Traffic], legend: list[tuple[int, str]]) -> Figure:
    rows = [
        Stack(
            f"batch {step.rows}",
            bytes_text(round(step.total / step.rows)),
            [_part(field, getattr(step, field) / step.rows, step.total / step.rows) for field in MOVED],
        )
        for step in steps
    ]
    first, last = steps[0], steps[-1]
    gain = first.total * last.rows / (last.total * first.rows)
    told = f", and a batch of {last.rows} moves {gain:.1f} times less per token" if len(steps) > 1 else ""
    return Figure(
        "Bytes per token",
        stacked_bars(f"Bytes moved per token, in {len(rows)} batch sizes", rows),
        f"Weights are read once for the whole batch{told}; keys, values and state belong to each sequence.",
        legend,
    )


def _by_layer(held: dict[str, Counter[str]], legend: list[tuple[int, str]], rows: int) -> Figure:
    whole = sum(moved.total() for moved in held.values())
    every = 5 if len(held) > 14 else 1  # so many layers from one number below the columns to the next
    stacks = [
        Stack(
            place if not place.isdecimal() or (int(place) % every == 0 and int(place) >= every - 1) else "",
            "",
            [_part(field, moved[field], whole, _place(place)) for field in MOVED],
        )
        for place, moved in held.items()
    ]
    heaviest = max(held, key=lambda place: held[place].total())
    return Figure(
        "By layer",
        columns(
            f"Bytes moved by each layer in a step of {rows}",
            stacks,
            linear([stack.whole for stack in stacks], short_bytes),
            "layer",
        ),
        f"A step of batch {rows}: the most is moved by {_place(heaviest)}, "
        f"{bytes_text(held[heaviest].total())} or {percent(held[heaviest].total() / whole)}. "
        "In is the embedding, out are the last norm, the head and sampling.",
        legend,
    )


def _by_op(held: dict[str, Counter[str]], rows: int) -> Figure:
    whole = sum(moved.total() for moved in held.values())
    order = sorted((op for op in held if held[op].total()), key=lambda op: (-held[op].total(), op))
    shown = [
        Bar(op, held[op].total(), bytes_text(held[op].total()), MOVED[max(MOVED, key=lambda field: held[op][field])],
            f"{op}: {held[op].total():,} bytes, {percent(held[op].total() / whole)}")
        for op in order
    ]  # fmt: skip
    return Figure(
        "By instruction",
        bars(f"Bytes moved by each kind of instruction in a step of {rows}", shown),
        f"{order[0] if order else 'Nothing'} moves {percent(held[order[0]].total() / whole) if order else 'a byte'} of "
        f"the {bytes_text(whole)}: what bounds the speed of a step of batch {rows}.",
    )


def _part(field: str, size: float, whole: float, where: str = "") -> Part:
    share = f", {percent(size / whole)}" if whole else ""
    title = f"{where + ': ' if where else ''}{_NAMES[field]} {round(size):,} bytes{share}"
    return Part(size, MOVED[field], title)


def _place(place: str) -> str:
    return {"in": "the embedding", "out": "head and sampling"}.get(place, f"layer {place}")
