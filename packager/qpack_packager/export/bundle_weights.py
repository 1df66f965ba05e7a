"""The weights of a bundle as its checkpoint has them: joined modules cut apart, padding dropped, Marlin undone.

Weights are read a few lines at a time; of an int4 module the packed codes are held while its lines are asked for.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

import numpy as np

from qpack_packager.checkpoint.source_tensor import DTYPES
from qpack_packager.lowering.qwen import HEAD
from qpack_packager.quantize.groups import GROUP
from qpack_packager.quantize.marlin import TILE_N, unpack, unpermute_scales
from qpack_schemas.bundle import Bundle
from qpack_schemas.errors import Finding, IntegrityError
from qpack_schemas.manifest import Model, Tensor

Form = Literal["dense", "int4", "int8"]
_FORMS: Mapping[str, Form] = {"dense": "dense", "marlin_codes": "int4", "int8_codes": "int8"}
_BLOCK_WEIGHTS = 1 << 20  # that are unpacked at a time, and more only if 64 lines are more
_INT4_ZERO = 8  # the code of zero where no tensor says it


@dataclass(frozen=True)
class Weight:
    """A tensor of the checkpoint and where it lies."""

    name: str  # model.layers.0.mlp.up_proj.weight
    module: str  # of the bundle: layers.0.mlp.gate_up
    form: Form
    shape: tuple[int, ...]
    dtype: str  # of the numbers if it is dense, else of the scales
    asymmetric: bool  # there are zeros
    lines: np.ndarray = field(repr=False, compare=False)  # int64 [N]: which line of the module each of its lines is

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Its lines in ranges: first, and behind the last. Every range but the last has a multiple of 64."""
        n, width = self.shape[0], math.prod(self.shape[1:])
        step = max(1, _BLOCK_WEIGHTS // max(1, width) // TILE_N) * TILE_N
        return ((first, min(first + step, n)) for first in range(0, n, step))


class BundleWeights:
    """`weights`: all of them, in the order in which they lie in the bundle."""

    def __init__(self, bundle: Bundle):
        self.bundle = bundle
        self.weights = tuple(_weights(bundle))
        self._held: tuple[str, np.ndarray] = "", np.empty(0)

    def numbers(self, weight: Weight, first: int, last: int) -> np.ndarray:
        """Lines `first` to `last`: in its own dtype if it is dense, else float32 [n, K], exactly."""
        if weight.form == "dense":
            return self._read(weight.module, weight.lines[first:last]).reshape(-1, *weight.shape[1:])
        k, values = weight.shape[1], self.codes(weight, first, last).astype(np.float32)
        if weight.asymmetric:
            values -= np.repeat(self.zeros(weight, first, last), GROUP, axis=1)[:, :k]
        values *= np.repeat(self.scales(weight, first, last).astype(np.float32), GROUP, axis=1)[:, :k]
        return values

    def codes(self, weight: Weight, first: int, last: int) -> np.ndarray:
        """int8 [n, K]: -8..7 of an int4 weight, -127..127 of an int8 one. value = (code - zero) * scale."""
        lines, k, name = weight.lines[first:last], weight.shape[1], f"{weight.module}.q"
        if weight.form == "int8":
            return self._read(name, lines)[:, :k]
        if self._held[0] != name:
            self._held = name, self._whole(name)
        tiles, columns = _tiles(lines)
        words = _take(self._held[1], tiles, 2 * TILE_N)
        return unpack(words)[:k, columns].T.astype(np.int8) - np.int8(_INT4_ZERO)

    def scales(self, weight: Weight, first: int, last: int) -> np.ndarray:
        """[n, ceil(K / 128)], in their own dtype."""
        return self._groups(weight, f"{weight.module}.scale", first, last)

    def zeros(self, weight: Weight, first: int, last: int) -> np.ndarray:
        """int8 [n, ceil(K / 128)], counted as `codes` are: 0 wherever a weight is symmetric."""
        if not weight.asymmetric:
            return np.zeros((last - first, -(-weight.shape[1] // GROUP)), np.int8)
        return self._groups(weight, f"{weight.module}.zero", first, last) - np.int8(_INT4_ZERO)

    def _groups(self, weight: Weight, name: str, first: int, last: int) -> np.ndarray:
        lines = weight.lines[first:last]
        if weight.form == "int8":
            return self._read(name, lines)
        tiles, columns = _tiles(lines)
        return unpermute_scales(_take(self._whole(name), tiles, TILE_N))[:, columns].T

    def _whole(self, name: str) -> np.ndarray:
        return self._lines(name, 0, self.bundle.tensors[name][1].shape[0])

    def _read(self, name: str, lines: np.ndarray) -> np.ndarray:
        low, high = int(lines.min()), int(lines.max()) + 1
        read = self._lines(name, low, high)
        return read if np.array_equal(lines, np.arange(low, high)) else read[lines - low]

    def _lines(self, name: str, first: int, last: int) -> np.ndarray:
        """Entries `first` to `last` of a tensor's first axis, in memory of their own."""
        path, span = self.bundle.tensors[name]
        line = span.bytes // span.shape[0]
        raw = np.fromfile(path, np.uint8, (last - first) * line, offset=span.begin + first * line)
        return raw.view(DTYPES[span.dtype]).reshape(last - first, *span.shape[1:])


def _tiles(lines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The tiles of 64 columns that hold these lines of W, and the column of each line among them."""
    tiles, places = np.unique(lines // TILE_N, return_inverse=True)
    return tiles, places * TILE_N + lines % TILE_N


def _take(stored: np.ndarray, tiles: np.ndarray, width: int) -> np.ndarray:
    """The columns of these tiles, `width` of each."""
    return stored.reshape(len(stored), -1, width)[:, tiles].reshape(len(stored), -1)


def _weights(bundle: Bundle) -> Iterator[Weight]:
    tensors = bundle.manifest["tensors"]
    places = {name: (str(path), span.begin) for name, (path, span) in bundle.tensors.items()}
    for name in sorted(tensors, key=places.__getitem__):
        tensor = tensors[name]
        if form := _FORMS.get(tensor["form"]):
            module = name if form == "dense" else name.removesuffix(".q")
            stored = tensors[name if form == "dense" else f"{module}.scale"]
            for source, lines in _lines_of(bundle, name, tensor).items():
                source = HEAD if name.startswith("lm_head.") else source  # also where it was made of the embedding
                shape = (len(lines), *tensor["logical_shape"][1:])
                yield Weight(source, module, form, shape, stored["dtype"], f"{module}.zero" in tensors, lines)


def _lines_of(bundle: Bundle, name: str, tensor: Tensor) -> dict[str, np.ndarray]:
    """Checkpoint tensor -> its lines of the joined module. Query and gate of Qwen3.5's q_proj are halves of each
    head there: [heads, 2, head_dim] lines."""
    model, sources = bundle.manifest["model"], tensor["sources"]
    counts = [tensor["logical_shape"][0]] if len(sources) == 1 else [_count(model, source) for source in sources]
    ends = list(accumulate(counts))
    if ends[-1] != tensor["logical_shape"][0]:
        message = f"{name} has {tensor['logical_shape'][0]} lines, its sources {', '.join(sources)} give {ends[-1]}"
        raise IntegrityError(
            "the bundle contradicts itself (1 finding):", [Finding(f"manifest.json#/tensors/{name}", message)],
            where=str(bundle.path), remedy="build the bundle again",
        )  # fmt: skip
    parts: dict[str, list[np.ndarray]] = {}
    for source, count, end in zip(sources, counts, ends, strict=True):
        parts.setdefault(source.partition("#")[0], []).append(np.arange(end - count, end))
    heads = model["attention_heads"]
    return {
        source: lines[0] if len(lines) == 1 else np.stack([half.reshape(heads, -1) for half in lines], 1).reshape(-1)
        for source, lines in parts.items()
    }


def _count(model: Model, source: str) -> int:
    """The lines of a projection that is joined with others; 0 if it isn't known."""
    queries, keys = model["attention_heads"] * model["head_dim"], model["kv_heads"] * model["head_dim"]
    counts = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
    counts |= dict.fromkeys(("gate_proj", "up_proj"), model["intermediate_size"])
    if delta := model.get("delta"):
        values = delta["value_heads"] * delta["value_dim"]
        counts |= {"in_proj_z": values, "in_proj_qkv": 2 * delta["key_heads"] * delta["key_dim"] + values}
        counts |= dict.fromkeys(("in_proj_b", "in_proj_a"), delta["value_heads"])
    return counts.get(source.split(".")[-2], 0)
