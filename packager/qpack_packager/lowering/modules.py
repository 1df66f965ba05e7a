"""Weight modules: how a bundle's tensors are made from the checkpoint's, decided before any byte is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from qpack_packager.quantize.groups import GROUP
from qpack_packager.quantize.marlin import TILE_N
from qpack_schemas.program import Buffer

Form = Literal["dense", "marlin", "int8", "rope_table"]


@dataclass(frozen=True)
class Rows:
    """Lines of a checkpoint tensor, in order. `part` picks the query or the gate half of every head of Qwen3.5's
    q_proj, which holds head by head first the lines of the query and then those of the gate."""

    tensor: str
    part: Literal["", "query", "gate"] = ""


@dataclass(frozen=True)
class Module:
    """One or two tensors of the bundle (codes and their scales), the sources joined along the first axis."""

    name: str
    form: Form
    sources: tuple[Rows, ...]
    shape: tuple[int, ...]  # of the joined sources, [N, K] for matrices, before padding
    tensors: Mapping[str, Buffer]  # name -> dtype and shape as stored
    theta: float = 0.0  # rope_table only

    @property
    def padded(self) -> tuple[int, int]:
        """[N, K] of a marlin or int8 module after zero padding to whole tiles and groups."""
        n, k = self.shape
        return -(-n // TILE_N) * TILE_N, -(-k // GROUP) * GROUP


def dense(name: str, sources: tuple[Rows, ...], shape: tuple[int, ...], stored: tuple[int, ...], dtype: str) -> Module:
    """Kept as it is, in `dtype`; `stored` may differ from `shape` by zero lines at the end or dimensions of 1."""
    return Module(name, "dense", sources, shape, {name: Buffer("weights", dtype, stored)})


def marlin(name: str, sources: tuple[Rows, ...], shape: tuple[int, int]) -> Module:
    module = Module(name, "marlin", sources, shape, {})
    n, k = module.padded
    tensors = {
        f"{name}.q": Buffer("weights", "int32", (k // 16, 2 * n)),
        f"{name}.scale": Buffer("weights", "bfloat16", (k // GROUP, n)),
    }
    return Module(name, "marlin", sources, shape, tensors)


def int8(name: str, sources: tuple[Rows, ...], shape: tuple[int, int]) -> Module:
    module = Module(name, "int8", sources, shape, {})
    n, k = module.padded
    tensors = {
        f"{name}.q": Buffer("weights", "int8", (n, k)),
        f"{name}.scale": Buffer("weights", "bfloat16", (n, k // GROUP)),
    }
    return Module(name, "int8", sources, shape, tensors)


def rope_table(context: int, rotary_dim: int, theta: float) -> Module:
    shape = (context, 2, rotary_dim // 2)
    return Module("rope", "rope_table", (), shape, {"rope": Buffer("weights", "float32", shape)}, theta)
