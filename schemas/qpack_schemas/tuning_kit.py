"""A tuning kit: the kernels of several tiles for each weight shape of a model, for a device to measure them.

kit.json is canonical JSON with its own checksum; every cubin beside it has its sha256 there. A kit holds no weights.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict, cast

from qpack_schemas.bundle_files import sha256_of
from qpack_schemas.errors import Finding, InputError, IntegrityError, VersionError
from qpack_schemas.kernel_rules import check_kernel
from qpack_schemas.launch_table import Dim, kernel_folder
from qpack_schemas.manifest import Kernel, Target, checksum_of
from qpack_schemas.schema_check import check_schema
from qpack_schemas.strict_json import JsonValue, dump_canonical, load_strict
from qpack_schemas.targets import architecture_number

KIT = "kit.json"
VERSION = 1
GEMM = "linear_int4.linear_int4_decode"
READER = "silu.silu_mul"
# Run-time arguments in order, with what they are: a type, "a" the kit's activation, "w" any float type of a scale.
GEMM_PARAMS = (("x", "a"), ("q", "*i32"), ("scale", "w"), ("y", "*fp32"), ("R", "i32"))
READER_PARAMS = (("x", "*fp32"), ("y", "a"), ("R", "i32"))
FLOATS = {"float32": "*fp32", "bfloat16": "*bf16", "float16": "*fp16"}


class Candidate(TypedDict):
    """A tile, and its two kernels: the linear, and a reader that adds its planes as the next kernel of a model does."""

    columns: int
    planes: int
    gemm: str
    gemm_grid: list[Dim]
    reader: str
    reader_grid: list[Dim]


class Weight(TypedDict):
    """Sizes of the linear: x [R, k], y [planes, R, n]. Codes are int32 [k' / 16, 2 * n'], scales [k' / 128, n'], where
    k' and n' are k and n rounded up to 128 and 64."""

    k: int
    n: int
    candidates: list[Candidate]  # the cost model's choice first


class KitTarget(TypedDict):
    """Fields as in the manifest's Target."""

    architecture: str
    scope: Literal["exact", "major"]
    format: Literal["cubin"]
    toolkit: int
    min_driver: int
    max_shared_bytes: int
    compilers: dict[str, str]
    kernels: dict[str, Kernel]
    weights: dict[str, Weight]  # by "k'xn'", as in a tuning file


class KitDocument(TypedDict):
    kit_version: int
    activation: str  # dtype of activations
    rows: list[int]  # of the steps that are measured: 1, and the largest batch
    targets: dict[str, KitTarget]
    checksum: str


@dataclass(frozen=True)
class Kit:
    """A kit that is whole."""

    path: Path
    document: KitDocument


