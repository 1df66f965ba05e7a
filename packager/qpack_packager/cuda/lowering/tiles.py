"""Which tile and how many planes an int4 linear of a decode program gets on an architecture.

One cubin serves every GPU of an architecture and every decode bucket, so the choice follows the weight's shape alone.
A small model of the time decides, with the figures of the architecture's typical device; a tuning file, measured on a
device by `qpack-runtime tune`, overrules it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from qpack_packager.devices import Device
from qpack_packager.quantize.groups import GROUP
from qpack_packager.quantize.marlin import TILE_N
from qpack_schemas.errors import InputError
from qpack_schemas.schema_check import check_schema
from qpack_schemas.strict_json import load_strict

TILES = (64, 128, 256)  # columns of a program; one warp per 64
MOST_PLANES = 8
ROWS = 4  # of the step that is priced: a middling batch
LATENCY = 0.6e-6  # s from asking memory for a group of weights to multiplying with it; two groups are in flight
RESIDENT_WARPS = 16  # of this kernel on an SM: its registers allow as many
ISSUE = 64 * GROUP * 2.5 / 32 / 1.5e9  # s a warp's share of a group keeps a scheduler busy: 2.5 instructions a weight
ALONE = 2.0  # times as long, if no other warp fills the gaps
SCHEDULERS = 4  # of an SM
LAUNCH_TAIL = 1.0e-6  # s until the last program of a wave is through


@dataclass(frozen=True)
class Tile:
    columns: int
    planes: int


def cost(device: Device, k: int, n: int, tile: Tile) -> float:
    """Seconds of one decode linear of codes [k, n], padded sizes. Waves of programs walk their groups of 128 weights; a
    group takes what is slowest of: the latency of its load, its instructions, and memory serving all that run. The
    planes are written and read again. A guess for ranking, not for planning."""
    warps = tile.columns // TILE_N
    groups = -(-k // GROUP // tile.planes)
    programs = -(-n // tile.columns) * tile.planes
    running = min(programs, device.sms * max(1, RESIDENT_WARPS // warps))
    shared_issue = -(-running * warps // (device.sms * SCHEDULERS)) * ISSUE
    memory = running * tile.columns * (GROUP // 2 + 2) / device.bytes_per_second
    step = max(LATENCY / 2, ALONE * ISSUE, shared_issue, memory)
    planes_bytes = 2 * 4 * tile.planes * ROWS * n
    return -(-programs // running) * (groups * step + LAUNCH_TAIL) + planes_bytes / device.bytes_per_second


@dataclass(frozen=True)
class Tuning:
    """Measured choices: architecture -> "KxN" of the padded weight -> Tile."""

    tiles: Mapping[str, Mapping[str, Tile]] = field(default_factory=dict[str, Mapping[str, Tile]])

    @staticmethod
    def read(path: Path) -> "Tuning":
        """Raises InputError if the file isn't one that `qpack-runtime tune` writes."""
        document = load_strict(path)
        if findings := check_schema(document, "tuning.v1.schema.json", str(path)):
            raise InputError(str(findings[0].message), where=findings[0].where, remedy="run `qpack-runtime tune` again")
        entries = cast(dict[str, dict[str, dict[str, int]]], document["tiles"])
        return Tuning(
            {
                sm: {shape: Tile(entry["columns"], entry["planes"]) for shape, entry in shapes.items()}
                for sm, shapes in entries.items()
            }
        )


def candidates(k: int, n: int, most_planes: int = MOST_PLANES) -> list[Tile]:
    """All that may be chosen for padded codes [k, n]: whole tiles, and no plane without a group."""
    groups = k // GROUP
    splits = [
        planes for planes in range(1, min(most_planes, groups) + 1) if -(-groups // -(-groups // planes)) == planes
    ]
    return [Tile(columns, planes) for columns in TILES if n % columns == 0 for planes in splits]


def choose(device: Device, tuning: Tuning, k: int, n: int, most_planes: int = MOST_PLANES) -> Tile:
    """The tuned tile, or the cheapest by `cost`; ties go to fewer planes. Raises InputError for a tuned tile that the
    weight can't have."""
    tuned = tuning.tiles.get(device.architecture, {}).get(f"{k}x{n}")
    possible = candidates(k, n, most_planes)
    if tuned is None:
        return min(possible, key=lambda tile: (cost(device, k, n, tile), tile.planes, -tile.columns))
    if tuned not in possible:
        message = f"{tuned.columns} columns and {tuned.planes} planes are no tile of a {k}x{n} weight"
        raise InputError(message, where=f"tuning file, {device.architecture}", remedy="run `qpack-runtime tune` again")
    return tuned
