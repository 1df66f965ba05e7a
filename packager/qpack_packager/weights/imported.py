"""Modules whose sources are int4 already: their codes and scales as they are, in the order of the bundle.

Every weight is read back from what is stored and compared with what the checkpoint's own format makes of it, bit by
bit: an import that changes a weight is no import.
"""

import ml_dtypes
import numpy as np

from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.checkpoint.source_tensor import Codes, PackedTensor
from qpack_packager.lowering.modules import Module, Rows
from qpack_packager.quantize.groups import GROUP
from qpack_packager.quantize.marlin import pack, permute_scales, unpack, unpermute_scales
from qpack_packager.weights.lines import spans
from qpack_schemas.errors import InputError

SYMMETRIC = 8  # the zero that no tensor says
_SCALES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def import_codes(module: Module, checkpoint: Checkpoint) -> tuple[list[np.ndarray], dict[str, object]]:
    """The tensors of an imported module in the order of its layout (words, scales, zeros if it has them), and its line
    of the log. Raises InputError naming a tensor that comes out with other weights than it went in with."""
    n, k = module.padded
    codes = np.full((n, k), SYMMETRIC, np.uint8)
    scales = np.zeros((n, k // GROUP), _SCALES[module.tensors[f"{module.name}.scale"].dtype])
    zeros = np.full((n, k // GROUP), SYMMETRIC, np.int8)
    for rows, begin, end in spans(module):
        part = _codes(checkpoint, rows)
        codes[begin:end, : part.codes.shape[1]] = part.codes
        scales[begin:end] = part.scales
        if part.zeros is not None:
            zeros[begin:end] = part.zeros
    stored = [pack(np.ascontiguousarray(codes.T)), permute_scales(np.ascontiguousarray(scales.T))]
    if f"{module.name}.zero" in module.tensors:
        stored.append(permute_scales(np.ascontiguousarray(zeros.T)))
    for rows, begin, end in spans(module):
        _check(rows, checkpoint, _weights(stored, begin, end)[:, : module.shape[1]])
    return stored, {
        "module": module.name,
        "method": "import",
        "bits": 4,
        "shape": list(module.shape),
        "padded": [n, k],
        "sources": [{"tensor": rows.tensor, "part": rows.part, "relative_rms_error": 0.0} for rows in module.sources],
    }


def packed(checkpoint: Checkpoint, rows: Rows) -> PackedTensor:
    tensor = checkpoint.tensors[rows.tensor]
    assert tensor.dtype == "int4"
    return tensor  # type: ignore[return-value]  # what int4 means, see Tensor


def _codes(checkpoint: Checkpoint, rows: Rows) -> Codes:
    whole = packed(checkpoint, rows).codes()
    if not rows.part:
        return whole
    zeros = None if whole.zeros is None else _half(whole.zeros, checkpoint, rows)
    return Codes(_half(whole.codes, checkpoint, rows), _half(whole.scales, checkpoint, rows), zeros)


def _half(lines: np.ndarray, checkpoint: Checkpoint, rows: Rows) -> np.ndarray:
    config = checkpoint.config
    heads = lines.reshape(config.attention_heads, 2, config.head_dim, -1)
    return heads[:, int(rows.part == "gate")].reshape(-1, lines.shape[1])


def _weights(stored: list[np.ndarray], begin: int, end: int) -> np.ndarray:
    """float32 [end - begin, K'] of what was stored: (code - zero) * scale."""
    codes = unpack(stored[0])[:, begin:end].T.astype(np.float32)
    scales = unpermute_scales(stored[1])[:, begin:end].T.astype(np.float32)
    zeros = np.float32(SYMMETRIC)
    if len(stored) > 2:
        zeros = np.repeat(unpermute_scales(stored[2])[:, begin:end].T.astype(np.float32), GROUP, axis=1)
    return (codes - zeros) * np.repeat(scales, GROUP, axis=1)


def _check(rows: Rows, checkpoint: Checkpoint, ours: np.ndarray) -> None:
    tensor = packed(checkpoint, rows)
    wanted = tensor.lines(0, tensor.shape[0])
    if rows.part:
        wanted = _half(wanted, checkpoint, rows)
    different = ours != wanted  # also where one is NaN; 0 and -0 are one weight
    if different.any():
        line, column = np.argwhere(different)[0]
        raise InputError(
            f"imported, weight [{line}, {column}] is {ours[line, column]}; {tensor.format} makes it "
            f"{wanted[line, column]}; {int(different.sum())} of {different.size} weights differ",
            where=rows.tensor,
            remedy="build from the unquantized checkpoint",
        )
