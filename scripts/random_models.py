"""Checkpoints of published shapes with random weights: what decides the speed of a model, and none of its knowledge."""

import json
import shutil
import struct
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

Config = dict[str, Any]
Shape = tuple[int, ...]
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
SHARD = 5_000_000_000  # bytes of weights in a file, unless one tensor is larger: as checkpoints are published
END = 511  # an id of the tiny models' tokenizer, which stands in

# config.json of Qwen/Qwen3-0.6B and of the text models of Qwen/Qwen3.5-0.8B and 9B, as far as it decides shapes.
QWEN3_06B: Config = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "eos_token_id": END, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960,
    "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN3_5_08B: Config = {
    "architectures": ["Qwen3_5ForCausalLM"], "attention_bias": False, "attn_output_gate": True, "dtype": "bfloat16",
    "eos_token_id": END, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": 1024,
    "intermediate_size": 3584, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 16, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144, "model_type": "qwen3_5_text", "num_attention_heads": 8,
    "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
    "rope_parameters": {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
                        "rope_theta": 10000000, "rope_type": "default"},
    "tie_word_embeddings": True, "vocab_size": 248320,
}  # fmt: skip
QWEN3_5_9B: Config = QWEN3_5_08B | {
    "hidden_size": 4096, "intermediate_size": 12288, "linear_num_value_heads": 32, "num_attention_heads": 16,
    "num_hidden_layers": 32, "num_key_value_heads": 4, "tie_word_embeddings": False,
}  # fmt: skip
RANDOM_MODELS = {"qwen3-0.6b": QWEN3_06B, "qwen3.5-0.8b": QWEN3_5_08B}


def write_model(folder: Path, config: Config, tokenizer: Path, *, seed: int = 0) -> Path:
    """A checkpoint directory with bfloat16 weights, made a tensor at a time, in shards of SHARD bytes; the same bytes
    for the same seed. Its tokenizer is that of the checkpoint `tokenizer`. Returns `folder`."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer / name, folder / name)
    generator = np.random.default_rng(seed)
    shards = _shards(dict(shapes_of(config)))
    names = [f"model-{index:05}-of-{len(shards):05}.safetensors" for index in range(1, len(shards) + 1)]
    if len(shards) == 1:
        names = ["model.safetensors"]
    else:
        places = {tensor: name for name, shapes in zip(names, shards, strict=True) for tensor in shapes}
        size = sum(2 * prod(shape) for shapes in shards for shape in shapes.values())
        index = {"metadata": {"total_size": size}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    for name, shapes in zip(names, shards, strict=True):
        _write_shard(folder / name, shapes, config, generator)
    return folder


def _shards(shapes: Mapping[str, Shape]) -> list[dict[str, Shape]]:
    shards, left = list[dict[str, Shape]](), 0
    for name, shape in shapes.items():
        left -= 2 * prod(shape)
        if left < 0:
            shards.append({})
            left = SHARD - 2 * prod(shape)
        shards[-1][name] = shape
    return shards


def _write_shard(path: Path, shapes: Mapping[str, Shape], config: Config, generator: np.random.Generator) -> None:
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    # Layout: https://huggingface.co/docs/safetensors
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            file.write(_values(name, shape, config, generator).astype(ml_dtypes.bfloat16).view(np.uint8).data)


def shapes_of(config: Config) -> Iterator[tuple[str, Shape]]:
    """Tensor names of transformers' Qwen3ForCausalLM and Qwen3_5ForCausalLM, each with its shape."""
    hidden, wide, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    hybrid = config["model_type"] == "qwen3_5_text"
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{name}.{norm}.weight", (hidden,)
        if hybrid and (layer + 1) % config["full_attention_interval"]:
            yield from _delta_shapes(f"{name}.linear_attn", config)
        else:
            yield f"{name}.self_attn.q_proj.weight", (queries * (2 if hybrid else 1), hidden)  # with a gate
            yield f"{name}.self_attn.k_proj.weight", (keys, hidden)
            yield f"{name}.self_attn.v_proj.weight", (keys, hidden)
            yield f"{name}.self_attn.o_proj.weight", (hidden, queries)
            yield f"{name}.self_attn.q_norm.weight", (dim,)
            yield f"{name}.self_attn.k_norm.weight", (dim,)
        yield f"{name}.mlp.gate_proj.weight", (wide, hidden)
        yield f"{name}.mlp.up_proj.weight", (wide, hidden)
        yield f"{name}.mlp.down_proj.weight", (hidden, wide)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], hidden)


def _delta_shapes(name: str, config: Config) -> Iterator[tuple[str, Shape]]:
    hidden, heads = config["hidden_size"], config["linear_num_value_heads"]
    values = heads * config["linear_value_head_dim"]
    channels = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"] + values
    yield f"{name}.in_proj_qkv.weight", (channels, hidden)
    yield f"{name}.in_proj_z.weight", (values, hidden)
    yield f"{name}.in_proj_b.weight", (heads, hidden)
    yield f"{name}.in_proj_a.weight", (heads, hidden)
    yield f"{name}.conv1d.weight", (channels, 1, config["linear_conv_kernel_dim"])
    yield f"{name}.A_log", (heads,)
    yield f"{name}.dt_bias", (heads,)
    yield f"{name}.norm.weight", (config["linear_value_head_dim"],)
    yield f"{name}.out_proj.weight", (hidden, values)


def _values(name: str, shape: Shape, config: Config, generator: np.random.Generator) -> np.ndarray:
    """Normal with a deviation of 0.02, so that activations stay in the range of a trained model; norms multiply by
    about 1, decays are those of an initialized model: A from 1 to 16."""
    if name.endswith(".A_log"):
        return np.log(generator.uniform(1, 16, shape))
    values = generator.standard_normal(shape, np.float32)
    values *= np.float32(0.3 if "conv1d" in name else 0.02)
    if name.endswith("norm.weight"):  # Qwen3.5 stores weight - 1, but for the norm inside the delta mixer
        values += config["model_type"] != "qwen3_5_text" or "linear_attn" in name
    return values
