"""transformers is the oracle: its configuration objects, and its models built from them without memory."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import write_json
from published_configs import ABSENT, QWEN2, QWEN3, QWEN3_5, QWEN3_5_TEXT, Document, edited
from qpack_packager.checkpoint.model_config import DeltaConfig, ModelConfig, read_model_config


def as_transformers_reads(document: Document, directory: Path) -> ModelConfig:
    """What the model that transformers builds from this config.json is made of."""
    write_json(directory / "config.json", document)
    config = transformers.AutoConfig.from_pretrained(directory)
    text = config.get_text_config()
    family = {"Qwen2Config": "qwen2", "Qwen3Config": "qwen3", "Qwen3_5TextConfig": "qwen3_5"}[type(text).__name__]
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(text)
    decoder = model.model
    attention = next(layer.self_attn for layer in decoder.layers if hasattr(layer, "self_attn"))
    linear = [layer.linear_attn for layer in decoder.layers if hasattr(layer, "linear_attn")]
    levels = ("", "/text_config") if "text_config" in document else ("",)
    return ModelConfig(
        family=family,
        architecture=(document.get("architectures") or [type(model).__name__])[0],
        layers=tuple(
            "linear_attention" if hasattr(layer, "linear_attn") else "full_attention" for layer in decoder.layers
        ),
        hidden_size=decoder.embed_tokens.weight.shape[1],
        intermediate_size=decoder.layers[0].mlp.gate_proj.weight.shape[0],
        attention_heads=attention.o_proj.weight.shape[1] // attention.head_dim,
        kv_heads=attention.k_proj.weight.shape[0] // attention.head_dim,
        head_dim=attention.head_dim,
        rotary_dim=2 * decoder.rotary_emb.inv_freq.shape[0],
        rope_theta=text.rope_parameters["rope_theta"],
        rms_norm_eps=decoder.norm.variance_epsilon if hasattr(decoder.norm, "variance_epsilon") else decoder.norm.eps,
        vocab_size=decoder.embed_tokens.weight.shape[0],
        max_context=text.max_position_embeddings,
        attention_bias=frozenset(
            name for name in ("q", "k", "v", "o") if getattr(attention, f"{name}_proj").bias is not None
        ),
        declared_tied=tuple(
            (f"{level}/tie_word_embeddings", config.tie_word_embeddings if level == "" else text.tie_word_embeddings)
            for level in levels
            if "tie_word_embeddings" in (document["text_config"] if level else document)
        ),
        declared_dtype=str(text.dtype).removeprefix("torch.") if text.dtype else None,
        delta=DeltaConfig(
            key_heads=linear[0].num_k_heads,
            value_heads=linear[0].num_v_heads,
            key_dim=linear[0].head_k_dim,
            value_dim=linear[0].head_v_dim,
            conv_kernel=linear[0].conv_kernel_size,
        )
        if linear
        else None,
    )


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(QWEN2, id="Qwen2.5 as published: rope_theta, torch_dtype, no head_dim, biases that no key names"),
        edited("qwen2", num_key_value_heads=None),
        edited("qwen2", head_dim=32),
        edited("qwen2", tie_word_embeddings=ABSENT, torch_dtype=ABSENT, architectures=ABSENT),
        pytest.param(QWEN3, id="Qwen3 as published: rope_scaling null"),
        edited("qwen3", head_dim=ABSENT),
        edited("qwen3", attention_bias=True),
        edited("qwen3", tie_word_embeddings=False),
        edited("qwen3", dtype="float16"),
        edited("qwen3", layer_types=["full_attention"] * 5),
        edited("qwen3", use_sliding_window=True, sliding_window=4096),  # from layer 28 on, of 5
        edited("qwen3", use_sliding_window=True, sliding_window=None, max_window_layers=0),
        pytest.param(QWEN3_5, id="Qwen3.5 as published: nested, full_attention_interval, mrope"),
        pytest.param(QWEN3_5_TEXT, id="Qwen3.5 text only: flat, no architectures"),
        edited("qwen3_5", full_attention_interval=ABSENT),
        edited("qwen3_5", full_attention_interval=3),
        edited("qwen3_5", full_attention_interval=2, layer_types=["full_attention", *["linear_attention"] * 8]),
        edited("qwen3_5", head_dim=ABSENT, attention_bias=True),
        edited("qwen3_5", tie_word_embeddings=False),  # unlike the top level, see vllm#53170
        edited("qwen3_5", linear_num_key_heads=4, linear_key_head_dim=64, linear_conv_kernel_dim=3),
    ],
)
def test_every_form_is_read_as_transformers_builds_it(document: Document, tmp_path: Path):
    assert read_model_config(document, "config.json") == as_transformers_reads(document, tmp_path)


@pytest.mark.parametrize("model", ["qwen2", "qwen3", "qwen3_5"])
def test_the_default_rope_is_the_same_in_every_spelling(model: str):
    """nano-vllm#167."""
    same = {"rope_theta": 5e6, "partial_rotary_factor": ABSENT, "rope_scaling": ABSENT, "rope_parameters": ABSENT}
    forms = [
        same,
        {**same, "rope_scaling": None},
        {**same, "rope_scaling": {"rope_type": "default"}},
        {**same, "rope_scaling": {"type": "default"}},
        {**same, "rope_parameters": {"rope_type": "default", "rope_theta": 5e6}, "rope_theta": ABSENT},
        {**same, "rope_parameters": {"rope_theta": 5e6}, "rope_scaling": None, "rope_theta": 7},
    ]
    first, *others = [read_model_config(edited(model, **form), "config.json") for form in forms]
    assert first.rope_theta == 5e6
    assert all(other == first for other in others)


