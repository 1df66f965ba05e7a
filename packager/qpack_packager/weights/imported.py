"""Modules whose sources are int4 already: their codes and scales as they are, in the order of the bundle.

Every weight is read back from what is stored and compared with what the checkpoint's own format makes of it, bit by
bit: an import that changes a weight is no import.
"""

from collections.abc import Iterator

import numpy as np

from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.checkpoint.packed.packed_weight import SYMMETRIC
from qpack_packager.checkpoint.source_tensor import Codes, PackedTensor, as_packed
from qpack_packager.lowering.modules import Module, Rows
from qpack_packager.quantize.groups import GROUP
from qpack_packager.quantize.marlin import pack, permute_scales, unpack, unpermute_scales
from qpack_packager.weights.lines import read_lines, spans
from qpack_schemas.errors import InputError


def import_lines(module: Module, checkpoint: Checkpoint, first: int, last: int) -> list[np.ndarray]:
    """Lines `first` to `last` of an imported module, whole tiles, as its tensors hold them along their second axis, in
    the order of its layout: words, scales, zeros if it has them. Raises InputError naming a tensor that comes out with
    other weights than it went in with, or whose scales are not numbers."""
    lines = _codes(module, checkpoint, first, last)
    block = [pack(lines.codes.T), permute_scales(np.ascontiguousarray(lines.scales.T))]
    if lines.zeros is not None:
        block.append(permute_scales(np.ascontiguousarray(lines.zeros.T)))
    _check(module, checkpoint, first, block)
    return block


def import_log(module: Module) -> dict[str, object]:
    """The line of the log of an imported module."""
    return {
        "module": module.name,
        "method": "import",
        "bits": 4,
        "shape": list(module.shape),
        "padded": list(module.padded),
        "sources": [{"tensor": rows.tensor, "part": rows.part, "relative_rms_error": 0.0} for rows in module.sources],
    }


def _packed(checkpoint: Checkpoint, rows: Rows) -> PackedTensor:
    packed = as_packed(checkpoint.tensors[rows.tensor])
    assert packed  # lowering joins them only with each other
    return packed


def _codes(module: Module, checkpoint: Checkpoint, first: int, last: int) -> Codes:
    """Lines of the joined sources, padded to [last - first, K'] such that padding is 0."""
    _, k = module.padded
    codes = np.full((last - first, k), SYMMETRIC, np.uint8)
    scales = np.zeros((last - first, k // GROUP), module.tensors[f"{module.name}.scale"].dtype)
    zeros = np.full((last - first, k // GROUP), SYMMETRIC, np.int8)
    for rows, begin, end in spans(module):
        low, high = max(first, begin), min(last, end)
        at = low - first
        for part in _read(rows, checkpoint, low - begin, high - begin):
            lines = slice(at, at + len(part.codes))
            codes[lines, : module.shape[1]], scales[lines] = part.codes, part.scales
            if part.zeros is not None:
                zeros[lines] = part.zeros
            at = lines.stop
    codes[:, module.shape[1] :] = zeros[:, -1:]
    return Codes(codes, scales, zeros if f"{module.name}.zero" in module.tensors else None)


def _read(rows: Rows, checkpoint: Checkpoint, first: int, last: int) -> Iterator[Codes]:
    """Lines of one source, in pieces that follow each other in its tensor: [heads, 2, head_dim] lines if it is a half
    of Qwen3.5's q_proj."""
    tensor, size = _packed(checkpoint, rows), checkpoint.config.head_dim
    while first < last:
        begin, count = first, last - first
        if rows.part:
            head, within = divmod(first, size)
            begin, count = (2 * head + int(rows.part == "gate")) * size + within, min(count, size - within)
        codes = tensor.codes(begin, begin + count)
        wrong = np.argwhere(~np.isfinite(codes.scales))
        if len(wrong):
            line, group = wrong[0]
            raise InputError(
                f"the scale of line {begin + line}, columns {group * GROUP} and on, is {codes.scales[line, group]}",
                where=rows.tensor,
                remedy="the checkpoint is damaged",
            )
        yield codes
        first += count


def _check(module: Module, checkpoint: Checkpoint, first: int, block: list[np.ndarray]) -> None:
    """Compares lines as they are to be stored, from `first` on, with what their formats make of them."""
    ours = _weights(block)
    wanted = read_lines(module, checkpoint, first, first + len(ours))
    different = ~(ours == wanted)  # also where one is NaN; 0 and -0 are one weight
    for wrong, what in ((different, "differ"), (~np.isfinite(wanted), "are infinite")):
        if wrong.any():
            line, column = np.argwhere(wrong)[0]
            rows, begin = [(rows, begin) for rows, begin, _ in spans(module) if begin <= first + line][-1]
            raise InputError(
                f"imported, weight [{first + line - begin}, {column}] is {ours[line, column]}; "
                f"{_packed(checkpoint, rows).format} makes it {wanted[line, column]}; {int(wrong.sum())} of "
                f"{wrong.size} weights {what}",
                where=f"{rows.tensor}#{rows.part}".removesuffix("#"),
                remedy="build from the unquantized checkpoint",
            )


def _weights(block: list[np.ndarray]) -> np.ndarray:
    """float32 [n, K'] of what is stored: (code - zero) * scale."""
    codes = np.ascontiguousarray(unpack(block[0]).T)
    groups = codes.reshape(len(codes), -1, GROUP).astype(np.float32)
    groups -= _per_line(block[2]) if len(block) > 2 else np.float32(SYMMETRIC)
    with np.errstate(over="ignore"):  # refused
        groups *= _per_line(block[1])
    return groups.reshape(codes.shape)


def _per_line(stored: np.ndarray) -> np.ndarray:
    """Scales or zeros as they are stored -> float32 [n, G, 1]."""
    return np.ascontiguousarray(unpermute_scales(stored).T, np.float32)[..., None]
