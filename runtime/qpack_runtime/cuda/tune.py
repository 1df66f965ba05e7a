"""`qpack-runtime tune`: the tiles of a kit, measured on this GPU; the fastest go into the file of `build --tuning`.

The time of a tile is the mean of its times at one row and at the kit's largest batch: one counts as much as the other.
"""

import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qpack_runtime.cuda.driver import Driver
from qpack_runtime.cuda.host import Host, read_host
from qpack_runtime.cuda.kernels import load_kernels
from qpack_runtime.cuda.pair_times import PairTimes, Times
from qpack_schemas.errors import InputError, UnsupportedError
from qpack_schemas.outputs import refuse_in_bundle
from qpack_schemas.schema_check import check_schema
from qpack_schemas.strict_json import JsonValue, dump_canonical, load_strict
from qpack_schemas.targets import architecture_number, choose
from qpack_schemas.tuning_kit import Kit, Weight, open_kit

VERSION = 1
SCHEMA = "tuning.v1.schema.json"


@dataclass(frozen=True)
class Measured:
    """A tile. `microseconds`: of the linear and its reader, by the rows of the step."""

    columns: int
    planes: int
    microseconds: Times

    @property
    def mean(self) -> float:
        return sum(self.microseconds.values()) / len(self.microseconds)

    def __str__(self) -> str:
        return f"{self.columns} x {self.planes}"


@dataclass(frozen=True)
class Choice:
    """Of a weight, by its padded shape "KxN". `measured`: all candidates, the cost model's choice first."""

    shape: str
    weight_bytes: int  # codes and scales
    measured: tuple[Measured, ...]

    @property
    def best(self) -> Measured:
        """Ties go to fewer planes, then to wider tiles, as in the cost model."""
        return min(self.measured, key=lambda one: (one.mean, one.planes, -one.columns))

    @property
    def gigabytes_per_second(self) -> float:
        """Of weights, at one row."""
        return self.weight_bytes / self.best.microseconds[min(self.best.microseconds)] / 1000


@dataclass(frozen=True)
class Tuned:
    host: Host
    target: str
    choices: tuple[Choice, ...]


def tune(path: Path, output: Path, told: Callable[[str], None]) -> Tuned:
    """Measures the kit at `path` and enters its choices at `output`; what else that file holds stays, but for `device`
    and `driver`, which are those of the last run. `told` is called with lines of progress.

    Raises UnsupportedError if no target of the kit runs on GPU 0, FitError if its memory is too small, IntegrityError
    for a damaged kit, InputError if `output` is there and no tuning file, UsageError if it lies in a bundle."""
    refuse_in_bundle(output)
    kit = open_kit(path)
    before = read_tuning(output)
    driver = Driver()
    host = read_host(driver)
    name = choose_target(kit, host)
    target = kit.document["targets"][name]
    told(f"{name} on {host}")
    kernels = load_kernels(driver, path, target["kernels"])
    times = PairTimes(driver, host, kernels, target["weights"], kit.document["rows"])
    choices: list[Choice] = []
    for shape, weight in target["weights"].items():
        walk = times.walks[shape]
        told(f"{shape}: {len(weight['candidates'])} tiles over {walk.copies} copies of {walk.weight_bytes:,} bytes")
        choices.append(choice_of(shape, weight, walk.weight_bytes, times.measure(shape, weight)))
    replace(output, dump_canonical(merged(before, f"sm_{architecture_number(target['architecture'])}", choices, host)))
    return Tuned(host, name, tuple(choices))


def choose_target(kit: Kit, host: Host) -> str:
    """By the rules for bundles. Raises UnsupportedError."""
    targets = kit.document["targets"]
    sizeless = {name: {**target, "minimum_device_bytes": 0} for name, target in targets.items()}
    try:
        name = choose(sizeless, host.sm, host.driver, None)
    except UnsupportedError as error:
        message, remedy = (text.replace("the bundle", "the kit") for text in (error.message, error.remedy))
        raise UnsupportedError(message, where=str(kit.path), remedy=remedy) from None
    if (needs := targets[name]["max_shared_bytes"]) > host.max_shared_bytes:
        message = (
            f"{name} needs {needs:,} bytes of shared memory in a block, {host.name} gives {host.max_shared_bytes:,}"
        )
        raise UnsupportedError(message, where=str(kit.path), remedy=f"make the kit with --target cuda:sm_{host.sm}")
    return name


def choice_of(shape: str, weight: Weight, weight_bytes: int, times: Sequence[Times]) -> Choice:
    """`times`: of each candidate of the weight."""
    pairs = zip(weight["candidates"], times, strict=True)
    return Choice(shape, weight_bytes, tuple(Measured(one["columns"], one["planes"], own) for one, own in pairs))


def read_tuning(path: Path) -> JsonValue:
    """The tuning file at `path`, or an empty one. Raises InputError if it is something else, OSError if nothing can be
    written there: measuring takes too long to find out later."""
    if not path.exists():
        if not path.absolute().parent.is_dir():
            raise InputError("is in no directory", where=str(path), remedy="make the directory first")
        return {"tuning_version": VERSION, "tiles": {}}
    document = load_strict(path)
    if findings := check_schema(document, SCHEMA, str(path)):
        remedy = "name another file, or move this one away"
        raise InputError(f"is no tuning file: {findings[0].message}", where=findings[0].where, remedy=remedy)
    return document


def merged(before: JsonValue, architecture: str, choices: Sequence[Choice], host: Host) -> JsonValue:
    """The tuning file with the new choices, which replace older ones of the same architecture and shape."""
    tiles: Mapping[str, Mapping[str, JsonValue]] = before["tiles"]
    chosen = {
        one.shape: {
            "columns": one.best.columns,
            "planes": one.best.planes,
            "microseconds": round(one.best.mean, 3),
        }
        for one in choices
    }
    entries = {**tiles, architecture: {**tiles.get(architecture, {}), **chosen}}
    return {"tuning_version": VERSION, "tiles": entries, "device": host.name, "driver": host.driver}


def replace(path: Path, data: bytes) -> None:
    """Writes beside `path` and renames: a reader sees the old bytes or the new. A link's file is replaced, not it."""
    target = path.resolve()
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def as_json(tuned: Tuned, output: Path) -> str:
    facts: dict[str, Any] = {
        "tuning": str(output),
        "target": tuned.target,
        "gpu": tuned.host.name,
        "driver": tuned.host.driver,
        "weights": {
            one.shape: {
                "chosen": asdict(one.best),
                "model": asdict(one.measured[0]),
                "gb_per_s": round(one.gigabytes_per_second, 1),
                "measured": [asdict(measured) for measured in one.measured],
            }
            for one in tuned.choices
        },
    }
    return json.dumps(facts, ensure_ascii=True)


def as_text(tuned: Tuned, output: Path) -> str:
    """A line for each weight: the fastest tile, and beside it the one that the cost model chose."""
    rows = [("weight", "chosen", "us", "the model's", "us", "GB/s")]
    for one in tuned.choices:
        best, model = one.best, one.measured[0]
        rate = f"{one.gigabytes_per_second:,.0f}"
        rows.append((one.shape, str(best), f"{best.mean:.2f}", str(model), f"{model.mean:.2f}", rate))
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    measured = ", ".join(map(str, tuned.choices[0].best.microseconds))
    return "\n".join(
        [
            *lines,
            f"chosen: columns x planes; us: a linear and its reader, mean of steps of {measured} rows",
            "GB/s: codes and scales, at one row",
            f"written to {output}: build with --tuning {output}",
        ]
    )
