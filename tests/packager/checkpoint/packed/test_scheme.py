"""The tensors decide how a checkpoint is quantized; config.json must say the same."""

import json
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import TINY_QWEN3, TINY_QWEN3_5, published_form, read_config, read_tensors, write_checkpoint
from packed_checkpoints import AWQ_CONFIG, GPTQ_CONFIG, awq, gptq, packed_checkpoint, quantize
from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.checkpoint.packed import gptq as gptq_format
from qpack_packager.checkpoint.packed.nibbles import by_shifts
from qpack_schemas.errors import InputError, QpackError, UnsupportedError

STEM = "model.layers.0.mlp.up_proj"
WEIGHT = quantize(
    np.random.default_rng(0).normal(0, 1, (16, 128)), np.zeros(128, int), symmetric=True, dtype=np.float16
)
STORED = {
    "gptq": gptq(WEIGHT),
    "awq": awq(WEIGHT),
    "fp8": {"weight": np.zeros((16, 128), np.uint8).view("float8_e4m3fn"), "weight_scale": np.ones(1, np.float32)},
    "plain": {"weight": np.zeros((16, 128), np.float16)},
}


def refusal(kind: type[QpackError], folder: Path, stored: str, config: Mapping[str, Any]) -> str:
    tensors = {f"{STEM}.{part}": np.ascontiguousarray(one) for part, one in STORED[stored].items()}
    with pytest.raises(kind) as caught:
        Checkpoint.open(ModelText(write_checkpoint(folder, {**read_config(TINY_QWEN3), **config}, tensors)))
    assert caught.value.where
    assert caught.value.remedy
    return str(caught.value)


AGREE = {("gptq", "gptq"), ("awq", "awq"), ("fp8", "fp8"), ("fp8", "compressed-tensors")}
OTHERS = [pair for pair in product(STORED, ("gptq", "awq", "fp8", "compressed-tensors")) if pair not in AGREE]


@pytest.mark.parametrize(("stored", "method"), OTHERS)
def test_tensors_that_config_contradicts_are_refused_with_both_facts(stored: str, method: str, tmp_path: Path):
    message = refusal(InputError, tmp_path, stored, {"quantization_config": {"quant_method": method}})
    assert "config.json#/quantization_config/quant_method" in message
    assert repr(method) in message
    if stored != "plain":
        assert f"stored as {stored}" in message
        assert STEM in message


@pytest.mark.parametrize("stored", ["gptq", "awq", "fp8"])
def test_quantized_tensors_without_a_config_are_refused_with_both_facts(stored: str, tmp_path: Path):
    """What is in a stored zero, and whether columns are in order, the tensors do not say."""
    message = refusal(InputError, tmp_path, stored, {})
    assert f"stored as {stored}" in message
    assert STEM in message
    assert "config.json has no quantization_config" in message


@pytest.mark.parametrize("method", ["bitsandbytes", "hqq", "aqlm", "mxfp4", "torchao", "auto-round", "modelopt"])
def test_every_other_method_is_refused_by_its_name(method: str, tmp_path: Path):
    message = refusal(UnsupportedError, tmp_path, "plain", {"quantization_config": {"quant_method": method}})
    assert repr(method) in message
    assert "qpack reads gptq" in message


def test_settings_at_two_levels_that_differ_are_refused_with_both(tmp_path: Path):
    config = read_config(published_form(TINY_QWEN3_5, tmp_path / "published"))
    config["quantization_config"] = GPTQ_CONFIG
    config["text_config"]["quantization_config"] = AWQ_CONFIG
    message = refusal(InputError, tmp_path / "model", "gptq", config)
    assert "config.json#/text_config/quantization_config" in message
    assert "differs from /quantization_config" in message


def test_settings_may_stand_at_any_level_and_under_their_old_name(tmp_path: Path):
    published = published_form(TINY_QWEN3_5, tmp_path / "published")
    path, weights = packed_checkpoint(tmp_path / "model", published, GPTQ_CONFIG, gptq)
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    settings = config.pop("quantization_config")
    for level, key in ((config, "compression_config"), (config["text_config"], "quantization_config")):
        level[key] = settings
        tensors = Checkpoint.open(ModelText(write_checkpoint(tmp_path / key, config, read_tensors(path)))).tensors
        del level[key]
        for name, weight in weights.items():
            if not name.startswith("mtp."):
                found = tensors[name.replace("model.language_model.", "model.")]
                assert np.array_equal(found.lines(0, found.shape[0]), weight.values)


