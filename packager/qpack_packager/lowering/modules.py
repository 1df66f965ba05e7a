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
    """One to three tensors of the bundle (codes, their scales and zeros), the sources joined along the first axis."""

    name: str
    form: Form
    sources: tuple[Rows, ...]
    lines: tuple[int, ...]  # of each source
    shape: tuple[int, ...]  # of the joined sources, [N, K] for matrices, before padding
    tensors: Mapping[str, Buffer]  # name -> dtype and shape as stored
    theta: float = 0.0  # rope_table only
    imported: bool = False  # marlin only: the sources are int4 already

    @property
    def padded(self) -> tuple[int, int]:
        """[N, K] of a marlin or int8 module as stored: zeros behind the sources, up to whole groups and tiles."""
        rows, columns = self.tensors[f"{self.name}.q"].extent(1)
        return (rows, columns) if self.form == "int8" else (columns // 2, rows * 16)


Lines = Mapping[Rows, int]  # source -> how many lines it gives


def dense(name: str, sources: Lines, shape: tuple[int, ...], stored: tuple[int, ...], dtype: str) -> Module:
    """Kept as it is, in `dtype`; `stored` may differ from `shape` by zero lines at the end or dimensions of 1."""
    tensors = {name: Buffer("weights", dtype, stored)}
    return Module(name, "dense", tuple(sources), tuple(sources.values()), shape, tensors)


def marlin(
    name: str, sources: Lines, k: int, scale: str = "bfloat16", *, imported: bool = False, zeros: bool = False
) -> Module:
    """int4 codes and their scales, of dtype `scale`; with `zeros` also the code of zero of every group."""
    n, width = -(-sum(sources.values()) // TILE_N) * TILE_N, -(-k // GROUP) * GROUP
    tensors = {
        f"{name}.q": Buffer("weights", "int32", (width // 16, 2 * n)),
        f"{name}.scale": Buffer("weights", scale, (width // GROUP, n)),
    }
    if zeros:
        tensors[f"{name}.zero"] = Buffer("weights", "int8", (width // GROUP, n))
    return _matrix(name, "marlin", sources, k, tensors, imported=imported)


def int8(name: str, sources: Lines, k: int, lines: int) -> Module:
    """int8 codes and their scales; of `lines` lines, those behind the sources zero."""
    width = -(-k // GROUP) * GROUP
    tensors = {
        f"{name}.q": Buffer("weights", "int8", (lines, width)),
        f"{name}.scale": Buffer("weights", "bfloat16", (lines, width // GROUP)),
    }
    return _matrix(name, "int8", sources, k, tensors)


def rope_table(context: int, rotary_dim: int, theta: float) -> Module:
    shape = (context, 2, rotary_dim // 2)
    return Module("rope", "rope_table", (), (), shape, {"rope": Buffer("weights", "float32", shape)}, theta)


def _matrix(
    name: str, form: Form, sources: Lines, k: int, tensors: Mapping[str, Buffer], *, imported: bool = False
) -> Module:
    lines = tuple(sources.values())
    return Module(name, form, tuple(sources), lines, (sum(lines), k), tensors, imported=imported)
