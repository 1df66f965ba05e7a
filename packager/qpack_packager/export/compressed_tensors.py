"""compressed-tensors' `pack-quantized`: int4 and int8 codes along K, eight or four to a word, groups of 128.

Format: compressors/pack_quantized of https://github.com/vllm-project/compressed-tensors. A stored code is the signed
one plus half its range; zero points are packed along N in the same way.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from qpack_packager.export.bundle_weights import BundleWeights, Weight
from qpack_packager.export.packing import layer_of, pack, refuse_short_groups, refuse_zero
from qpack_packager.export.write import Entry
from qpack_packager.quantize.groups import GROUP
from qpack_schemas.strict_json import JsonValue

_BITS = {"int4": 4, "int8": 8}


class CompressedTensors:
    def __init__(self, weights: BundleWeights, packed: Sequence[Weight]):
        self.weights, self.packed = weights, packed
        refuse_short_groups(packed, "compressed-tensors")
        for weight in packed:
            if weight.asymmetric:
                refuse_zero(weight, int(weights.zeros(weight, 0, weight.shape[0]).max()) + 8, "compressed-tensors")

    def entries(self, weight: Weight) -> list[Entry]:
        layer, bits, weights = layer_of(weight.name), _BITS[weight.form], self.weights
        n, k = weight.shape
        offset = np.uint8(1 << (bits - 1))

        def codes() -> Iterator[np.ndarray]:
            for block in weight.blocks():
                yield pack(weights.codes(weight, *block).view(np.uint8) + offset, bits)

        def zeros() -> Iterator[np.ndarray]:
            yield pack((weights.zeros(weight, 0, n).view(np.uint8) + offset).T, bits).T

        made = [
            Entry(f"{layer}.weight_packed", "int32", (n, k * bits // 32), codes),
            Entry(f"{layer}.weight_scale", weight.dtype, (n, k // GROUP), lambda: [weights.scales(weight, 0, n)]),
            Entry(f"{layer}.weight_shape", "int64", (2,), lambda: [np.array([n, k], np.int64)]),
        ]
        if weight.asymmetric:
            made.append(Entry(f"{layer}.weight_zero_point", "int32", (-(-n * bits // 32), k // GROUP), zeros))
        return made

    def quantization_config(self, dense: Sequence[str]) -> Mapping[str, JsonValue]:
        """Targets are layers by name, never the class Linear: an engine that joins q, k and v asks for the class before
        it asks for the names, and would take the first group for all."""
        schemes: dict[tuple[int, bool], list[str]] = {}
        for weight in self.packed:
            schemes.setdefault((_BITS[weight.form], not weight.asymmetric), []).append(layer_of(weight.name))
        groups = {
            f"group_{index}": {
                "targets": targets,
                "format": "pack-quantized",
                "weights": {
                    "num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": GROUP,
                    "dynamic": False,
                },
                "input_activations": None,
                "output_activations": None,
            }
            for index, ((bits, symmetric), targets) in enumerate(sorted(schemes.items()))
        }  # fmt: skip
        return {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": groups,
            "ignore": list(dense),
            "kv_cache_scheme": None,
        }
