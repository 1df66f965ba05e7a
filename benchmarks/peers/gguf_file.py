"""A Qwen3 checkpoint as a GGUF file, unquantized; for llama.cpp and for OpenVINO, which reads its files."""

# pyright: reportMissingImports=false

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, get_tensor_name_map
from gguf.constants import MODEL_ARCH
from ml_dtypes import bfloat16

from qpack_schemas.tensor_file import read_spans

ARCHITECTURE = "qwen3"
FILE_TYPES = {"bf16": 32, "f16": 1}  # LLAMA_FTYPE_MOSTLY_ of llama.h


def write_gguf(checkpoint: Path, output: Path, form: Literal["bf16", "f16"]) -> None:
    """Matrices in bfloat16 as they are, or rounded to float16; vectors in float32, as llama.cpp wants them. Keys and
    tensor names as https://github.com/ggml-org/ggml/blob/master/docs/gguf.md has them. Nothing is at `output` unless
    the file is whole."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != ARCHITECTURE:
        raise ValueError(f"{checkpoint}: the model is {config['model_type']}, this writer knows {ARCHITECTURE} only")
    partial = output.with_suffix(".partial")
    writer = GGUFWriter(partial, ARCHITECTURE)
    writer.add_file_type(FILE_TYPES[form])
    _describe(writer, config)
    _add_vocabulary(writer, json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8")), config)
    names = get_tensor_name_map(MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    file = checkpoint / "model.safetensors"
    data = np.memmap(file, np.uint8, mode="r")
    for name, span in read_spans(file).items():
        ours = names.get_name(name, try_suffixes=(".weight",))
        if ours is None or span.dtype != "BF16":
            raise ValueError(f"{file}: {name} of dtype {span.dtype} has no place in a GGUF file")
        values = data[span.begin : span.begin + span.bytes].view(bfloat16).reshape(span.shape)
        if values.ndim == 1:
            writer.add_tensor(ours, values.astype(np.float32))
        elif form == "f16":
            writer.add_tensor(ours, values.astype(np.float16))
        else:
            writer.add_tensor(ours, values.view(np.uint8), raw_dtype=GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(output)


def _describe(writer: GGUFWriter, config: dict[str, Any]) -> None:
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(float(theta))


def _add_vocabulary(writer: GGUFWriter, tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    special = {added["id"]: added["content"] for added in tokenizer["added_tokens"]}
    tokens = {number: text for text, number in tokenizer["model"]["vocab"].items()} | special
    ids = range(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([tokens[number] for number in ids])
    writer.add_token_types([TokenType.CONTROL if number in special else TokenType.NORMAL for number in ids])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(config["eos_token_id"])
