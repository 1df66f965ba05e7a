"""GPTQ checkpoints, as AutoGPTQ and GPTQModel write them: eight codes of neighbouring columns in a word.

qweight int32 [K/8, N], scales [G, N], qzeros int32 [G, N/8], lowest bits first; g_idx int32 [K] is the group of each
column. weight = (code - zero) * scale. `checkpoint_format` "gptq_v2" stores the zeros as they are; "gptq", version 1,
stores zero - 1. What a stored 15 means in version 1 its readers disagree about, so it is refused: exllama's kernels
take it as 16, AutoGPTQ's torch code as 0, and GPTQModel adds 1 to the whole word, which carries into the next zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from qpack_packager.checkpoint.json_object import JsonObject
from qpack_packager.checkpoint.packed.groups import bundle_groups, even_groups, listed_groups
from qpack_packager.checkpoint.packed.nibbles import by_bytes, by_shifts
from qpack_packager.checkpoint.packed.packed_weight import PackedWeight, Symmetry, expect_scales
from qpack_packager.checkpoint.packed.scheme import group_sizes, refuse_setting
from qpack_packager.checkpoint.source_tensor import SourceTensor
from qpack_schemas.errors import InputError, UnsupportedError

BITS = 4
_ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}  # by checkpoint_format: what is missing in a stored zero


class Gptq:
    """Reads weights as config.json's quantization_config describes them. Raises UnsupportedError for other formats."""

    def __init__(self, settings: JsonObject):
        self.settings = settings
        self.mixed = bool(settings.value.get("dynamic"))  # other bits for some modules; their tensors say so
        key = "checkpoint_format" if "checkpoint_format" in settings.value else "format"
        self.layout = settings.string(key) or "gptq"
        if self.layout not in _ZERO_OFFSETS:
            refuse_setting(settings, key, f"only {' and '.join(_ZERO_OFFSETS)} are read")
        bits = settings.integer("bits", BITS)
        if bits != BITS and not self.mixed:
            refuse_setting(settings, "bits", f"only {BITS} are read")
        if settings.value.get("rotation"):
            refuse_setting(settings, "rotation", "activations would have to be rotated as well")

    def read(self, parts: Mapping[str, SourceTensor]) -> "GptqWeight":
        """A weight whose codes lie along its columns. Its parts are qweight, scales, qzeros and perhaps g_idx."""
        words, scales, zeros = parts["qweight"], parts["scales"], parts["qzeros"]
        (height, lines), (count, _) = words.shape, scales.shape
        self._check_bits(zeros, lines)
        columns = 8 * height
        words.expect((height, lines), "int32")
        expect_scales(scales, (count, lines))
        zeros.expect((count, lines // 8), "int32")
        groups = self._groups(parts, columns, count)
        symmetry = Symmetry(self.settings.flag("sym"), self.settings.at("sym"))
        return GptqWeight(
            "gptq", words, scales, zeros, (lines, columns), groups, bundle_groups(groups, words), symmetry,
            _ZERO_OFFSETS[self.layout],
        )  # fmt: skip

    def _check_bits(self, zeros: SourceTensor, lines: int) -> None:
        bits = 32 * zeros.shape[1] // lines
        if bits != BITS:
            raise UnsupportedError(
                f"has room for zeros of {bits} bits; only {BITS} are read",
                where=zeros.where,
                remedy="build from the unquantized checkpoint; qpack's own int8 is asked for by a rule",
            )

    def _groups(self, parts: Mapping[str, SourceTensor], columns: int, count: int) -> np.ndarray:
        if index := parts.get("g_idx"):
            return listed_groups(index, columns, count)
        if self.settings.flag("desc_act") and count > 1:
            raise InputError(
                f"desc_act is true, so that columns are in groups of any order, but {parts['qweight'].source_name!r} "
                "comes without a g_idx that says in which",
                where=self.settings.at("desc_act"),
                remedy="take config.json and weights from the same download",
            )
        return even_groups(columns, parts["scales"], count, group_sizes(self.settings), self.settings.at("group_size"))


@dataclass(frozen=True, eq=False)
class GptqWeight(PackedWeight):
    offset: int  # what is missing in a stored zero

    def read_codes(self, first: int, last: int) -> np.ndarray:
        return by_shifts(np.ascontiguousarray(self.words.columns(first, last).T))

    def read_zeros(self, first: int, last: int) -> np.ndarray:
        zeros = by_shifts(self._zero_words(first, last)).T[first % 8 :][: last - first]
        wrong = np.argwhere(zeros + self.offset > 15)
        if len(wrong):
            assert self.zeros is not None
            line, group = wrong[0]
            raise UnsupportedError(
                f"the zero of line {first + line}, group {group} is stored as 15. The format stores zero - 1, and a 15 "
                "is read as 16, as 0, or as an overflow into the next zero, depending on who reads it",
                where=self.zeros.where,
                remedy="save it with checkpoint_format gptq_v2, or build from the unquantized checkpoint",
            )
        return zeros + np.uint8(self.offset)

    def read_scales(self, first: int, last: int) -> np.ndarray:
        return self.scales.columns(first, last).T

    def read_differently(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        lines = last - first
        codes = by_bytes(self.words.columns(first, last)).view(np.uint64)  # the eight of each word
        zeros = by_bytes(self._zero_words(first, last))[:, first % 8 : first % 8 + lines] + self.offset
        return np.ascontiguousarray(codes.T).view(np.uint8), zeros.T

    def _zero_words(self, first: int, last: int) -> np.ndarray:
        assert self.zeros is not None
        return self.zeros.columns(first // 8, -(-last // 8))
