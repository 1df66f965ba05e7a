"""AWQ checkpoints in AutoAWQ's layout "gemm": eight codes of neighbouring lines in a word, in an order of their own.

qweight int32 [K, N/8], scales [G, N], qzeros int32 [G, N/8] in the same order. weight = (code - zero) * scale, and
the G groups of columns are of one size.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from qpack_packager.checkpoint.json_object import JsonObject
from qpack_packager.checkpoint.packed.groups import bundle_groups, even_groups
from qpack_packager.checkpoint.packed.nibbles import by_bytes, by_shifts
from qpack_packager.checkpoint.packed.packed_weight import PackedWeight, Symmetry, expect_scales
from qpack_packager.checkpoint.packed.scheme import group_sizes, refuse_setting
from qpack_packager.checkpoint.source_tensor import SourceTensor
from qpack_schemas.errors import InputError

BITS = 4
WRITTEN = (0, 2, 4, 6, 1, 3, 5, 7)  # the line, of eight, whose code is in each four bits
READ = (0, 4, 1, 5, 2, 6, 3, 7)  # the four bits in which the code of each line is


class Awq:
    """Reads weights as config.json's quantization_config describes them. Raises UnsupportedError for other layouts."""

    def __init__(self, settings: JsonObject):
        self.settings = settings
        key = next((key for key in ("version", "checkpoint_format", "format") if key in settings.value), "version")
        if (settings.string(key) or "gemm").lower() != "gemm":
            refuse_setting(settings, key, "only the layout gemm is read")
        for key in ("bits", "w_bit"):
            if settings.integer(key, BITS) != BITS:
                refuse_setting(settings, key, f"only {BITS} are read")

    def read(self, parts: Mapping[str, SourceTensor]) -> "AwqWeight":
        """Its parts are qweight, scales and, unless zero_point is false, qzeros. Raises InputError without them."""
        words, scales, zeros = parts["qweight"], parts["scales"], parts.get("qzeros")
        (columns, width), (count, lines) = words.shape, scales.shape
        words.expect((columns, width), "int32")
        expect_scales(scales, (count, lines))
        asymmetric = self.settings.flag("zero_point")
        if zeros:
            zeros.expect((count, width), "int32")
        elif asymmetric is not False:
            raise InputError(
                "comes without qzeros, which every weight has unless zero_point is false; "
                f"{self.settings.at('zero_point')} is {'absent' if asymmetric is None else 'true'}",
                where=words.where,
                remedy="a file is incomplete; download the checkpoint again",
            )
        key = "q_group_size" if "q_group_size" in self.settings.value else "group_size"
        groups = even_groups(columns, scales, count, group_sizes(self.settings, key), self.settings.at(key))
        symmetry = Symmetry(None if asymmetric is None else not asymmetric, self.settings.at("zero_point"))
        return AwqWeight("awq", words, scales, zeros, (lines, columns), groups, bundle_groups(groups, words), symmetry)


@dataclass(frozen=True, eq=False)
class AwqWeight(PackedWeight):
    def read_codes(self, first: int, last: int) -> np.ndarray:
        return _lines(by_shifts(_words(self.words, first, last), WRITTEN, axis=0), first, last)

    def read_zeros(self, first: int, last: int) -> np.ndarray:
        assert self.zeros is not None
        return _lines(by_shifts(_words(self.zeros, first, last), WRITTEN, axis=0), first, last)

    def read_scales(self, first: int, last: int) -> np.ndarray:
        return self.scales.columns(first, last).T

    def read_differently(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray | None]:
        codes, zeros = (
            None if tensor is None else _lines(by_bytes(_words(tensor, first, last), READ, axis=0), first, last)
            for tensor in (self.words, self.zeros)
        )
        assert codes is not None
        return codes, zeros


def _words(tensor: SourceTensor, first: int, last: int) -> np.ndarray:
    """int32 [words, rows]: those that hold lines `first` to `last`. Bytes would be turned into lines at a tenth of the
    speed."""
    return np.ascontiguousarray(tensor.columns(first // 8, -(-last // 8)).T)


def _lines(codes: np.ndarray, first: int, last: int) -> np.ndarray:
    """[8 * words, rows] -> [last - first, rows]."""
    return codes[first % 8 :][: last - first]
