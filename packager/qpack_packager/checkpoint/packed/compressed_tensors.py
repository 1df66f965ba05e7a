"""compressed-tensors checkpoints in its format "pack-quantized": eight codes of neighbouring columns in a word.

weight_packed int32 [N, ceil(K/8)], weight_scale [N, G] (or one for all), weight_shape int64 [N, K] and, of asymmetric
weights, weight_zero_point int32 [ceil(N/8), G]; lowest bits first. Codes and zeros are stored with 8 added to them,
so that what is stored is what a bundle calls code and zero: weight = (code - zero) * scale. weight_g_idx int32 [K],
which older versions write, is the group of each column.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from qpack_packager.checkpoint.json_object import JsonObject
from qpack_packager.checkpoint.packed.groups import bundle_groups, even_groups, listed_groups
from qpack_packager.checkpoint.packed.nibbles import by_bytes, by_shifts
from qpack_packager.checkpoint.packed.packed_weight import SCALE_DTYPES, PackedWeight, Symmetry
from qpack_packager.checkpoint.packed.scheme import config_groups, group_sizes, refuse_setting, weight_groups
from qpack_packager.checkpoint.source_tensor import SourceTensor
from qpack_schemas.errors import InputError, UnsupportedError

BITS = 4
FORMATS = ("pack-quantized", "float-quantized", "mixed-precision")


class CompressedTensors:
    """Reads weights as config.json's quantization_config describes them. Raises UnsupportedError for other formats,
    and for transforms, which activations would have to go through as well."""

    def __init__(self, settings: JsonObject):
        self.settings = settings
        self.weights = [weights for weights in weight_groups(settings) if weights.value.get("num_bits") == BITS]
        for level in (settings, *config_groups(settings)):
            if (level.string("format") or FORMATS[0]) not in FORMATS:
                refuse_setting(level, "format", f"only {' and '.join(FORMATS[:2])} are read")
        if settings.value.get("transform_config"):
            refuse_setting(settings, "transform_config", "activations would have to be transformed as well")
        sparsity = settings.object("sparsity_config")
        if sparsity and sparsity.string("format") != "dense":
            refuse_setting(sparsity, "format", "sparse weights are not read")

    def read(self, parts: Mapping[str, SourceTensor]) -> "CompressedWeight":
        words, scales, zeros = parts["weight_packed"], parts["weight_scale"], parts.get("weight_zero_point")
        lines, columns = self._shape(parts)
        if words.shape != (lines, -(-columns // 8)):
            raise UnsupportedError(
                f"has shape {list(words.shape)}: {32 * words.shape[-1] / columns:g} bits for each of {columns} "
                f"columns; only {BITS} are read",
                where=words.where,
                remedy="build from the unquantized checkpoint; qpack's own int8 is asked for by a rule",
            )
        words.expect(words.shape, "int32")
        count = scales.shape[1] if len(scales.shape) == 2 else 1
        scales.expect(scales.shape if _is_one(scales) else (lines, count), *SCALE_DTYPES)
        if zeros:
            zeros.expect((-(-lines // 8), count), "int32")
        if index := parts.get("weight_g_idx"):
            groups = listed_groups(index, columns, count)
        else:
            sizes = {size for weights in self.weights for size in group_sizes(weights) or {-1}}
            groups = even_groups(columns, scales, count, sizes, self.settings.at("config_groups"))
        return CompressedWeight(
            "compressed-tensors", words, scales, zeros, (lines, columns), groups, bundle_groups(groups, words),
            self._symmetry(zeros, words),
        )  # fmt: skip

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

    def _symmetry(self, zeros: SourceTensor | None, words: SourceTensor) -> Symmetry:
        """Raises InputError if all that config.json describes is symmetric and the weight is not, or the reverse."""
        declared = {weights.flag("symmetric") is not False for weights in self.weights}
        if declared == {False} and zeros is None:
            raise InputError(
                f"{words.source_name!r} has no zeros; config.json says that all int4 weights are asymmetric",
                where=self.settings.at("config_groups"),
                remedy="take config.json and weights from the same download",
            )
        return Symmetry(declared == {True}, self.settings.at("config_groups"))


def _is_one(scales: SourceTensor) -> bool:
    """One scale for the whole weight."""
    return scales.shape in ((), (1,), (1, 1))


@dataclass(frozen=True, eq=False)
class CompressedWeight(PackedWeight):
    def read_codes(self, first: int, last: int) -> np.ndarray:
        return by_shifts(self.words.lines(first, last))[:, : self.shape[1]]

    def read_zeros(self, first: int, last: int) -> np.ndarray:
        return by_shifts(np.ascontiguousarray(self._zero_words(first, last).T)).T[first % 8 :][: last - first]

    def read_scales(self, first: int, last: int) -> np.ndarray:
        if _is_one(self.scales):
            return np.broadcast_to(self.scales.read().reshape(1, 1), (last - first, 1))
        return self.scales.lines(first, last).reshape(last - first, -1)

    def read_differently(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray | None]:
        codes = by_bytes(self.words.lines(first, last))[:, : self.shape[1]]
        if self.zeros is None:
            return codes, None
        words = self._zero_words(first, last)
        zeros = by_bytes(words).reshape(*words.shape, 8).transpose(0, 2, 1).reshape(-1, words.shape[1])
        return codes, zeros[first % 8 :][: last - first]

    def _zero_words(self, first: int, last: int) -> np.ndarray:
        assert self.zeros is not None
        return self.zeros.lines(first // 8, -(-last // 8))
