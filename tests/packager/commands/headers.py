"""Checkpoints of a published size that hold no weights: the right header over a hole in the file."""

import json
import math
import shutil
import struct
from pathlib import Path
from typing import Any

import torch

from checkpoints import TINY_QWEN3, TOKENIZER_FILES, write_json
from published_configs import edited

_CLASSES = {"qwen2": "Qwen2", "qwen3": "Qwen3", "qwen3_5": "Qwen3_5"}


def write_headers(directory: Path, model: str, **changes: Any) -> Path:
    """`model` of tests/published_configs.py with tensors as transformers names and shapes them, all bfloat16 zeros."""
    document = edited(model, eos_token_id=511, **changes)  # the tokenizer is that of a tiny model
    config = document.get("text_config", document)
    shapes = {name: shape for name, shape in _shapes(model, config).items() if name != "lm_head.weight"}
    header, place = {}, 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [place, place + size]}
        place += size
    raw = json.dumps(header).encode()
    directory.mkdir()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + place)
    write_json(directory / "config.json", document)
    for name in TOKENIZER_FILES:
        shutil.copyfile(TINY_QWEN3 / name, directory / name)
    return directory


def _shapes(model: str, config: dict[str, Any]) -> dict[str, list[int]]:
    import transformers

    name, skipped = _CLASSES[model], ("architectures", "model_type", "dtype", "torch_dtype")
    config_class = getattr(transformers, f"{name}TextConfig" if model == "qwen3_5" else f"{name}Config")
    with torch.device("meta"):
        made = getattr(transformers, f"{name}ForCausalLM")(
            config_class(**{key: value for key, value in config.items() if key not in skipped})
        )
    return {name: list(tensor.shape) for name, tensor in made.state_dict().items()}
