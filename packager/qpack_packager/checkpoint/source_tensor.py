"""Tensors of a checkpoint: where one lies in its file, and what a quantized one, stored in parts, means."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import ml_dtypes
import numpy as np

from qpack_schemas.errors import InputError

DTYPES = {
    "BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32, "F64": np.float64,
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
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

    def lines(self, first: int, last: int) -> np.ndarray:
        """Entries `first` to `last` of the first axis, read into memory of their own: a mapped file's pages would stay
        with the process."""
        count = self.bytes // self.shape[0] if self.shape[0] else 0
        return self._bytes(first * count, (last - first) * count).reshape(last - first, *self.shape[1:])

    def read(self) -> np.ndarray:
        """All of it, also of a scalar."""
        return self._bytes(0, self.bytes).reshape(self.shape)

    def _bytes(self, begin: int, count: int) -> np.ndarray:
        raw = np.fromfile(self.path, np.uint8, count, offset=self.begin + begin)
        if len(raw) < count:
            raise InputError(
                f"changed while it was read: {count - len(raw)} bytes of tensor {self.source_name!r} are gone",
                where=str(self.path),
                remedy="leave the checkpoint alone during a build",
            )
        return raw.view(self.dtype)


@dataclass(frozen=True)
class Codes:
    """An int4 weight: value = (code - zero) * scale."""

    codes: np.ndarray  # uint8 [N, K], 0..15
    scales: np.ndarray  # float16 or bfloat16 [N, ceil(K / 128)]
    zeros: np.ndarray | None  # uint8 [N, ceil(K / 128)], 0..16; None: 8


class PackedTensor(Protocol):
    """An int4 weight that the checkpoint stores as codes."""

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
    def asymmetric(self) -> bool: ...

    def lines(self, first: int, last: int) -> np.ndarray: ...  # float32, dequantized as the format defines it
    def codes(self) -> Codes: ...


def as_packed(tensor: Tensor) -> PackedTensor | None:
    """The same tensor, if its codes can be had."""
    return cast(PackedTensor, tensor) if tensor.dtype == INT4 else None