def padded(weight: Weight) -> tuple[int, int]:
    """k' and n', the sizes of its codes."""
    return -(-weight["k"] // 128) * 128, -(-weight["n"] // 64) * 64


def open_kit(path: Path) -> Kit:
    """The kit at `path`, every byte of it verified. Raises InputError if there is no directory, VersionError for a kit
    of another version, IntegrityError with all findings for a damaged one."""
    if not path.is_dir():
        raise InputError("is no directory", where=str(path), remedy="name the directory of `qpack tuning-kit`")
    document = _read(path)
    if isinstance(said := document.get("kit_version"), int) and said != VERSION:
        finding = Finding(f"{KIT}#/kit_version", f"is {said}, this qpack reads {VERSION}")
        remedy = "use the same qpack to make the kit and to tune with it"
        raise VersionError("the kit was made for another version:", [finding], where=str(path), remedy=remedy)
    findings = check_schema(document, "tuning_kit.v1.schema.json", KIT)
    if (exact := checksum_of(document)) != document.get("checksum"):
        message = f"checksum is {document.get('checksum')}, the contents give {exact}: the file was changed"
        findings.append(Finding(KIT, message))
    if findings:
        raise _damaged(path, findings)
    kit = cast(KitDocument, document)
    for name, target in kit["targets"].items():
        findings += _check_target(path, kit, name, target)
    if findings:
        raise _damaged(path, findings)
    return Kit(path, kit)


def _read(path: Path) -> JsonValue:
    file = path / KIT
    try:
        if file.is_symlink():
            raise _damaged(path, [Finding(KIT, "is a symbolic link; a kit holds only its own files")])
        raw, document = file.read_bytes(), load_strict(file)
        canonical = dump_canonical(document)
    except (InputError, OSError) as error:
        message = error.message if isinstance(error, InputError) else error.strerror or str(error)
        raise _damaged(path, [Finding(KIT, message)]) from None
    except RecursionError:
        raise _damaged(path, [Finding(KIT, "is nested too deeply")]) from None
    if not isinstance(document, dict) or raw != canonical:
        raise _damaged(path, [Finding(KIT, "is no JSON object in canonical form, so its bytes were changed")])
    return cast(JsonValue, document)


def _check_target(root: Path, kit: KitDocument, name: str, target: KitTarget) -> Iterator[Finding]:
    place = f"{KIT}#/targets/{name}"
    if f"cuda:sm_{architecture_number(target['architecture'])}" != name:
        yield Finding(f"{place}/architecture", f"is {target['architecture']}, the target's name says otherwise")
    for kernel_name, kernel in target["kernels"].items():
        own = f"{place}/kernels/{kernel_name}"
        if kernel["file"] != (file := f"{kernel_folder(name)}/{kernel_name}.cubin"):
            yield Finding(f"{own}/file", f"is {kernel['file']!r}, the kernel's name says {file!r}")
        elif kernel["shared_bytes"] > target["max_shared_bytes"]:
            message = f"is {kernel['shared_bytes']}, more than the target's {target['max_shared_bytes']}"
            yield Finding(f"{own}/shared_bytes", message)
        else:
            yield from _check_file(root, kernel_name, kernel, target)
    for shape, weight in target["weights"].items():
        k, n = padded(weight)
        if shape != f"{k}x{n}":
            yield Finding(f"{place}/weights/{shape}", f"{weight['k']} and {weight['n']} are padded to {k}x{n}")
        for index, candidate in enumerate(weight["candidates"]):
            where = f"{place}/weights/{shape}/candidates/{index}"
            for message in _messages(kit, target["kernels"], weight, candidate):
                yield Finding(where, message)


def _check_file(root: Path, name: str, kernel: Kernel, target: KitTarget) -> list[Finding]:
    file = root / kernel["file"]
    if file.is_symlink() or not file.is_file():
        return [Finding(kernel["file"], "is missing, or no regular file")]
    if (digest := sha256_of(file)) != kernel["sha256"]:
        return [Finding(kernel["file"], f"has sha256 {digest}, {KIT} says {kernel['sha256']}")]
    return check_kernel(root, name, kernel, cast(Target, target))


def _messages(kit: KitDocument, kernels: Mapping[str, Kernel], weight: Weight, candidate: Candidate) -> Iterator[str]:
    """What launches the kernels believes these numbers about what they read and write."""
    _, width = padded(weight)
    columns, planes, half = candidate["columns"], candidate["planes"], weight["n"] // 2
    if width % columns:
        yield f"{columns} columns are no divisor of the {width} of the weight"
    if (grid := [width // columns, planes, "R/8"]) != candidate["gemm_grid"]:
        yield f"the grid of the linear is {candidate['gemm_grid']}, the tile makes it {grid}"
    for role, function, params, constants in (
        ("gemm", GEMM, GEMM_PARAMS, {"K": weight["k"], "N": weight["n"], "PLANES": planes, "TILE": columns}),
        ("reader", READER, READER_PARAMS, {"I": half, "PLANES": planes, "bias": None}),
    ):
        name = candidate["gemm"] if role == "gemm" else candidate["reader"]
        if (kernel := kernels.get(name)) is None:
            yield f"its {role} {name} is not among the target's kernels"
            continue
        if kernel["function"] != function:
            yield f"its {role} {name} is a {kernel['function']}, it must be a {function}"
        if not _are_params(kernel, params, FLOATS[kit["activation"]]):
            yield f"its {role} {name} takes {kernel['params']}, it must take {[list(pair) for pair in params]}"
        own = kernel["constants"]
        if wrong := {key: own.get(key, "no value") for key in constants if own.get(key, "") != constants[key]}:
            yield f"its {role} {name} is made for {wrong}, it must be for {constants}"
        if role == "reader" and not _covers(candidate["reader_grid"], half, own.get("BLOCK")):
            yield f"the grid of the reader is {candidate['reader_grid']}, for {half} in blocks of {own.get('BLOCK')}"


def _covers(grid: list[Dim], width: int, block: object) -> bool:
    return isinstance(block, int) and block > 0 and grid == [-(-width // block), "R", 1]


def _are_params(kernel: Kernel, params: tuple[tuple[str, str], ...], activation: str) -> bool:
    kinds = {"a": [activation], "w": list(FLOATS.values())}
    return len(kernel["params"]) == len(params) and all(
        name == wanted and kind in kinds.get(role, [role])
        for (name, kind), (wanted, role) in zip(kernel["params"], params, strict=True)
    )


def _damaged(path: Path, findings: list[Finding]) -> IntegrityError:
    unique = list(dict.fromkeys(findings))
    count = "1 finding" if len(unique) == 1 else f"{len(unique)} findings"
    return IntegrityError(
        f"the tuning kit is damaged ({count}):", unique, where=str(path), remedy="copy or make the kit again"
    )
