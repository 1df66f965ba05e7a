"""The GPTQ format: int4 codes along K, eight to a word, transposed; zero points along N.

Format: nn_modules/qlinear of https://github.com/ModelCloud/GPTQModel. Version 1 stores zero points less one, version 2
as they are. Every loader knows version 1, but it has no zero point 0.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from qpack_packager.export.bundle_weights import BundleWeights, Weight
from qpack_packager.export.packing import layer_of, pack, refuse_short_groups, refuse_zero
from qpack_packager.export.write import Entry
from qpack_packager.lowering.qwen import HEAD
from qpack_packager.quantize.groups import GROUP
from qpack_schemas.errors import UnsupportedError
from qpack_schemas.strict_json import JsonValue

# What vLLM and SGLang call layers that they join: a rule that excludes one of them must exclude the joined one, too.
_JOINED = {
    "q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj", "in_proj_qkv": "in_proj_qkvz", "in_proj_z": "in_proj_qkvz", "in_proj_b": "in_proj_ba",
    "in_proj_a": "in_proj_ba",
}  # fmt: skip


class Gptq:
    def __init__(self, weights: BundleWeights, packed: Sequence[Weight]):
        self.weights, self.packed = weights, packed
        self.version = 1
        for weight in packed:
            if weight.form != "int4":
                _refuse(weight, f"is {weight.form}, gptq has one width for all: int4")
            if weight.shape[0] % 8:
                _refuse(weight, f"has {weight.shape[0]} lines, gptq packs their zero points in eights")
            if weight.asymmetric:
                zeros = self._zeros(weight)
                refuse_zero(weight, int(zeros.max()), "gptq")
                self.version = self.version if zeros.all() else 2
        refuse_short_groups(packed, "gptq")

    def entries(self, weight: Weight) -> list[Entry]:
        layer, weights = layer_of(weight.name), self.weights
        n, k = weight.shape

        def codes() -> Iterator[np.ndarray]:
            words = np.empty((k // 8, n), np.int32)
            for first, last in weight.blocks():
                words[:, first:last] = pack(weights.codes(weight, first, last).view(np.uint8) + np.uint8(8), 4).T
            yield words

        def zeros() -> Iterator[np.ndarray]:
            yield pack((self._zeros(weight) - np.uint8(self.version == 1)).T, 4)

        return [
            Entry(f"{layer}.qweight", "int32", (k // 8, n), codes),
            Entry(f"{layer}.qzeros", "int32", (k // GROUP, n // 8), zeros),
            Entry(f"{layer}.g_idx", "int32", (k,), lambda: [np.arange(k, dtype=np.int32) // np.int32(GROUP)]),
            Entry(f"{layer}.scales", weight.dtype, (k // GROUP, n), lambda: [weights.scales(weight, 0, n).T]),
        ]

    def quantization_config(self, dense: Sequence[str]) -> Mapping[str, JsonValue]:
        return {
            "quant_method": "gptq",
            "checkpoint_format": "gptq" if self.version == 1 else "gptq_v2",
            "bits": 4,
            "group_size": GROUP,
            "desc_act": False,
            "sym": not any(weight.asymmetric for weight in self.packed),
            "lm_head": any(weight.name == HEAD for weight in self.packed),
            "pack_dtype": "int32",
            "dynamic": _excluded([layer for layer in dense if layer != layer_of(HEAD)]),
        }

    def _zeros(self, weight: Weight) -> np.ndarray:
        """uint8 [N, K/128]"""
        return self.weights.zeros(weight, 0, weight.shape[0]).view(np.uint8) + np.uint8(8)


def _refuse(weight: Weight, message: str) -> None:
    raise UnsupportedError(message, where=weight.name, remedy="export with --format compressed-tensors")


def _excluded(layers: Sequence[str]) -> dict[str, JsonValue]:
    """A rule of `dynamic` for each kind of layer that isn't packed: a negative one, for a regular expression."""
    numbers: dict[tuple[str, str], list[str]] = {}
    for layer in layers:
        number, place, kind = layer.removeprefix("model.layers.").split(".")
        numbers.setdefault((place, kind), []).append(number)
    return {
        rf"-:model\.layers\.({'|'.join(found)})\.{place}\.({'|'.join(filter(None, (kind, _JOINED.get(kind))))})$": {}
        for (place, kind), found in numbers.items()
    }
