"""Checkpoints compressed by the compressed-tensors library, and the weights that it makes of them."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from compressed_tensors.compressors import BaseCompressor, ModelCompressor
from compressed_tensors.config import CompressionFormat
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    apply_quantization_config,
)
from compressed_tensors.quantization.utils import calculate_qparams, is_module_quantized
from safetensors.torch import load_file

from checkpoints import TOKENIZER_FILES

PACKED, FLOAT = CompressionFormat.pack_quantized, CompressionFormat.float_quantized


def compressed_checkpoint(
    directory: Path, source: Path, *, dtype: torch.dtype = torch.bfloat16, **weights: Any
) -> tuple[Path, dict[str, np.ndarray]]:
    """The checkpoint `source` with its linears compressed as QuantizationArgs(**weights) say. Returns the weights that
    the library makes of them, computed in float32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    arguments = QuantizationArgs(**weights)
    kind = FLOAT if arguments.type == "float" else PACKED
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments, format=kind)
    untouched = ["lm_head", "re:.*in_proj_[ab]$"]
    apply_quantization_config(model, QuantizationConfig(config_groups={"group_0": scheme}, ignore=untouched))
    modules: list[Any] = [module for _, module in model.named_modules() if is_module_quantized(module)]
    for module in modules:
        extremes = _blocks(module.weight.detach().float(), arguments)
        scale, zero = calculate_qparams(extremes.amin(-1), extremes.amax(-1), arguments)
        module.weight_scale.data.copy_(scale.reshape(module.weight_scale.shape))
        if hasattr(module, "weight_zero_point"):
            module.weight_zero_point.data.copy_(zero.reshape(module.weight_zero_point.shape))
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(directory)
    compressor.update_config(str(directory))
    for file in TOKENIZER_FILES:
        shutil.copyfile(source / file, directory / file)
    return directory, decompressed(directory, scheme)


def decompressed(directory: Path, scheme: QuantizationScheme) -> dict[str, np.ndarray]:
    """Weights by name, as the library decompresses them; scales are handed to it as float32, since it would round to
    their dtype."""
    saved = load_file(directory / "model.safetensors")
    assert scheme.format is not None
    library: Any = BaseCompressor.get_value_from_registry(scheme.format)
    weights: dict[str, np.ndarray] = {}
    for name in saved:
        stem = name.removesuffix(".weight_scale")
        if stem == name:
            continue
        parts = {key.removeprefix(f"{stem}."): one for key, one in saved.items() if key.startswith(f"{stem}.weight")}
        parts["weight_scale"] = parts["weight_scale"].float()
        weights[f"{stem}.weight"] = library.decompress(parts, scheme)["weight"].numpy()
    return weights


def _blocks(weight: torch.Tensor, arguments: QuantizationArgs) -> torch.Tensor:
    """[..., weights that share a scale]."""
    lines, columns = weight.shape
    if arguments.strategy == "block":
        assert arguments.block_structure is not None
        height, width = arguments.block_structure
        whole = torch.nn.functional.pad(weight, (0, -columns % width, 0, -lines % height))
        blocks = whole.reshape(whole.shape[0] // height, height, whole.shape[1] // width, width)
        return blocks.transpose(1, 2).flatten(-2)
    if arguments.strategy == "tensor":
        return weight.flatten()
    return weight.reshape(lines, -1, arguments.group_size or columns)
