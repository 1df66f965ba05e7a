import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import CONFIG_MAPPING

from published_configs import ABSENT, PUBLISHED, QWEN3_5, edited
from qpack_packager.checkpoint.model_config import read_model_config
from qpack_schemas.errors import InputError, UnsupportedError

SUPPORTED = {"qwen2", "qwen3", "qwen3_5", "qwen3_5_text"}
OTHERS = sorted({*CONFIG_MAPPING.keys(), "qwen", "qwen5", "", "Qwen3"} - SUPPORTED)

SIZES = {
    "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "rms_norm_eps", "vocab_size",
    "max_position_embeddings", "num_key_value_heads",
}  # fmt: skip
DELTA_SIZES = {
    "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
    "linear_conv_kernel_dim",
}  # fmt: skip
REQUIRED = [(model, key) for model in PUBLISHED for key in sorted(SIZES | (DELTA_SIZES if "5" in model else set()))]


def unsupported(document: Any) -> UnsupportedError:
    with pytest.raises(UnsupportedError) as caught:
        read_model_config(document, "config.json")
    return caught.value


def wrong(document: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        read_model_config(document, "config.json")
    return caught.value


def test_every_other_model_type_is_refused_by_its_name():
    for model_type in OTHERS:
        error = unsupported(edited("qwen3", model_type=model_type))
        assert repr(model_type) in error.message
        assert error.where == "config.json#/model_type"
        assert "qwen3_5" in error.remedy


@pytest.mark.parametrize(
    ("model_type", "kind"),
    [
        ("qwen2_moe", "mixture of experts"),
        ("qwen3_moe", "mixture of experts"),
        ("qwen3_5_moe", "mixture of experts"),
        ("qwen3_5_moe_text", "mixture of experts"),
        ("qwen3_next", "Qwen3-Next"),
        ("qwen4_exp", "Qwen3.8-Flash-Next"),
        ("qwen2_vl", "vision-language"),
        ("qwen2_5_vl", "vision-language"),
        ("qwen3_vl", "vision-language"),
        ("qwen3_omni_moe", "multimodal"),
        ("qwen3_asr", "audio"),
    ],
)
def test_a_qwen_that_is_not_supported_is_told_what_it_is(model_type: str, kind: str):
    assert kind in unsupported(edited("qwen3", model_type=model_type)).message


@pytest.mark.parametrize("model_type", ["qwen3_5_moe_text", "qwen3", "llama"])
def test_another_model_inside_text_config_is_refused(model_type: str):
    error = unsupported(edited("qwen3_5", model_type=model_type))
    assert repr(model_type) in error.message
    assert error.where == "config.json#/text_config/model_type"


@pytest.mark.parametrize(
    "architecture", ["Qwen3ForSequenceClassification", "Qwen3Model", "Qwen3MoeForCausalLM", "Qwen2ForCausalLM"]
)
def test_another_architecture_of_a_known_model_type_is_refused(architecture: str):
    error = unsupported(edited("qwen3", architectures=[architecture]))
    assert repr(architecture) in error.message
    assert error.where == "config.json#/architectures"


YARN = {"factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("model", "changes", "pointer", "shown"),
    [
        ("qwen2", {"rope_scaling": {"type": "yarn", **YARN}}, "/rope_scaling/type", "'yarn'"),
        ("qwen3", {"rope_scaling": {"rope_type": "yarn", **YARN}}, "/rope_scaling/rope_type", "'yarn'"),
        ("qwen3", {"rope_parameters": {"rope_type": "linear", "factor": 2}}, "/rope_parameters/rope_type", "'linear'"),
        ("qwen3_5", {"rope_parameters": {"rope_type": "yarn"}}, "/text_config/rope_parameters/rope_type", "'yarn'"),
        ("qwen3", {"rope_parameters": {"full_attention": {"rope_theta": 1}}}, "/rope_parameters/full_attention", ""),
        ("qwen3", {"partial_rotary_factor": 0.5}, "/partial_rotary_factor", "0.5"),
        ("qwen3_5", {"rope_parameters": None, "partial_rotary_factor": 2}, "/text_config/partial_rotary_factor", "2"),
        ("qwen3", {"rope_scaling": {"partial_rotary_factor": 0.5}}, "/rope_scaling/partial_rotary_factor", "0.5"),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 2}, "/sliding_window", "32768"),
        ("qwen3", {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": 64}, "/sliding_window", "64"),
        ("qwen3", {"layer_types": ["full_attention"] * 4 + ["sliding_attention"]}, "/layer_types/4", "sliding"),
        ("qwen3", {"layer_types": ["linear_attention"] * 5}, "/layer_types/0", "'linear_attention'"),
        ("qwen2", {"hidden_act": "gelu"}, "/hidden_act", '"gelu"'),
        ("qwen3_5", {"attn_output_gate": False}, "/text_config/attn_output_gate", "false"),
        ("qwen3", {"is_causal": False}, "/is_causal", "false"),
        ("qwen3", {"auto_map": {"AutoModelForCausalLM": "modeling_x.X"}}, "/auto_map", "modeling_x.X"),
        ("qwen3", {"per_layer_config": {"0": {"intermediate_size": 1}}}, "/per_layer_config", "intermediate_size"),
    ],
)  # fmt: skip
def test_what_is_not_implemented_is_refused_naming_field_and_value(
    model: str, changes: dict[str, Any], pointer: str, shown: str
):
    read_model_config(edited(model), "config.json")  # refused for the change alone
    error = unsupported(edited(model, **changes))
    assert error.where == f"config.json#{pointer}"
    assert shown in error.message


@pytest.mark.parametrize(
    ("model", "changes", "pointer", "shown"),
    [
        ("qwen3", {"head_dim": 127}, "/head_dim", "127"),
        ("qwen3_5_text", {"rope_parameters": ABSENT, "head_dim": 36}, "/head_dim", "9"),
        ("qwen3_5_text", {"layer_types": ["full_attention"] * 8}, "/layer_types", "8"),
        ("qwen2", {"num_attention_heads": 15}, "/num_attention_heads", "15"),
        ("qwen2", {"hidden_size": 897}, "/hidden_size", "897"),
        ("qwen3", {"num_key_value_heads": 3}, "/num_attention_heads", "num_key_value_heads 3"),
        ("qwen3_5_text", {"linear_num_value_heads": 24}, "/linear_num_value_heads", "linear_num_key_heads 16"),
    ],
)  # fmt: skip
def test_sizes_that_contradict_each_other_are_refused_naming_both(
    model: str, changes: dict[str, Any], pointer: str, shown: str
):
    error = wrong(edited(model, **changes))
    assert error.where == f"config.json#{pointer}"
    assert shown in error.message


@pytest.mark.parametrize("field", ["auto_map", "per_layer_config"])
def test_the_top_level_is_looked_at_as_well(field: str):
    document = {**copy.deepcopy(QWEN3_5), field: {"x": "y"}}
    assert unsupported(document).where == f"config.json#/{field}"


@pytest.mark.parametrize("field", ["auto_map", "per_layer_config", "rope_scaling", "layer_types"])
def test_null_is_as_good_as_absent(field: str):
    for model in PUBLISHED:
        document = edited(model, **{field: None})
        assert read_model_config(document, "here") == read_model_config(edited(model, **{field: ABSENT}), "here")


@pytest.mark.parametrize(("model", "key"), REQUIRED)
def test_a_missing_required_key_is_named(model: str, key: str):
    error = wrong(edited(model, **{key: ABSENT}))
    assert repr(key) in error.message
    assert error.where == ("config.json#/text_config" if model == "qwen3_5" else "config.json")


def test_a_missing_model_type_is_named():
    assert "'model_type'" in wrong(edited("qwen3", model_type=ABSENT)).message


@pytest.mark.parametrize("value", ["896", 896.5, True, [896], 0, -896])
@pytest.mark.parametrize(
    "key", sorted({*SIZES, *DELTA_SIZES, "head_dim", "full_attention_interval"} - {"rms_norm_eps"})
)
def test_a_size_of_a_wrong_type_is_named_with_its_value(key: str, value: Any):
    error = wrong(edited("qwen3_5", **{key: value}))
    assert error.where == f"config.json#/text_config/{key}"
    assert str(value).lower().strip("[]") in error.message


@pytest.mark.parametrize(
    ("key", "value", "pointer"),
    [
        ("rms_norm_eps", "1e-6", "/rms_norm_eps"),
        ("rope_theta", "1e6", "/rope_theta"),
        ("rope_theta", 10**400, "/rope_theta"),
        ("rope_scaling", "yarn", "/rope_scaling"),
        ("rope_scaling", {"rope_type": 1}, "/rope_scaling/rope_type"),
        ("rope_scaling", {"rope_theta": -1}, "/rope_scaling/rope_theta"),
        ("tie_word_embeddings", "true", "/tie_word_embeddings"),
        ("attention_bias", 1, "/attention_bias"),
        ("torch_dtype", 16, "/torch_dtype"),
        ("layer_types", "full_attention", "/layer_types"),
        ("layer_types", ["full_attention", None], "/layer_types/1"),
        ("architectures", "Qwen3ForCausalLM", "/architectures"),
        ("model_type", 3, "/model_type"),
        ("text_config", [], "/text_config"),
        ("use_sliding_window", "no", "/use_sliding_window"),
    ],
)
def test_any_value_of_a_wrong_type_is_named_with_its_pointer(key: str, value: Any, pointer: str):
    assert wrong(edited("qwen3", **{key: value})).where == f"config.json#{pointer}"


JSON = st.recursive(
    st.sampled_from([None, True, False, "", "default", "yarn"]) | st.integers(-2, 300) | st.floats(0, 1e7),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["rope_type", "x"]), inner, max_size=2),
)
KEYS = sorted({key for model in ("qwen2", "qwen3", "qwen3_5_text") for key in PUBLISHED[model]} | {"rope_scaling"})


@given(st.sampled_from(sorted(PUBLISHED)), st.dictionaries(st.sampled_from(KEYS), JSON, min_size=1, max_size=4))
def test_any_value_anywhere_is_read_or_refused_and_never_crashes(model: str, changes: dict[str, Any]):
    try:
        config = read_model_config(edited(model, **changes), "config.json")
    except (InputError, UnsupportedError):
        return
    assert set(config.layers) <= {"full_attention", "linear_attention"}
    assert config.attention_heads % config.kv_heads == 0
    assert config.rotary_dim % 2 == 0
    assert 0 < config.rotary_dim <= config.head_dim


@pytest.mark.parametrize("document", [[], "qwen3", None, 7])
def test_a_config_that_is_no_object_is_refused(document: Any):
    assert wrong(document).where == "config.json"
