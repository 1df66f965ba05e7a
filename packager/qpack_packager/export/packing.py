"""What the formats of quantized checkpoints share: codes packed into words, and what none of them can hold."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from qpack_packager.export.bundle_weights import Weight
from qpack_packager.export.write import Entry
from qpack_packager.lowering.qwen import HEAD
from qpack_packager.quantize.groups import GROUP
from qpack_schemas.errors import UnsupportedError
from qpack_schemas.strict_json import JsonValue

MOST_ZERO = 15  # what four bits hold; an imported weight may have 16


class Format(Protocol):
    """Made of a bundle's weights and those of them that are to be packed. Raises UnsupportedError for one of these
    that the format can't hold as it is."""

    def entries(self, weight: Weight) -> list[Entry]:
        """The tensors of a packed weight."""
        ...

    def quantization_config(self, dense: Sequence[str]) -> Mapping[str, JsonValue]:
        """For config.json. `dense`: the linear layers that aren't packed."""
        ...


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """uint8 [.., K], each of `bits` 4 or 8 -> int32 [.., ceil(K * bits / 32)]: the first code in the lowest bits, zeros
    behind the last."""
    missing = -codes.shape[-1] % (32 // bits)
    if missing:
        codes = np.pad(codes, [*[(0, 0)] * (codes.ndim - 1), (0, missing)])
    if bits == 4:
        codes = codes[..., ::2] | codes[..., 1::2] << np.uint8(4)
    return np.ascontiguousarray(codes).view("<i4")


def layer_of(weight: str) -> str:
    """model.layers.0.mlp.up_proj.weight -> model.layers.0.mlp.up_proj"""
    return weight.rpartition(".")[0]


def refuse_short_groups(packed: Sequence[Weight], name: str) -> None:
    """A last group of fewer than 128: no loader takes it."""
    for weight in packed:
        if k := weight.shape[1] % GROUP:
            raise UnsupportedError(
                f"its lines have {weight.shape[1]} weights: the last group would have {k}, and {name} wants {GROUP}",
                where=weight.name, remedy=f"build the bundle with {_unpacked(weight.name)}",
            )  # fmt: skip


def _unpacked(weight: str) -> str:
    """The flag of a build that keeps a weight in numbers."""
    return "--lm-head int8" if weight == HEAD else f"--module '*.{weight.rsplit('.', 2)[1]}.weight=bf16'"


def refuse_zero(weight: Weight, zero: int, name: str) -> None:
    """Raises for a zero point that four bits don't hold."""
    if zero > MOST_ZERO:
        raise UnsupportedError(
            f"has the zero point {zero}, {name} has 0 to {MOST_ZERO}",
            where=weight.name, remedy="serve the quantized checkpoint that the bundle was made of",
        )  # fmt: skip
