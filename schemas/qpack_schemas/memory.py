"""Exact memory of a bundle: what each arena takes, for every bucket. Nothing is allocated after boot."""

from collections.abc import Iterable, Mapping, Sequence

from qpack_schemas.launch_table import LaunchTable
from qpack_schemas.manifest import Bucket, FileEntry, Memory
from qpack_schemas.program import Buffer, Kind, Program, align


def most_rows(buckets: Sequence[Bucket], program: str) -> int:
    return max((bucket["rows"] for bucket in buckets if bucket["program"] == program), default=0)


def _end(buffers: Iterable[Buffer], rows: int = 1) -> int:
    return max((buffer.offset + align(buffer.bytes(rows)) for buffer in buffers), default=0)


def account(
    weights_bytes: int, shared: Mapping[str, Buffer], programs: Mapping[Kind, Program], buckets: Sequence[Bucket]
) -> Memory:
    """All sizes in bytes. The io arena holds the shared io buffers and behind them the io of one program at a time."""
    state = _end(buffer for buffer in shared.values() if buffer.arena == "state")
    io = _end(buffer for buffer in shared.values() if buffer.arena == "io")
    for kind, program in programs.items():
        own = [buffer for buffer in program.buffers.values() if buffer.arena == "io"]
        io = max(io, _end(own, most_rows(buckets, kind)))
    work = {bucket["name"]: bucket["rows"] * programs[bucket["program"]].work_bytes_per_row() for bucket in buckets}
    return {
        "weights_bytes": weights_bytes,
        "state_bytes": state,
        "io_bytes": io,
        "work_bytes": work,
        "minimum_device_bytes": weights_bytes + state + io + max(work.values(), default=0),
    }


def weight_places(files: Iterable[FileEntry]) -> tuple[dict[str, int], int]:
    """Weight file -> where its first byte lies in a GPU's weights arena, and the bytes of that arena: the files as they
    are, one behind the other by path, each on a multiple of ALIGNMENT."""
    places: dict[str, int] = {}
    end = 0
    for file in sorted((f for f in files if f["path"].startswith("weights/")), key=lambda f: f["path"]):
        places[file["path"]] = end
        end += align(file["bytes"])
    return places, end


def account_target(
    files: Iterable[FileEntry], memory: Memory, tables: Mapping[Kind, LaunchTable], buckets: Sequence[Bucket]
) -> tuple[dict[str, int], int]:
    """What a GPU target takes, in bytes: the work arena of every bucket, and the least device memory for all of them.
    State and io are the bundle's, `memory`; the driver's own memory comes on top and is not ours to plan."""
    work = {bucket["name"]: bucket["rows"] * tables[bucket["program"]].work_bytes_per_row() for bucket in buckets}
    _, weights = weight_places(files)
    return work, weights + memory["state_bytes"] + memory["io_bytes"] + max(work.values(), default=0)
