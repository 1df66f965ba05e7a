"""Tensors of a checkpoint: where one lies in its file, and what a quantized one, stored in parts, means."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import ml_dtypes
import numpy as np

from qpack_schemas.errors import InputError

DTYPES = {
    "BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32, "F64": np.float64,
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2, "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "I8": np.int8, "U8": np.uint8, "I16": np.int16, "I32": np.int32, "U32": np.uint32, "I64": np.int64,
}  # fmt: skip
INT4 = "int4"
FLOATS = ("bfloat16", "float16", "float32", "float64")  # what a weight may be stored in as it is


class Tensor(Protocol):
    """A weight as a model sees it, however its checkpoint stores it."""

    @property
    def source_name(self) -> str: ...  # in the checkpoint, for messages
    @property
    def dtype(self) -> str: ...  # of `lines`, by numpy's name; INT4 if codes can be had
    @property
    def shape(self) -> tuple[int, ...]: ...

    def lines(self, first: int, last: int) -> np.ndarray: ...  # [last - first, ...]


@dataclass(frozen=True)
class SourceTensor:
    """One tensor of a weight file. `begin` is its first byte's offset there."""

    source_name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    bytes: int

    @property
    def where(self) -> str:
        """File and name, for messages."""
        return f"{self.path}: {self.source_name}"

    def expect(self, shape: tuple[int, ...], *dtypes: str) -> None:
        """Raises InputError if it has another shape, or none of these dtypes."""
        if self.shape != shape or self.dtype not in dtypes:
            raise InputError(
                f"is {self.dtype} {list(self.shape)}, expected {' or '.join(dtypes)} {list(shape)}",
                where=self.where,
                remedy="take config.json and weights from the same download",
            )

    def lines(self, first: int, last: int) -> np.ndarray:
        """Entries `first` to `last` of the first axis, read into memory of their own: a mapped file's pages would stay
        with the process."""
        count = self.bytes // self.shape[0] if self.shape[0] else 0
        return self._bytes(first * count, (last - first) * count).reshape(last - first, *self.shape[1:])

    def held(self) -> "HeldTensor":
        """The same, read once."""
        return HeldTensor(self.source_name, self.path, self.dtype, self.shape, self.begin, self.bytes, self.read())

    def columns(self, first: int, last: int) -> np.ndarray:
        """Entries `first` to `last` of the second of two axes, [rows, last - first]; no others are read."""
        rows, width = self.shape
        if (first, last) == (0, width):
            return self.read()
        item = np.dtype(self.dtype).itemsize
        raw = np.empty((rows, (last - first) * item), np.uint8)
        begin, stride = self.begin + first * item, width * item
        with self.path.open("rb", buffering=0) as file:
            read = sum(os.preadv(file.fileno(), (line.data,), begin + row * stride) for row, line in enumerate(raw))
        self._check_read(read, raw.nbytes)
        return raw.view(self.dtype)

    def read(self) -> np.ndarray:
        """All of it, also of a scalar."""
        return self._bytes(0, self.bytes).reshape(self.shape)

    def _bytes(self, begin: int, count: int) -> np.ndarray:
        raw = np.fromfile(self.path, np.uint8, count, offset=self.begin + begin)
        self._check_read(len(raw), count)
        return raw.view(self.dtype)

    def _check_read(self, count: int, wanted: int) -> None:
        if count < wanted:
            raise InputError(
                f"changed while it was read: {wanted - count} bytes of tensor {self.source_name!r} are gone",
                where=str(self.path),
                remedy="leave the checkpoint alone during a build",
            )


@dataclass(frozen=True, eq=False)
class HeldTensor(SourceTensor):
    """One that is in memory, for who wants its columns piece by piece: of a file each row's would be a read."""

    whole: np.ndarray

    def lines(self, first: int, last: int) -> np.ndarray:
        return self.whole[first:last]

    def columns(self, first: int, last: int) -> np.ndarray:
        return self.whole[:, first:last]

    def read(self) -> np.ndarray:
        return self.whole


@dataclass(frozen=True)
class Codes:
    """Lines of an int4 weight: value = (code - zero) * scale."""

    codes: np.ndarray  # uint8 [n, K], 0..15
    scales: np.ndarray  # float16 or bfloat16 [n, ceil(K / 128)]
    zeros: np.ndarray | None  # uint8 [n, ceil(K / 128)], 0..15; None: 8


class PackedTensor(Protocol):
    """An int4 weight that the checkpoint stores as codes.

    `lines` follows the format's own definition of a weight, and shares no step with `codes`: an import compares them.
    """

    @property
    def source_name(self) -> str: ...
    @property
    def dtype(self) -> str: ...  # INT4
    @property
    def shape(self) -> tuple[int, ...]: ...  # [N, K]
    @property
    def format(self) -> str: ...  # "gptq", "awq" or "compressed-tensors"
    @property
    def scale_dtype(self) -> str: ...
    @property
    def asymmetric(self) -> bool: ...  # some zero is not 8

    def lines(self, first: int, last: int) -> np.ndarray: ...  # float32
    def codes(self, first: int, last: int) -> Codes: ...
    def held(self) -> "PackedTensor": ...  # the same, read once


def as_packed(tensor: Tensor) -> PackedTensor | None:
    """The same tensor, if its codes can be had."""
    return cast(PackedTensor, tensor) if tensor.dtype == INT4 else None
