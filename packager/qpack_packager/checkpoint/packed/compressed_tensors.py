"""compressed-tensors checkpoints in its format "pack-quantized": eight codes of neighbouring columns in a word.

weight_packed int32 [N, ceil(K/8)], weight_scale [N, G] (or one for all), weight_shape int64 [N, K] and, of asymmetric
weights, weight_zero_point int32 [ceil(N/8), G]; lowest bits first. Codes and zeros are stored with 8 added to them,
so that what is stored is what a bundle calls code and zero: weight = (code - zero) * scale. A zero for all is an int8,
stored as it is. weight_g_idx int32 [K], which older versions write, is the group of each column. Codes of 8 bits, four
in a word, are stored in the same way: int8_weight.py reads them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from qpack_packager.checkpoint.json_object import JsonObject
from qpack_packager.checkpoint.packed.groups import bundle_groups, even_groups, is_one, listed_groups, of_lines
from qpack_packager.checkpoint.packed.int8_weight import Int8Weight
from qpack_packager.checkpoint.packed.nibbles import by_bytes, by_shifts
from qpack_packager.checkpoint.packed.packed_weight import SYMMETRIC, PackedWeight, Symmetry, expect_scales
from qpack_packager.checkpoint.packed.scheme import config_groups, group_sizes, refuse_setting, weight_groups
from qpack_packager.checkpoint.source_tensor import SourceTensor
from qpack_schemas.errors import InputError, UnsupportedError

BITS = (4, 8)
FORMATS = ("pack-quantized", "float-quantized", "mixed-precision")


class CompressedTensors:
    """Reads weights as config.json's quantization_config describes them. Raises UnsupportedError for other formats,
    and for transforms, which activations would have to go through as well."""

    def __init__(self, settings: JsonObject):
        self.settings = settings
        integers = [weights for weights in weight_groups(settings) if weights.string("type") in (None, "int")]
        self.weights = {
            bits: [weights for weights in integers if weights.value.get("num_bits") == bits] for bits in BITS
        }
        for level in (settings, *config_groups(settings)):
            if (level.string("format") or FORMATS[0]) not in FORMATS:
                refuse_setting(level, "format", f"only {' and '.join(FORMATS[:2])} are read")
        if settings.value.get("transform_config"):
            refuse_setting(settings, "transform_config", "activations would have to be transformed as well")
        sparsity = settings.object("sparsity_config")
        if sparsity and sparsity.string("format") != "dense":
            refuse_setting(sparsity, "format", "sparse weights are not read")

    def read(self, parts: Mapping[str, SourceTensor]) -> "CompressedWeight | Int8Weight":
        words, scales, zeros = parts["weight_packed"], parts["weight_scale"], parts.get("weight_zero_point")
        lines, columns = self._shape(parts)
        bits = self._bits(words, lines, columns)
        words.expect(words.shape, "int32")
        count = scales.shape[1] if len(scales.shape) == 2 else 1
        self._refuse_blocks(scales, lines, bits)
        expect_scales(scales, scales.shape if is_one(scales) else (lines, count))
        if zeros and is_one(scales) and zeros.dtype == "int8":
            _expect_zero(zeros, bits)
        elif zeros:
            zeros.expect((-(-lines * bits // 32), count), "int32")
        if index := parts.get("weight_g_idx"):
            groups = listed_groups(index, columns, count)
        else:
            sizes = {size for weights in self.weights[bits] for size in group_sizes(weights) or {-1}}
            groups = even_groups(columns, scales, count, sizes, self.settings.at("config_groups"))
        shape, symmetry = (lines, columns), self._symmetry(zeros, words, bits)
        if bits == 8:
            return Int8Weight("compressed-tensors", words, scales, zeros, shape, groups, symmetry)
        firsts = bundle_groups(groups, words)
        return CompressedWeight("compressed-tensors", words, scales, zeros, shape, groups, firsts, symmetry)

    def _shape(self, parts: Mapping[str, SourceTensor]) -> tuple[int, int]:
        shape = parts["weight_shape"]
        shape.expect((2,), "int64", "int32")
        lines, columns = (int(size) for size in shape.read())
        if lines != parts["weight_packed"].shape[0] or columns < 1:
            raise InputError(
                f"says [{lines}, {columns}]; {parts['weight_packed'].source_name!r} has "
                f"{parts['weight_packed'].shape[0]} lines",
                where=shape.where,
                remedy="the checkpoint is damaged; download it again",
            )
        return lines, columns

    def _bits(self, words: SourceTensor, lines: int, columns: int) -> int:
        """Of a code, as the shape of the words tells it. Raises UnsupportedError for what is not read, InputError for
        what config.json does not describe."""
        found = next((bits for bits in BITS if words.shape == (lines, -(-columns * bits // 32))), None)
        if found is None:
            raise UnsupportedError(
                f"has shape {list(words.shape)}: {32 * words.shape[-1] / columns:g} bits for each of {columns} "
                f"columns; only {' and '.join(map(str, BITS))} are read",
                where=words.where,
                remedy="build from the unquantized checkpoint",
            )
        if not self.weights[found]:
            raise InputError(
                f"has {found} bits for each of {columns} columns; {self.settings.at('config_groups')} describes no "
                "integers of so many",
                where=words.where,
                remedy="take config.json and weights from the same download",
            )
        return found

    def _refuse_blocks(self, scales: SourceTensor, lines: int, bits: int) -> None:
        """Several lines that share scales of several columns."""
        for weights in self.weights[bits]:
            if weights.string("strategy") == "block" and not is_one(scales) and scales.shape[:1] != (lines,):
                refuse_setting(weights, "strategy", "of codes only tensor, channel and group are read")

    def _symmetry(self, zeros: SourceTensor | None, words: SourceTensor, bits: int) -> Symmetry:
        """Raises InputError if all that config.json describes is symmetric and the weight is not, or the reverse."""
        declared = {weights.flag("symmetric") is not False for weights in self.weights[bits]}
        if declared == {False} and zeros is None:
            raise InputError(
                f"{words.source_name!r} has no zeros; config.json says that all int{bits} weights are asymmetric",
                where=self.settings.at("config_groups"),
                remedy="take config.json and weights from the same download",
            )
        return Symmetry(declared == {True}, self.settings.at("config_groups"))


def _expect_zero(zeros: SourceTensor, bits: int) -> None:
    """One for the whole weight, which the library does not pack."""
    zeros.expect(zeros.shape if is_one(zeros) else (1,), "int8")
    half, zero = 1 << (bits - 1), int(zeros.read().reshape(()))
    if not -half <= zero < half:
        raise InputError(
            f"is {zero}; with {bits} bits a zero is {-half} to {half - 1}",
            where=zeros.where,
            remedy="the checkpoint is damaged; download it again",
        )


@dataclass(frozen=True, eq=False)
class CompressedWeight(PackedWeight):
    def read_codes(self, first: int, last: int) -> np.ndarray:
        return by_shifts(self.words.lines(first, last))[:, : self.shape[1]]

    def read_zeros(self, first: int, last: int) -> np.ndarray:
        if (one := self._one_zero(first, last)) is not None:
            return one
        return by_shifts(np.ascontiguousarray(self._zero_words(first, last).T)).T[first % 8 :][: last - first]

    def read_scales(self, first: int, last: int) -> np.ndarray:
        return of_lines(self.scales, first, last)

    def read_differently(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray | None]:
        codes = by_bytes(self.words.lines(first, last))[:, : self.shape[1]]
        if self.zeros is None:
            return codes, None
        if (one := self._one_zero(first, last)) is not None:
            return codes, one
        words = self._zero_words(first, last)
        zeros = by_bytes(words).reshape(*words.shape, 8).transpose(0, 2, 1).reshape(-1, words.shape[1])
        return codes, zeros[first % 8 :][: last - first]

    def _one_zero(self, first: int, last: int) -> np.ndarray | None:
        """uint8 [last - first, 1] if the weight has one zero for all, which is not packed."""
        assert self.zeros is not None
        if self.zeros.dtype != "int8":
            return None
        return (of_lines(self.zeros, first, last) + np.int8(SYMMETRIC)).view(np.uint8)

    def _zero_words(self, first: int, last: int) -> np.ndarray:
        assert self.zeros is not None
        return self.zeros.lines(first // 8, -(-last // 8))
