"""What the int4 formats have in common: codes, scales and zeros of groups of columns."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from qpack_packager.checkpoint.packed.dequantized import expect_same
from qpack_packager.checkpoint.source_tensor import INT4, Codes, SourceTensor
from qpack_packager.quantize.groups import GROUP
from qpack_schemas.errors import InputError, UnsupportedError

SYMMETRIC = 8  # the zero of symmetric weights
SCALE_DTYPES = ("float16", "bfloat16")


def expect_scales(scales: SourceTensor, shape: tuple[int, ...]) -> None:
    """Raises InputError if they have another shape or dtype, UnsupportedError for float32."""
    if scales.dtype == "float32":  # as the libraries write them for a model in float32
        raise UnsupportedError(
            f"is float32; scales are read in {' and '.join(SCALE_DTYPES)}",
            where=scales.where,
            remedy="load the model in bfloat16 or float16 and quantize it again",
        )
    scales.expect(shape, *SCALE_DTYPES)


@dataclass(frozen=True)
class Symmetry:
    """Whether config.json says that weights are symmetric, and where."""

    declared: bool | None
    where: str

    def broken_by(self, zeros: np.ndarray, symmetric: int, first: int, where: str) -> bool:
        """Whether some of the zeros [n, G] of lines `first` and on is not `symmetric`. Raises InputError if
        config.json says that all are. `where`: the tensor that has them."""
        other = np.argwhere(zeros != symmetric)
        if len(other) and self.declared:
            line, group = other[0]
            raise InputError(
                f"the zero of line {first + line}, group {group} is {zeros[line, group]}; {self.where} says that the "
                f"weights are symmetric, which makes it {symmetric}",
                where=where,
                remedy="take config.json and weights from the same download",
            )
        return bool(len(other))


@dataclass(frozen=True, eq=False)
class PackedWeight(ABC):
    """An int4 weight [N, K] in the tensors of its checkpoint; see PackedTensor."""

    format: str
    words: SourceTensor  # the codes, eight in an int32
    scales: SourceTensor
    zeros: SourceTensor | None  # None: all are 8
    shape: tuple[int, int]
    groups: np.ndarray  # int64 [K], the group of each column
    firsts: np.ndarray  # int64 [ceil(K / 128)], the group of each 128 columns
    symmetry: Symmetry

    @property
    def source_name(self) -> str:
        return self.words.source_name

    @property
    def dtype(self) -> str:
        return INT4

    @property
    def scale_dtype(self) -> str:
        return self.scales.dtype

    @cached_property
    def asymmetric(self) -> bool:
        """Whether some zero is not 8. Raises InputError if config.json denies it."""
        if self.zeros is None:
            return False
        return self.symmetry.broken_by(self.read_zeros(0, self.shape[0]), SYMMETRIC, 0, self.zeros.where)

    def held(self) -> Self:
        """The same, read once."""
        zeros = self.zeros and self.zeros.held()
        return replace(self, words=self.words.held(), scales=self.scales.held(), zeros=zeros)

    def codes(self, first: int, last: int) -> Codes:
        """Lines `first` to `last`, with the scales and zeros of each 128 columns."""
        zeros = self.read_zeros(first, last)[:, self.firsts] if self.asymmetric else None
        return Codes(self.read_codes(first, last), self.read_scales(first, last)[:, self.firsts], zeros)

    def lines(self, first: int, last: int) -> np.ndarray:
        """float32 [last - first, K], exact: a scale has at most 11 bits, the difference of code and zero 5."""
        codes, zeros = self.read_differently(first, last)
        steps = codes.astype(np.float32)
        steps -= np.float32(SYMMETRIC) if zeros is None else self._of_columns(zeros)
        with np.errstate(over="ignore", invalid="ignore"):  # what NaN and infinity make is refused by who asks for it
            steps *= self._of_columns(self.read_scales(first, last))
        return steps

    def _of_columns(self, of_groups: np.ndarray) -> np.ndarray:
        """[n, G] -> float32 [n, K]."""
        groups, counts = self._runs
        return np.repeat(of_groups.astype(np.float32)[:, groups], counts, axis=1)

    @cached_property
    def _runs(self) -> tuple[np.ndarray, np.ndarray]:
        """The groups of columns from the first to the last, and how many neighbours are in each."""
        begins = np.flatnonzero(np.diff(self.groups, prepend=-1))
        return self.groups[begins], np.diff(begins, append=len(self.groups))

    @abstractmethod
    def read_codes(self, first: int, last: int) -> np.ndarray:
        """uint8 [last - first, K]."""

    @abstractmethod
    def read_zeros(self, first: int, last: int) -> np.ndarray:
        """uint8 [last - first, G]. Called only if there are zeros."""

    @abstractmethod
    def read_scales(self, first: int, last: int) -> np.ndarray:
        """[last - first, G] in their own dtype."""

    @abstractmethod
    def read_differently(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Codes and zeros (None: 8) again, of the same shapes, and in another way."""


@dataclass(frozen=True)
class Dequantized:
    """A packed weight as float32; see Tensor. No import compares it with its codes, so that it does so itself."""

    packed: PackedWeight

    @property
    def source_name(self) -> str:
        return self.packed.source_name

    @property
    def dtype(self) -> str:
        return "float32"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.packed.shape

    def lines(self, first: int, last: int) -> np.ndarray:
        """float32 [last - first, K]. Raises InputError if the codes stand for other weights than the format says."""
        wanted = self.packed.lines(first, last)
        expect_same(_values(self.packed.codes(first, last)), wanted, first, self.packed.format, self.packed.words.where)
        return wanted


def _values(lines: Codes) -> np.ndarray:
    """float32 [n, K]: (code - zero) * scale."""

    def wide(of_groups: np.ndarray) -> np.ndarray:
        return np.repeat(of_groups.astype(np.float32), GROUP, axis=1)[:, : lines.codes.shape[1]]

    steps = lines.codes.astype(np.float32)
    steps -= np.float32(SYMMETRIC) if lines.zeros is None else wide(lines.zeros)
    with np.errstate(over="ignore", invalid="ignore"):
        steps *= wide(lines.scales)
    return steps