THETAS = st.sampled_from([ABSENT, 10000, 1e6, 5000000.0])
FACTORS = st.sampled_from([ABSENT, 0.25, 0.5, 1.0])
TYPES = st.sampled_from(
    [{}, {"rope_type": "default"}, {"type": "default"}, {"rope_type": "default", "type": "default"}]
)


@st.composite
def ropes(draw: st.DrawFn) -> Any:
    keys = {"rope_theta": draw(THETAS), "partial_rotary_factor": draw(FACTORS)}
    rope = {**draw(TYPES), **{key: value for key, value in keys.items() if value is not ABSENT}}
    return draw(st.sampled_from([ABSENT, None, rope]))


@given(st.sampled_from(["qwen3_5", "qwen3_5_text"]), ropes(), ropes(), THETAS, FACTORS)
def test_every_mixture_of_rope_keys_is_read_as_transformers_reads_it(
    model: str, scaling: Any, parameters: Any, theta: Any, factor: Any
):
    document = edited(
        model, rope_scaling=scaling, rope_parameters=parameters, rope_theta=theta, partial_rotary_factor=factor
    )
    ours = read_model_config(copy.deepcopy(document), "config.json")
    text = transformers.Qwen3_5TextConfig(**document.get("text_config", document))
    theirs: dict[str, Any] = dict(text.rope_parameters or {})
    assert ours.rope_theta == theirs["rope_theta"]
    assert ours.rotary_dim == 256 * theirs["partial_rotary_factor"]


@pytest.mark.parametrize(("top", "nested"), [(True, False), (False, True), (ABSENT, False), (True, ABSENT)])
def test_each_level_that_declares_the_tie_is_kept_with_its_pointer(top: Any, nested: Any):
    """vllm#53170: which of them holds, only the tensors can say."""
    document = edited("qwen3_5", tie_word_embeddings=nested)
    document["tie_word_embeddings"] = top
    if top is ABSENT:
        del document["tie_word_embeddings"]
    expected = [("/tie_word_embeddings", top), ("/text_config/tie_word_embeddings", nested)]
    declared = read_model_config(document, "config.json").declared_tied
    assert list(declared) == [(pointer, value) for pointer, value in expected if value is not ABSENT]


@pytest.mark.parametrize(
    ("dtype", "torch_dtype", "declared"),
    [
        ("bfloat16", "float16", "bfloat16"),
        (ABSENT, "float16", "float16"),
        (None, "float16", "float16"),
        (ABSENT, None, None),
    ],
)
def test_dtype_wins_over_torch_dtype(dtype: Any, torch_dtype: Any, declared: str | None):
    document = edited("qwen2", dtype=dtype, torch_dtype=torch_dtype)
    assert read_model_config(document, "config.json").declared_dtype == declared


@pytest.mark.parametrize(("nested", "declared"), [("bfloat16", "bfloat16"), (ABSENT, "float32")])
def test_the_dtype_of_the_text_level_wins_over_the_top_level(nested: Any, declared: str):
    document = edited("qwen3_5", dtype=nested) | {"torch_dtype": "float32"}
    assert read_model_config(document, "config.json").declared_dtype == declared
