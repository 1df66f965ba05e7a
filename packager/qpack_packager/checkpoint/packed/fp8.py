"""Weights in 8-bit floating point: numbers of e4m3 with a scale for each block, line or tensor.

weight float8_e4m3fn [N, K] with weight_scale_inv [ceil(N/128), ceil(K/128)] (DeepSeek's and Qwen's layout; the size of
the blocks is weight_block_size), or with weight_scale as compressed-tensors writes it: one, [N, 1], blocks, or groups,
which are blocks of one line. weight = number * scale, in float32: exact if the scale has at most 20 bits.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from qpack_packager.checkpoint.json_object import JsonObject, shown
from qpack_packager.checkpoint.packed.scheme import group_sizes, weight_groups
from qpack_packager.checkpoint.source_tensor import SourceTensor
from qpack_schemas.errors import InputError

DTYPE = "float8_e4m3fn"
SCALES = ("weight_scale_inv", "weight_scale")
_SCALE_DTYPES = ("float32", "bfloat16", "float16", "float8_e8m0fnu")
_DEFAULT = (128, 128)
# The number that each byte is; a cast of the whole weight takes eight times as long.
_NUMBERS = np.arange(256, dtype=np.uint8).view(DTYPE).astype(np.float32)


class Fp8:
    """Reads weights as config.json's quantization_config describes them."""

    def __init__(self, settings: JsonObject):
        self.settings = settings

    def read(self, parts: Mapping[str, SourceTensor]) -> "Fp8Weight":
        weight = parts["weight"]
        scale = next(parts[name] for name in SCALES if name in parts)
        lines, columns = weight.shape
        weight.expect((lines, columns), DTYPE)
        for block in ((lines, columns), (1, columns), *self._declared()):  # what may share a scale
            if scale.shape in _shapes(-(-lines // block[0]), -(-columns // block[1])):
                scale.expect(scale.shape, *_SCALE_DTYPES)
                return Fp8Weight(weight, scale, block)
        raise InputError(
            f"has shape {list(scale.shape)}, which covers a weight of {[lines, columns]} neither as one scale, nor as "
            f"one a line, nor in blocks of {' or '.join(map(str, map(list, self._declared())))}",
            where=scale.where,
            remedy="take config.json and weights from the same download",
        )

    def _declared(self) -> list[tuple[int, int]]:
        """The sizes of blocks that config.json has."""
        places = [(self.settings, "weight_block_size")]
        places += [(weights, "block_structure") for weights in weight_groups(self.settings)]
        declared = [_block(level, key) for level, key in places if level.value.get(key)]
        declared += [
            (1, size)
            for weights in weight_groups(self.settings)
            if weights.string("type") == "float"
            for size in group_sizes(weights) - {-1}
        ]
        return declared or [_DEFAULT]


def _block(level: JsonObject, key: str) -> tuple[int, int]:
    value = level.value[key]
    if not (isinstance(value, list) and len(value) == 2 and all(type(size) is int and size > 0 for size in value)):
        raise InputError(f"is {shown(value)}, expected two sizes of at least 1", where=level.at(key))
    return value[0], value[1]


def _shapes(height: int, width: int) -> tuple[tuple[int, ...], ...]:
    """As which a tensor of height * width scales may be stored."""
    if width > 1:
        return ((height, width),)
    return ((height, 1), (height,), ()) if height == 1 else ((height, 1), (height,))


@dataclass(frozen=True)
class Fp8Weight:
    """A weight [N, K], whose lines are given as float32; see Tensor."""

    weight: SourceTensor
    scale: SourceTensor
    block: tuple[int, int]  # lines and columns that share a scale

    @property
    def source_name(self) -> str:
        return self.weight.source_name

    @property
    def dtype(self) -> str:
        return "float32"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weight.shape

    def lines(self, first: int, last: int) -> np.ndarray:
        """float32 [last - first, K]."""
        height, width = self.block
        scales = self.scale.read().astype(np.float32).reshape(-(-self.shape[0] // height), -1)
        across = np.repeat(scales[np.arange(first, last) // height], width, axis=1)[:, : self.shape[1]]
        numbers = _NUMBERS.take(self.weight.lines(first, last).view(np.uint8))
        with np.errstate(over="ignore", invalid="ignore"):  # what NaN and infinity make is refused by who asks for it
            numbers *= across
        return numbers
