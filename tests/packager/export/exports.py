"""Exports for tests, and what other libraries read of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from qpack_packager.export.export import FormatName, export
from qpack_packager.export.write import Entry
from qpack_packager.progress import Progress


def exported(bundle: Path, output: Path, format_name: FormatName) -> Path:
    export(bundle, output, format_name, Progress("plain"))
    return output


def read(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Every tensor, as the safetensors library reads it."""
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(file, "pt") as handle:
            tensors |= {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 (no mapping)
    return tensors


def made(entries: list[Entry]) -> dict[str, torch.Tensor]:
    """The tensors of these entries."""
    tensors: dict[str, torch.Tensor] = {}
    for entry in entries:
        array = np.concatenate(list(entry.pieces()))
        assert (array.dtype.name, array.shape) == (entry.dtype, entry.shape)
        bits = array.view(np.int16) if entry.dtype in ("float16", "bfloat16") else array
        tensors[entry.name] = torch.from_numpy(np.ascontiguousarray(bits)).view(getattr(torch, entry.dtype))
    return tensors


def decompress(tensors: Mapping[str, torch.Tensor], layer: str, config: Mapping[str, Any]) -> np.ndarray:
    """A packed layer as compressed-tensors itself unpacks it, float32 [N, K]. `config`: the quantization_config."""
    from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationScheme

    found = [group for group in config["config_groups"].values() if layer in group["targets"]]
    assert len(found) == 1
    parts = {name[len(layer) + 1 :]: tensor for name, tensor in tensors.items() if name.startswith(f"{layer}.weight")}
    parts["weight_scale"] = parts["weight_scale"].float()  # the product of a code and a bfloat16 needs more bits
    return PackedQuantizationCompressor.decompress(parts, QuantizationScheme(**found[0]))["weight"].numpy()


def gptq_weight(tensors: Mapping[str, torch.Tensor], layer: str, version: int, n: int, k: int) -> float:
    """One weight of a layer by the published formula: scale of its group times (code - zero)."""
    parts = {part: tensors[f"{layer}.{part}"] for part in ("qweight", "qzeros", "scales", "g_idx")}
    group = int(parts["g_idx"][k])
    code = int(parts["qweight"][k // 8, n]) >> 4 * (k % 8) & 15
    zero = (int(parts["qzeros"][group, n // 8]) >> 4 * (n % 8) & 15) + (version == 1)
    return float(parts["scales"][group, n].float()) * (code - zero)
