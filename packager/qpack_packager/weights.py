"""The tensors of a bundle, one module at a time: read from the checkpoint, joined, quantized, packed.

Peak memory is a small multiple of the largest module, never of the model: nothing outlives its turn.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.lowering.modules import Module, Rows
from qpack_packager.quantize import int8, rtn
from qpack_packager.quantize.groups import Quantized
from qpack_packager.quantize.marlin import pack, permute_scales
from qpack_packager.rope_table import rope_table
from qpack_schemas.errors import InputError

_DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@dataclass(frozen=True)
class Made:
    """The arrays of one module, and what its quantization cost if it is quantized."""

    tensors: dict[str, np.ndarray]
    log: dict[str, object] | None


def make(module: Module, checkpoint: Checkpoint) -> Made:
    """The tensors of `module` as the bundle stores them. Raises InputError for NaN and infinity, naming the tensor."""
    if module.form == "rope_table":
        context, _, half = module.shape
        return Made({module.name: rope_table(context, 2 * half, module.theta)}, None)
    if module.form == "dense":
        return Made(_dense(module, checkpoint), None)
    return _quantized(module, checkpoint, _METHODS[module.form])


def _dense(module: Module, checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    (name, stored), *_ = module.tensors.items()
    array = np.zeros(stored.extent(1), _DTYPES[stored.dtype])
    first = 0
    for rows, part in _parts(module, checkpoint):
        if not np.isfinite(part).all():
            raise InputError("holds NaN or infinity", where=rows.tensor, remedy="the checkpoint is damaged")
        array[first : first + len(part)] = part.reshape(-1, *array.shape[1:])
        first += len(part)
    return {name: array}


def _marlin(codes: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes [N, K] and scales [N, K/128] in the Marlin layout, which is that of [K, N]."""
    return pack(np.ascontiguousarray(codes.T)), permute_scales(np.ascontiguousarray(scales.T))


def _as_it_is(codes: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return codes, scales


@dataclass(frozen=True)
class _Method:
    bits: int
    quantize: Callable[[np.ndarray], Quantized]
    zero: np.generic  # the code of a padded weight
    layout: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


_METHODS: Mapping[str, _Method] = {
    "marlin": _Method(4, rtn.quantize, np.uint8(8), _marlin),
    "int8": _Method(8, int8.quantize, np.int8(0), _as_it_is),
}


def _quantized(module: Module, checkpoint: Checkpoint, method: _Method) -> Made:
    """Lines are quantized independently, so the joined sources never exist as floats."""
    n, k = module.padded
    lines = [_quantize(rows, part, k, method) for rows, part in _parts(module, checkpoint)]
    codes = np.full((n, k), method.zero, method.zero.dtype)
    scales = np.zeros((n, lines[0].scales.shape[1]), ml_dtypes.bfloat16)
    codes[: module.shape[0]] = np.concatenate([line.codes for line in lines])
    scales[: module.shape[0]] = np.concatenate([line.scales for line in lines])
    stored = method.layout(codes, scales)
    log: dict[str, object] = {
        "module": module.name,
        "method": "rtn",
        "bits": method.bits,
        "shape": list(module.shape),
        "padded": [n, k],
        "sources": [
            {"tensor": rows.tensor, "part": rows.part, "relative_rms_error": line.relative_rms_error}
            for rows, line in zip(module.sources, lines, strict=True)
        ],
    }
    return Made(dict(zip((f"{module.name}.q", f"{module.name}.scale"), stored, strict=True)), log)


def _quantize(rows: Rows, part: np.ndarray, k: int, method: _Method) -> Quantized:
    if part.shape[1] < k:
        part = np.pad(part, ((0, 0), (0, k - part.shape[1])))
    try:
        return method.quantize(part)
    except ValueError as error:
        raise InputError(str(error), where=rows.tensor, remedy="the checkpoint is damaged") from None


def _parts(module: Module, checkpoint: Checkpoint) -> Iterator[tuple[Rows, np.ndarray]]:
    """Each source's lines; of Qwen3.5's q_proj, [heads, 2, head_dim] lines, the half that is asked for."""
    for rows in module.sources:
        array = checkpoint.load(rows.tensor)
        if rows.part:
            heads = array.reshape(checkpoint.config.attention_heads, 2, checkpoint.config.head_dim, *array.shape[1:])
            array = heads[:, int(rows.part == "gate")].reshape(-1, *array.shape[1:])
        yield rows, array
