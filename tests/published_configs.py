"""config.json as Qwen publishes it for Qwen2.5-0.5B, Qwen3-0.6B and Qwen3.5-0.8B, with fewer layers."""

import copy
from typing import Any

Document = dict[str, Any]

QWEN2: Document = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
    "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
    "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
    "num_hidden_layers": 5, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 32768, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True,
    "use_mrope": False, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN3: Document = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "eos_token_id": 151645, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960,
    "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 5,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000,
    "sliding_window": None, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_sliding_window": False,
    "vocab_size": 151936,
}  # fmt: skip
QWEN3_5_TEXT: Document = {
    "attention_bias": False, "attn_output_gate": True, "dtype": "bfloat16", "eos_token_id": 248044,
    "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": 1024,
    "intermediate_size": 3584, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 16, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144, "model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1,
    "num_attention_heads": 8, "num_hidden_layers": 9, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
    "rope_parameters": {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
                        "rope_theta": 10000000, "rope_type": "default"},
    "tie_word_embeddings": True, "vocab_size": 248320,
}  # fmt: skip
QWEN3_5: Document = {
    "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config": QWEN3_5_TEXT,
    "tie_word_embeddings": True, "vision_config": {"depth": 1, "model_type": "qwen3_5"},
}  # fmt: skip
PUBLISHED = {"qwen2": QWEN2, "qwen3": QWEN3, "qwen3_5": QWEN3_5, "qwen3_5_text": QWEN3_5_TEXT}

ABSENT = object()


def edited(model: str, **changes: Any) -> Document:
    """A published config with keys of its text level changed or taken away (ABSENT)."""
    document = copy.deepcopy(PUBLISHED[model])
    text = document.get("text_config", document)
    for key, value in changes.items():
        if value is ABSENT:
            text.pop(key, None)
        else:
            text[key] = value
    return document
