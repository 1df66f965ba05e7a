"""Weights of 8-bit codes, four to a word, as compressed-tensors packs them: numbers again, to be rounded to int8.

words int32 [N, ceil(K/4)], the code of the first column in the lowest bits, stored with 128 added to it. Zeros of
asymmetric weights likewise along N, int32 [ceil(N/4), G], or one int8 for all that is stored as it is.
weight = (code - zero) * scale, exact in float32: a scale has at most 11 bits, the difference of code and zero 9.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from qpack_packager.checkpoint.packed.dequantized import expect_same
from qpack_packager.checkpoint.packed.groups import of_lines
from qpack_packager.checkpoint.packed.packed_weight import Symmetry
from qpack_packager.checkpoint.source_tensor import SourceTensor

SYMMETRIC = 128  # the zero of symmetric weights
_SHIFTS = np.arange(0, 32, 8, dtype=np.uint32)


@dataclass(frozen=True, eq=False)
class Int8Weight:
    """A weight [N, K], whose lines are given as float32; see Tensor."""

    format: str
    words: SourceTensor
    scales: SourceTensor  # float16 or bfloat16 [N, G], or one
    zeros: SourceTensor | None  # None: all are 128
    shape: tuple[int, int]
    groups: np.ndarray  # int64 [K], the group of each column
    symmetry: Symmetry

    @property
    def source_name(self) -> str:
        return self.words.source_name

    @property
    def dtype(self) -> str:
        return "float32"

    def lines(self, first: int, last: int) -> np.ndarray:
        """float32 [last - first, K], made in two ways. Raises InputError if they differ, and for zeros that config.json
        denies."""
        wanted, ours = self._values(by_bytes, first, last), self._values(by_shifts, first, last)
        expect_same(ours, wanted, first, self.format, self.words.where)
        return wanted

    def _values(self, unpack: Callable[[np.ndarray], np.ndarray], first: int, last: int) -> np.ndarray:
        steps = unpack(self.words.lines(first, last))[:, : self.shape[1]].astype(np.float32)
        steps -= np.float32(SYMMETRIC) if self.zeros is None else self._zeros(self.zeros, unpack, first, last)
        with np.errstate(over="ignore", invalid="ignore"):  # what NaN and infinity make is refused by who asks for it
            steps *= of_lines(self.scales, first, last).astype(np.float32)[:, self.groups]
        return steps

    def _zeros(
        self, zeros: SourceTensor, unpack: Callable[[np.ndarray], np.ndarray], first: int, last: int
    ) -> np.ndarray:
        """float32 [last - first, K]."""
        if zeros.dtype == "int8":
            found = of_lines(zeros, first, last).astype(np.int16) + SYMMETRIC
        else:
            words = np.ascontiguousarray(zeros.lines(first // 4, -(-last // 4)).T)
            found = unpack(words).T[first % 4 :][: last - first]
        self.symmetry.broken_by(found, SYMMETRIC, first, zeros.where)
        return found.astype(np.float32)[:, self.groups]


def by_shifts(words: np.ndarray) -> np.ndarray:
    """int32 [R, W] -> uint8 [R, 4 * W]."""
    codes = words.view(np.uint32)[..., None] >> _SHIFTS & np.uint32(255)
    return codes.astype(np.uint8).reshape(len(words), -1)


def by_bytes(words: np.ndarray) -> np.ndarray:
    """The same again."""
    return words.astype("<i4", copy=False).view(np.uint8)
