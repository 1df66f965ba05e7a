"""The safetensors container: 8 bytes little-endian header length, JSON header, tensor bytes.

Format: https://huggingface.co/docs/safetensors. Read strictly (any hole, overlap, excess or lack of bytes is an error),
written deterministically: the library's own writer orders metadata by a random hash and cannot align tensors.
"""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, cast

from qpack_schemas.errors import InputError
from qpack_schemas.strict_json import JsonValue, parse_strict

ALIGNMENT = 256  # bytes; what a GPU's widest load and every SIMD load can rely on
SHARD_BYTES = 32 << 20  # largest data section of a file unless one tensor is larger; an update moves whole files
PAD_PREFIX = "pad."  # names of the filler tensors; safetensors allows no unnamed hole
MAX_HEADER_BYTES = 100_000_000  # the library's own limit

DTYPE_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
CODES = {
    "float32": "F32", "bfloat16": "BF16", "float16": "F16", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8",
}  # fmt: skip


@dataclass(frozen=True)
class TensorSpan:
    """One tensor of a file: `begin` is an absolute byte offset in the file."""

    dtype: str  # safetensors' code: F32, BF16, ...
    shape: tuple[int, ...]
    begin: int
    bytes: int


def read_spans(path: Path) -> dict[str, TensorSpan]:
    """Tensor name -> span, in file order. Raises InputError if the file is not exactly what its header says."""
    where = str(path)
    raw, size = _read_header(path)
    try:
        header = parse_strict(raw.decode("utf-8"), where)
    except UnicodeDecodeError:
        raise InputError("its header is not UTF-8, so this is no safetensors file", where=where) from None
    if not isinstance(header, dict):
        raise InputError("its header is not a JSON object", where=where)
    base = 8 + len(raw)
    entries = cast(dict[str, JsonValue], header).items()
    spans = {name: _span(name, entry, base, where) for name, entry in entries if name != "__metadata__"}
    spans = dict(sorted(spans.items(), key=lambda item: (item[1].begin, item[1].bytes)))
    place = base
    for name, span in spans.items():
        if span.begin != place:
            raise InputError(
                f"tensor {name!r} begins at byte {span.begin}, the one before ends at {place}", where=where
            )
        place += span.bytes
    if place != size:
        _refuse_size(where, size, expected=place)
    return spans


def _read_header(path: Path) -> tuple[bytes, int]:
    """The JSON header and the size of the file in bytes."""
    where, size = str(path), path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        if head.startswith(b"version "):
            raise InputError(
                "this is a Git LFS pointer, not the tensors", where=where, remedy="run `git lfs pull` in its repository"
            )
        if len(head) < 8:
            _refuse_size(where, size, expected=8)
        (length,) = struct.unpack("<Q", head)
        if not 2 <= length <= MAX_HEADER_BYTES:
            raise InputError(
                f"is no safetensors file: its first 8 bytes ({head.hex(' ')}) would be a header of {length} bytes",
                where=where,
                remedy="download it again",
            )
        if 8 + length > size:
            _refuse_size(where, size, expected=8 + length)
        return file.read(length), size


def _refuse_size(where: str, size: int, expected: int) -> NoReturn:
    if size < expected:
        message = f"truncated: {expected - size} bytes are missing"
    else:
        message = f"{size - expected} trailing bytes"
    raise InputError(
        f"{message} (its header asks for {expected} bytes, the file has {size})",
        where=where,
        remedy="download it again",
    )


def _span(name: str, entry: JsonValue, base: int, where: str) -> TensorSpan:
    malformed = InputError(f"header entry of tensor {name!r} is malformed: {json.dumps(entry)[:200]}", where=where)
    try:
        dtype: str = entry["dtype"]
        shape: tuple[int, ...] = tuple(entry["shape"])
        begin, end = entry["data_offsets"]
        bits = DTYPE_BITS.get(dtype)
    except (KeyError, TypeError, ValueError):
        raise malformed from None
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
        raise malformed
    if bits is None:
        raise InputError(f"tensor {name!r} has the unknown dtype {dtype!r}", where=where)
    bits *= math.prod(shape)
    if (end - begin) * 8 != bits:
        raise InputError(
            f"tensor {name!r}: {dtype} {list(shape)} takes {bits / 8:.15g} bytes, its offsets span {end - begin}",
            where=where,
        )
    return TensorSpan(dtype, shape, base + begin, end - begin)


@dataclass(frozen=True)
class TensorFilePlan:
    """The layout of a file before any byte of it exists: header, then tensors and pads in this order."""

    header: bytes  # with the length prefix; a multiple of ALIGNMENT, so offsets in the file are aligned as well
    spans: Mapping[str, TensorSpan]  # pads included, in file order


def plan_file(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> TensorFilePlan:
    """Lays out `name -> (dtype as in CODES, shape)` in the given order, every tensor on an ALIGNMENT boundary."""
    entries: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
    place = 0
    for index, (name, (dtype, shape)) in enumerate(tensors.items()):
        code = CODES[dtype]
        size = DTYPE_BITS[code] // 8 * math.prod(shape)
        entries[name] = code, shape, place, size
        place += size
        if gap := -place % ALIGNMENT:
            entries[f"{PAD_PREFIX}{index}"] = "U8", (gap,), place, gap
            place += gap
    document = {
        name: {"dtype": code, "shape": list(shape), "data_offsets": [begin, begin + size]}
        for name, (code, shape, begin, size) in entries.items()
    }
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    base = 8 + len(text)
    spans = {name: TensorSpan(code, shape, base + begin, size) for name, (code, shape, begin, size) in entries.items()}
    return TensorFilePlan(struct.pack("<Q", len(text)) + text, spans)
