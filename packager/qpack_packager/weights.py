"""The tensors of a bundle, one module at a time: read from the checkpoint, joined, quantized, packed.

Peak memory is a small multiple of the largest module, never of the model: nothing outlives its turn.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.lowering.modules import Module, Rows
from qpack_packager.quantize.marlin import pack, permute_scales
from qpack_packager.quantize.rtn import Quantized, quantize
from qpack_packager.rope_table import rope_table
from qpack_schemas.errors import InputError

_DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@dataclass(frozen=True)
class Made:
    """The arrays of one module, and for int4 what the quantization cost."""

    tensors: dict[str, np.ndarray]
    log: dict[str, object] | None


def make(module: Module, checkpoint: Checkpoint) -> Made:
    """The tensors of `module` as the bundle stores them. Raises InputError for NaN and infinity, naming the tensor."""
    if module.form == "rope_table":
        context, _, half = module.shape
        return Made({module.name: rope_table(context, 2 * half, module.theta)}, None)
    return _marlin(module, checkpoint) if module.form == "marlin" else Made(_dense(module, checkpoint), None)


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


def _marlin(module: Module, checkpoint: Checkpoint) -> Made:
    """Lines are quantized independently, so the joined sources never exist as floats."""
    n, k = module.padded
    lines = [_quantize(rows, part, k) for rows, part in _parts(module, checkpoint)]
    codes, scales = np.full((n, k), 8, np.uint8), np.zeros((n, lines[0].scales.shape[1]), ml_dtypes.bfloat16)
    codes[: module.shape[0]] = np.concatenate([line.codes for line in lines])
    scales[: module.shape[0]] = np.concatenate([line.scales for line in lines])
    tensors = {
        f"{module.name}.q": pack(np.ascontiguousarray(codes.T)),
        f"{module.name}.scale": permute_scales(np.ascontiguousarray(scales.T)),
    }
    log: dict[str, object] = {
        "module": module.name,
        "method": "rtn",
        "shape": list(module.shape),
        "padded": [n, k],
        "sources": [
            {"tensor": rows.tensor, "part": rows.part, "relative_rms_error": line.relative_rms_error}
            for rows, line in zip(module.sources, lines, strict=True)
        ],
    }
    return Made(tensors, log)


def _quantize(rows: Rows, part: np.ndarray, k: int) -> Quantized:
    if part.shape[1] < k:
        part = np.pad(part, ((0, 0), (0, k - part.shape[1])))
    try:
        return quantize(part)
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
