"""Where buffers may lie: aligned, and never on a byte that another live buffer holds."""

from collections.abc import Iterator, Mapping

from qpack_schemas.errors import Finding
from qpack_schemas.program import ALIGNMENT, Buffer, Program


def check_work_plan(program: Program, where: str) -> Iterator[Finding]:
    """The reused arena. Offsets are per row, so what holds for one row holds in all buckets."""
    spans = program.lifetimes()
    placed = sorted(spans, key=lambda name: (program.buffers[name].offset, name))
    for position, name in enumerate(placed):
        buffer = program.buffers[name]
        yield from _check_alignment(buffer, f"{where}#/buffers/{name}")
        end = buffer.offset + buffer.bytes()
        for other in placed[position + 1 :]:
            begin = program.buffers[other].offset
            if begin >= end:
                break
            if spans[name][0] <= spans[other][1] and spans[other][0] <= spans[name][1]:
                message = f"overlaps {name!r} while both are live: {begin} < {end} (bytes per row)"
                yield Finding(f"{where}#/buffers/{other}/offset", message)


def check_arena(arena: str, buffers: Mapping[str, tuple[str, Buffer]], rows: int) -> Iterator[Finding]:
    """An arena that is not reused. `buffers` maps a name to (its place, buffer)."""
    end, before = 0, ""
    for name, (place, buffer) in sorted(buffers.items(), key=lambda item: (item[1][1].offset, item[0])):
        yield from _check_alignment(buffer, place)
        if buffer.offset < end:
            message = f"overlaps {before!r} in arena {arena}: begins at {buffer.offset}, that one ends at {end}"
            yield Finding(f"{place}/offset", message)
        if (last := buffer.offset + buffer.bytes(rows)) >= end:
            end, before = last, name


def _check_alignment(buffer: Buffer, place: str) -> Iterator[Finding]:
    if buffer.offset % ALIGNMENT:
        yield Finding(f"{place}/offset", f"{buffer.offset} is not a multiple of {ALIGNMENT}")
