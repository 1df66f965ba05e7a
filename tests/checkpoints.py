"""Makes checkpoint directories for tests, with the safetensors library and transformers, never with the packager."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file

Tensors = Mapping[str, np.ndarray]

ASSETS = Path(__file__).parent / "assets"
TINY_QWEN3, TINY_QWEN3_5 = ASSETS / "tiny-qwen3", ASSETS / "tiny-qwen3_5"
INDEX = "model.safetensors.index.json"
FIRST_SHARD, SECOND_SHARD = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")

_SIZES = {
    "vocab_size": 512, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 2048, "eos_token_id": 511, "pad_token_id": 509,
}  # fmt: skip
_FAMILY_SIZES: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen3": {"head_dim": 64},
    "qwen3_5": {
        "head_dim": 64, "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    },
}  # fmt: skip


def numbers(*names: str) -> Tensors:
    """Four different float32 numbers under each name, where it does not matter what the tensors are."""
    return {name: np.arange(4 * i, 4 * i + 4, dtype=np.float32) for i, name in enumerate(names)}


def read_config(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "config.json").read_text(encoding="utf-8"))


def read_tensors(directory: Path) -> dict[str, np.ndarray]:
    """Every tensor of every safetensors file under its own name, as the safetensors library reads it."""
    tensors = {name: t for file in sorted(directory.glob("*.safetensors")) for name, t in load_file(file).items()}
    return {name: _to_numpy(tensor) for name, tensor in tensors.items()}


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def write_checkpoint(
    directory: Path, config: Mapping[str, Any], tensors: Tensors, *, shards: int = 1, tokenizer: Path = TINY_QWEN3
) -> Path:
    """A checkpoint of these tensors, over `shards` files with an index if there are several. Returns `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", config)
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer / name, directory / name)
    if shards == 1:
        write_weights(directory / "model.safetensors", tensors)
        return directory
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        held = names[len(names) * shard // shards : len(names) * (shard + 1) // shards]
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        write_weights(directory / file, {name: tensors[name] for name in held})
        weight_map |= dict.fromkeys(held, file)
    total_size = sum(tensor.nbytes for tensor in tensors.values())
    write_json(directory / INDEX, {"metadata": {"total_size": total_size}, "weight_map": weight_map})
    return directory


def write_weights(file: Path, tensors: Tensors) -> None:
    save_file(
        {name: np.ascontiguousarray(tensor).reshape(tensor.shape) for name, tensor in tensors.items()},
        file,
        metadata={"format": "pt"},
    )


def random_checkpoint(
    directory: Path, family: str, *, tied: bool = True, dtype: str = "bfloat16", seed: int = 0, **sizes: Any
) -> Path:
    """A small untrained model of "qwen2", "qwen3" or "qwen3_5", made and saved by transformers. `sizes` are keys of its
    config.json. Norms, biases and decays are random too, so that none of them can be forgotten unnoticed."""
    import transformers  # takes seconds, and few tests need it

    name = {"qwen2": "Qwen2", "qwen3": "Qwen3", "qwen3_5": "Qwen3_5"}[family]
    config_class = getattr(transformers, f"{name}TextConfig" if family == "qwen3_5" else f"{name}Config")
    config = config_class(**{**_SIZES, **_FAMILY_SIZES[family], "tie_word_embeddings": tied, **sizes})
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = getattr(transformers, f"{name}ForCausalLM")(config)
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn_like(parameter)
        model.to(getattr(torch, dtype)).save_pretrained(directory)
    for file in TOKENIZER_FILES:
        shutil.copyfile(TINY_QWEN3 / file, directory / file)
    return directory


def published_form(source: Path, directory: Path, *, shards: int = 2) -> Path:
    """The text-only Qwen3.5 checkpoint `source` as Qwen publishes its models: Qwen3_5ForConditionalGeneration with a
    nested config, the prefix `model.language_model.`, a (small, random) vision tower and a prediction head `mtp.*`."""
    text, tensors = read_config(source), read_tensors(source)
    vision, tower = _vision_tower(text["hidden_size"])
    only_on_top = ("architectures", "transformers_version")
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "image_token_id": 248056,
        "model_type": "qwen3_5",
        "text_config": {
            **{key: value for key, value in text.items() if key not in only_on_top},
            "attn_output_gate": True,
            "full_attention_interval": 4,
            "mamba_ssm_dtype": "float32",
            "mtp_num_hidden_layers": 1,
            "mtp_use_dedicated_embeddings": False,
        },
        "tie_word_embeddings": text["tie_word_embeddings"],
        "transformers_version": text["transformers_version"],
        "video_token_id": 248057,
        "vision_config": vision,
        "vision_end_token_id": 248054,
        "vision_start_token_id": 248053,
    }
    language = {
        name.replace("model.", "model.language_model.", 1): tensor.astype(np.float32)
        if name.endswith((".A_log", ".linear_attn.norm.weight"))  # as published: float32 amid bfloat16
        else tensor
        for name, tensor in tensors.items()
    }
    full_layer = text["layer_types"].index("full_attention")
    tensors = {**language, **tower, **_prediction_head(tensors, f"model.layers.{full_layer}.")}
    return write_checkpoint(directory, config, tensors, shards=shards, tokenizer=source)


def _vision_tower(hidden_size: int) -> tuple[dict[str, Any], Tensors]:
    from transformers import Qwen3_5VisionConfig, Qwen3_5VisionModel

    sizes: dict[str, Any] = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "patch_size": 4,
             "num_position_embeddings": 16, "out_hidden_size": hidden_size}  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        state = Qwen3_5VisionModel(Qwen3_5VisionConfig(**sizes)).state_dict()
    tensors = {f"model.visual.{name}": _to_numpy(tensor.to(torch.bfloat16)) for name, tensor in state.items()}
    return {"model_type": "qwen3_5", **sizes}, tensors  # that model_type is wrong, but published so


def _prediction_head(text: Tensors, full_layer: str) -> Tensors:
    norm = text["model.norm.weight"]
    fc = np.random.default_rng(0).normal(0, 0.02, (norm.size, 2 * norm.size)).astype(ml_dtypes.bfloat16)
    layer = {
        name.replace(full_layer, "mtp.layers.0."): tensor
        for name, tensor in text.items()
        if name.startswith(full_layer)
    }
    norms = ("mtp.norm.weight", "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight")
    return {"mtp.fc.weight": fc, **layer, **dict.fromkeys(norms, norm)}


def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype == torch.bfloat16:  # which torch cannot hand to numpy
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()
