"""Checkpoints quantized to int4 as the published layouts say, never with the packager.

GPTQ: compared once with what GPTQModel 7.7.0 reads (utils/model_dequant.py, convert_gptq_file) and packs (nn_modules/
qlinear, pack_block with convert_gptq_v2_to_v1_format_module). AWQ: with AutoAWQ 0.2.9 (modules/linear/gemm.py,
WQLinear_GEMM.from_linear, and utils/packing_utils.py, dequantize_gemm). All came out equal bit by bit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from checkpoints import read_config, read_tensors, write_checkpoint

LINEARS = (
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "in_proj_qkv", "in_proj_z", "out_proj",
)  # fmt: skip
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Int4:
    """A weight [N, K]: value = (code - zero) * scale, where groups[k] is the group of column k."""

    codes: np.ndarray  # uint8 [N, K]
    zeros: np.ndarray  # uint8 [N, G]
    scales: np.ndarray  # [N, G]
    groups: np.ndarray  # int64 [K]

    @property
    def values(self) -> np.ndarray:
        """float32 [N, K], exact."""
        steps = self.codes.astype(np.float64) - self.zeros[:, self.groups]
        return (steps * self.scales.astype(np.float64)[:, self.groups]).astype(np.float32)


Pack = Callable[[Int4], Mapping[str, np.ndarray]]


def quantize(weight: np.ndarray, groups: np.ndarray, *, symmetric: bool, dtype: Any) -> Int4:
    """Rounds float [N, K] to nearest, with a scale and a zero from each group's extremes."""
    count = int(groups.max()) + 1
    codes, zeros = np.empty(weight.shape, np.uint8), np.full((len(weight), count), 8, np.uint8)
    scales = np.empty((len(weight), count), dtype)
    for group in range(count):
        part = weight[:, groups == group].astype(np.float64)
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        step = np.maximum(high, -low) / 7.5 if symmetric else (high - low) / 15
        scales[:, group] = np.maximum(step, 1e-4)
        steps = scales[:, group].astype(np.float64)
        if not symmetric:
            zeros[:, group] = np.clip(np.rint(-low / steps), 0, 15)
        codes[:, groups == group] = np.clip(np.rint(part / steps[:, None]) + zeros[:, group, None], 0, 15)
    return Int4(codes, zeros, scales, groups)


def words(codes: np.ndarray, order: tuple[int, ...] = tuple(range(8))) -> np.ndarray:
    """uint8 [R, 8 * W] -> int32 [R, W], the lowest bits first: bits 4p on hold element order[p] of eight."""
    eights = codes.reshape(len(codes), -1, 8).astype(np.uint64)
    packed = sum(eights[:, :, element] * np.uint64(16**p) for p, element in enumerate(order))
    return np.asarray(packed, np.uint64).astype(np.uint32).view(np.int32)


def gptq(weight: Int4, *, version: int = 1, g_idx: bool = True) -> dict[str, np.ndarray]:
    stored = weight.zeros.astype(np.int64) - (1 if version == 1 else 0)
    tensors = {
        "qweight": words(weight.codes).T,
        "qzeros": words((stored % 16).astype(np.uint8).T),
        "scales": weight.scales.T,
    }
    return {**tensors, "g_idx": weight.groups.astype(np.int32)} if g_idx else tensors


def awq(weight: Int4) -> dict[str, np.ndarray]:
    return {
        "qweight": words(weight.codes.T, AWQ_ORDER),
        "qzeros": words(weight.zeros.T, AWQ_ORDER),
        "scales": weight.scales.T,
    }


GPTQ_CONFIG = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "checkpoint_format": "gptq"}
AWQ_CONFIG = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}


def packed_checkpoint(
    directory: Path,
    source: Path,
    config: Mapping[str, Any],
    pack: Pack,
    *,
    size: int = 128,
    symmetric: bool = True,
    dtype: Any = np.float16,
    head: bool = False,
    changes: Mapping[str, np.ndarray | None] | None = None,
) -> tuple[Path, dict[str, Int4]]:
    """The checkpoint `source` with its linears (and the head) as `pack` stores them, `config` as its
    quantization_config, and `changes` made to its tensors; None takes one away. Returns what each weight became."""
    tensors, weights = dict[str, np.ndarray](), dict[str, Int4]()
    held = read_tensors(source)
    for name, tensor in held.items():
        stem = name.removesuffix(".weight")
        if name.endswith(".weight") and (stem.endswith(LINEARS) or (head and stem == "lm_head")):
            columns = tensor.shape[1]
            groups = np.arange(columns) // (columns if size == -1 else size)
            weights[name] = quantize(tensor, groups, symmetric=symmetric, dtype=dtype)
            tensors |= {f"{stem}.{part}": np.ascontiguousarray(one) for part, one in pack(weights[name]).items()}
        else:
            tensors[name] = tensor
    tensors = {name: one for name, one in {**tensors, **(changes or {})}.items() if one is not None}
    whole = {**read_config(source), "quantization_config": dict(config)}
    return write_checkpoint(directory, whole, tensors, tokenizer=source), weights
