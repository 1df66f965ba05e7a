"""Bundles of one module that no build makes: any codes, scales and zeros, to see each of them again in an export."""

from pathlib import Path
from typing import Any

import numpy as np

from checkpoints import write_weights
from qpack_packager.quantize.marlin import pack, permute_scales
from qpack_schemas.bundle import Bundle
from qpack_schemas.tensor_file import read_spans

MODEL = {"attention_heads": 2, "head_dim": 20, "kv_heads": 1, "intermediate_size": 72}


def int4_bundle(
    folder: Path, name: str, sources: list[str], codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None
) -> Bundle:
    """codes uint8 [N, K], scales [N, K/128], zeros uint8 [N, K/128] or None; padded here as a build does it."""
    n, k = codes.shape
    wide, high = -(-n // 64) * 64, -(-k // 128) * 128
    groups = high // 128
    whole = np.full((wide, high), 8, np.uint8)
    whole[:n, :k] = codes
    whole_scales = np.zeros((wide, groups), scales.dtype)
    whole_scales[:n] = scales
    tensors = {f"{name}.q": pack(whole.T), f"{name}.scale": permute_scales(whole_scales.T)}
    forms = {f"{name}.q": "marlin_codes", f"{name}.scale": "marlin_scales"}
    if zeros is not None:
        whole_zeros = np.full((wide, groups), 8, np.int8)
        whole_zeros[:n] = zeros
        tensors[f"{name}.zero"], forms[f"{name}.zero"] = permute_scales(whole_zeros.T), "marlin_zeros"
    return bundle_of(folder, tensors, forms, sources, (n, k))


def bundle_of(
    folder: Path, tensors: dict[str, np.ndarray], forms: dict[str, str], sources: list[str], shape: tuple[int, ...]
) -> Bundle:
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder / "weights.safetensors", tensors)
    entries: dict[str, Any] = {
        name: {
            "dtype": tensor.dtype.name, "shape": list(tensor.shape), "form": forms[name], "sources": sources,
            "logical_shape": list(shape),
        }
        for name, tensor in tensors.items()
    }  # fmt: skip
    spans = read_spans(folder / "weights.safetensors")
    places = {name: (folder / "weights.safetensors", span) for name, span in spans.items()}
    manifest: Any = {"tensors": entries, "model": MODEL}
    return Bundle(folder, "", manifest, {}, places, {})