def test_what_is_dropped_may_be_stored_in_any_way(tmp_path: Path):
    """The vision tower and the prediction layers, whose shapes need fit nothing."""
    published = published_form(TINY_QWEN3_5, tmp_path / "published")
    odd = {f"mtp.layers.0.mlp.up_proj.{part}": np.ones((3, 5), np.int32) for part in ("qweight", "scales")}
    path, _ = packed_checkpoint(tmp_path / "model", published, GPTQ_CONFIG, gptq, changes=odd)
    assert "mtp.layers.0.mlp.up_proj.qweight" in Checkpoint.open(ModelText(path)).tensors


NAMES = ("qweight", "qzeros", "scales", "g_idx", "weight", "weight_scale", "weight_scale_inv", "weight_packed",
         "weight_shape", "weight_zero_point", "weight_g_idx")  # fmt: skip
KINDS = ("int32", "int64", "float16", "bfloat16", "float32", "float8_e4m3fn")
SHAPES = st.lists(st.sampled_from([0, 1, 2, 8, 16, 128, 256]), max_size=3)


@given(
    st.sampled_from(["gptq", "awq", "fp8", "compressed-tensors"]),
    st.dictionaries(st.sampled_from(NAMES), st.tuples(st.sampled_from(KINDS), SHAPES), min_size=1, max_size=4),
    st.integers(-1, 3),
)
def test_parts_of_any_shape_are_read_or_refused_and_never_crash(
    tmp_path_factory: pytest.TempPathFactory, method: str, parts: dict[str, tuple[str, list[int]]], value: int
):
    tensors = {f"{STEM}.{part}": np.full(shape, value).astype(kind) for part, (kind, shape) in parts.items()}
    config = {**read_config(TINY_QWEN3), "quantization_config": {"quant_method": method}}
    directory = write_checkpoint(tmp_path_factory.mktemp("parts"), config, tensors)
    try:
        found = Checkpoint.open(ModelText(directory)).tensors
    except (InputError, UnsupportedError):
        return
    for tensor in found.values():
        assert tensor.lines(0, 1).shape == (1, *tensor.shape[1:])


@pytest.mark.parametrize("part", ["scales", "weight_scale", "g_idx", "input_scale"])
def test_a_part_without_its_weight_is_refused_by_name(part: str, tmp_path: Path):
    tensors = {f"{STEM}.weight": STORED["plain"]["weight"], f"{STEM}.{part}": np.ones(3, np.float16)}
    config = {**read_config(TINY_QWEN3), "quantization_config": GPTQ_CONFIG}
    with pytest.raises(UnsupportedError, match=f"{STEM}.{part}"):
        Checkpoint.open(ModelText(write_checkpoint(tmp_path, config, tensors)))


def test_scales_of_a_rounded_cache_are_not_used(tmp_path: Path):
    """As compressed-tensors' kv_cache_scheme gives them to attention, and ModelOpt to k_proj and v_proj."""
    attention = "model.layers.0.self_attn"
    names = ("q_scale", "k_scale", "v_scale", "k_zero_point", "v_zero_point", "k_proj.k_scale", "v_proj.v_scale")
    extra = {f"{attention}.{name}": np.ones(1, np.float32) for name in names}
    path, weights = packed_checkpoint(tmp_path, TINY_QWEN3, AWQ_CONFIG, awq, changes=extra)
    tensors = Checkpoint.open(ModelText(path)).tensors
    assert set(weights) < set(tensors) == set(Checkpoint.open(ModelText(TINY_QWEN3)).tensors)


def test_small_projections_that_are_quantized_become_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A bundle has in_proj_a and in_proj_b dense: they have too few lines for a tile. Wrong ones are noticed."""
    name = "model.layers.0.linear_attn.in_proj_a"
    tensor = read_tensors(TINY_QWEN3_5)[f"{name}.weight"]
    lines = np.tile(tensor.astype(np.float32), (8 // len(tensor) + 1, 1))[:8]
    weight = quantize(lines, np.arange(128) // 128, symmetric=False, dtype=np.float16)
    changes = {f"{name}.weight": None, **{f"{name}.{part}": one for part, one in gptq(weight).items()}}
    path, _ = packed_checkpoint(tmp_path, TINY_QWEN3_5, GPTQ_CONFIG, gptq, changes=changes)
    found = Checkpoint.open(ModelText(path)).tensors[f"{name}.weight"]
    assert found.dtype == "float32"
    assert np.array_equal(found.lines(1, 7), weight.values[1:7])
    for wrong in ("by_bytes", "by_shifts"):
        with monkeypatch.context() as planted:
            planted.setattr(gptq_format, wrong, lambda words: by_shifts(words) ^ 1)
            with pytest.raises(InputError, match=r"gptq makes it .* differ") as error:
                found.lines(1, 7)
        assert error.value.where.endswith(f"{name}.qweight")
