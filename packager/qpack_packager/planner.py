"""Placement of work buffers: offsets in bytes per row from lifetimes, so that one plan serves every bucket.

Placing intervals of given size and lifetime in the least memory is dynamic storage allocation (NP-hard); greedy orders
come close. Several orders are tried; in each, the buffer that ends highest is placed first in the next round. The
smallest plan wins, and one that reaches the lower bound ends the search.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from qpack_schemas.program import Program, align

ROUNDS = 30  # per order; measured on random programs: worst excess over the lower bound 31 % with 1, 7 % with 30
Span = tuple[int, int]  # first and last instruction of a lifetime, both included


def plan(sizes: Mapping[str, int], spans: Mapping[str, Span]) -> dict[str, int]:
    """Buffer -> offset, both in bytes; aligned, no two buffers of overlapping lifetime share a byte. Deterministic."""
    bound = lower_bound(sizes, spans)
    orders: tuple[Callable[[str], tuple[int, ...]], ...] = (
        lambda n: (-sizes[n], spans[n][0]),
        lambda n: (-sizes[n] * (spans[n][1] - spans[n][0] + 1), spans[n][0]),
        lambda n: (spans[n][0] - spans[n][1], -sizes[n]),
        lambda n: (spans[n][0], -sizes[n]),
        lambda n: (-spans[n][1], -sizes[n]),
    )
    best: dict[str, int] = {}
    for key in orders:
        order = sorted(sizes, key=lambda n: (*key(n), n))
        for _ in range(ROUNDS):
            offsets = _place(order, sizes, spans)
            if not best or peak(sizes, offsets) < peak(sizes, best):
                best = offsets
            if peak(sizes, best) == bound:
                return best
            top = max(order, key=lambda n: (offsets[n] + align(sizes[n]), n))
            order = [top, *(n for n in order if n != top)]
    return best


def _place(order: list[str], sizes: Mapping[str, int], spans: Mapping[str, Span]) -> dict[str, int]:
    """One greedy pass: each buffer takes the lowest gap between the placed buffers that it is live with."""
    offsets: dict[str, int] = {}
    for name in order:
        size, place = align(sizes[name]), 0
        rivals = sorted((offsets[n], offsets[n] + align(sizes[n])) for n in offsets if _overlap(spans[n], spans[name]))
        for begin, end in rivals:
            if begin - place >= size:
                break
            place = max(place, end)
        offsets[name] = place
    return offsets


def _overlap(a: Span, b: Span) -> bool:
    return a[0] <= b[1] and b[0] <= a[1]


def peak(sizes: Mapping[str, int], offsets: Mapping[str, int]) -> int:
    return max((offsets[name] + align(sizes[name]) for name in offsets), default=0)


def lower_bound(sizes: Mapping[str, int], spans: Mapping[str, Span]) -> int:
    """No plan is smaller than the largest sum of sizes that are live at one instruction."""
    moments = {first for first, _ in spans.values()}
    return max((sum(align(sizes[n]) for n in sizes if spans[n][0] <= t <= spans[n][1]) for t in moments), default=0)


def place_work(program: Program) -> Program:
    """The program with an offset for every work buffer."""
    spans = program.lifetimes()
    offsets = plan({name: program.buffers[name].bytes() for name in spans}, spans)
    placed = {n: replace(b, offset=offsets[n]) if n in offsets else b for n, b in program.buffers.items()}
    return replace(program, buffers=placed)
