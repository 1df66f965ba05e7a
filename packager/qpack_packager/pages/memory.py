"""The memory of a bundle as drawings: its arenas to scale, and who holds which bytes of the work arena when."""

from collections.abc import Iterator

from qpack_packager.commands.memory_use import Parts, memory_parts
from qpack_packager.commands.typeset import bytes_text, counted, percent
from qpack_packager.pages.axes import within
from qpack_packager.pages.charts import Bar, Lane, Part, Stack, bars, lanes, stacked_bars, steps
from qpack_packager.pages.layers import layer_of, role_of, within_layer
from qpack_packager.pages.render import Figure
from qpack_packager.pages.text import short_bytes
from qpack_packager.planner import lower_bound
from qpack_schemas.bundle import Bundle
from qpack_schemas.bundle_rules import shared_buffers
from qpack_schemas.program import Buffer, Program, align

ARENAS = {"weights": 1, "state": 3, "work": 2, "io": 7}  # with their colours
LARGEST = 8


def arena_parts(bundle: Bundle) -> Parts:
    """Arena -> purpose -> bytes."""
    manifest, shared = bundle.manifest, shared_buffers(bundle.manifest)
    weights = [(name, entry["form"], shared[name]) for name, entry in manifest["tensors"].items()]
    return memory_parts(manifest["memory"], weights, shared, bundle.programs.values())


def arenas(bundle: Bundle, parts: Parts) -> Figure:
    """All that is taken at boot, as one bar."""
    whole = bundle.manifest["memory"]["minimum_device_bytes"]
    sizes = {arena: sum(parts[arena].values()) for arena in ARENAS}
    pieces = [
        Part(size, ARENAS[arena], f"{arena}: {size:,} bytes, {percent(size / whole)}") for arena, size in sizes.items()
    ]
    words = ", ".join(f"{arena} {bytes_text(size)}" for arena, size in sizes.items())
    largest = max(sizes, key=lambda arena: sizes[arena])
    return Figure(
        "Four arenas, to scale",
        stacked_bars(f"Device memory: {words}", [Stack("taken at boot", bytes_text(whole), pieces)], bar=32),
        f"Nothing is allocated after boot; {largest} take{'' if largest.endswith('s') else 's'} "
        f"{percent(sizes[largest] / whole)} of it.",
        [(colour, f"{arena} {bytes_text(sizes[arena])}") for arena, colour in ARENAS.items()],
    )


def largest(bundle: Bundle) -> Figure:
    """The tensors that take the most."""
    shared, whole = shared_buffers(bundle.manifest), bundle.manifest["memory"]["weights_bytes"]
    sizes = {name: shared[name].bytes() for name in bundle.manifest["tensors"]}
    order = sorted(sizes, key=lambda name: (-sizes[name], name))[:LARGEST]
    rows = [
        Bar(name, sizes[name], bytes_text(sizes[name]), 1, f"{name}: {shared[name].dtype} {_shape(shared[name])}, "
            f"{sizes[name]:,} bytes, {percent(sizes[name] / whole)} of the weights")
        for name in order
    ]  # fmt: skip
    return Figure(
        "Largest tensors",
        bars(f"The {len(order)} largest of {counted(len(sizes), 'tensor')}", rows),
        f"The first {len(order)} of {counted(len(sizes), 'tensor')} are "
        f"{percent(sum(sizes[name] for name in order) / whole)} of the weights.",
    )


def work_maps(bundle: Bundle) -> Iterator[Figure]:
    """The work arena over the life of a step, for each program."""
    for kind, program in bundle.programs.items():
        rectangles, peak = _lanes(program), program.work_bytes_per_row()
        together = sum(align(lane.size) for lane in rectangles)
        sizes = {name: program.buffers[name].bytes() for name in program.lifetimes()}
        least = lower_bound(sizes, program.lifetimes())
        bound = "no plan can be smaller" if peak == least else f"no plan is below {bytes_text(least)}"
        yield Figure(
            f"Work arena in a {kind} step",
            lanes(
                f"{counted(len(rectangles), 'buffer')} over {counted(len(program.code), 'instruction')}, "
                f"in {peak:,} bytes a row",
                rectangles,
                len(program.code),
                within(0, max(peak, 1), short_bytes, "bytes per row"),
                "instruction",
            ),
            f"{counted(len(rectangles), 'buffer')} of {bytes_text(together)} share {bytes_text(peak)} a row, because a "
            f"place is used again as soon as its buffer is dead; {bound}.",
            _legend(rectangles),
        )


def layer_maps(program: Program) -> Iterator[Figure]:
    """One layer of each kind, instruction by instruction."""
    layers: dict[int, list[int]] = {}
    for index, instruction in enumerate(program.code):
        if (layer := layer_of(instruction)) is not None:
            layers.setdefault(layer, []).append(index)
    shown: dict[tuple[str, ...], int] = {}  # what a layer does -> the first that does it
    for layer, indices in layers.items():
        shown.setdefault(tuple(program.code[index].op for index in indices), layer)
    peak = max(program.work_bytes_per_row(), 1)
    for ops, layer in shown.items():
        first, last = min(layers[layer]), max(layers[layer])
        rectangles = list(_within(_lanes(program), first, last))
        yield Figure(
            f"Layer {layer}, instruction by instruction",
            steps(
                f"{counted(len(rectangles), 'buffer')} while layer {layer} runs: {', '.join(ops)}",
                rectangles,
                [program.code[index].op for index in range(first, last + 1)],
                within(0, peak, short_bytes),
            ),
            f"The same map of decode, close by: time goes down, the {bytes_text(peak)} of a row go from left to right.",
        )


def _lanes(program: Program) -> list[Lane]:
    rectangles: list[Lane] = []
    for name, (first, last) in program.lifetimes().items():
        buffer = program.buffers[name]
        size = buffer.bytes()
        title = f"{name}: {buffer.dtype}, {size:,} bytes at {buffer.offset:,}, instructions {first} to {last}"
        rectangles.append(Lane(first, last, buffer.offset, size, role_of(name)[0], title, within_layer(name)))
    return rectangles


def _shape(buffer: Buffer) -> str:
    return " x ".join(map(str, buffer.shape))


def _within(rectangles: list[Lane], first: int, last: int) -> Iterator[Lane]:
    """What of them lies in these steps, counted from the first."""
    for lane in rectangles:
        begin, end = max(lane.first, first), min(lane.last, last)
        if begin <= end:
            yield Lane(begin - first, end - first, lane.offset, lane.size, lane.colour, lane.title, lane.label)


def _legend(rectangles: list[Lane]) -> list[tuple[int, str]]:
    return sorted({role_of(lane.label) for lane in rectangles})
