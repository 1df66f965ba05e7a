"""Exports for compressed-tensors, read by compressed-tensors and by transformers with it."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from bundles import SMALL, build_bundle
from checkpoints import random_checkpoint, read_config
from oracle import dequantized_state, transformers_model
from qpack_packager.export.bundle_weights import BundleWeights
from qpack_packager.export.compressed_tensors import CompressedTensors
from qpack_schemas.bundle import open_bundle
from qpack_schemas.errors import UnsupportedError

from .conftest import CASES, Built
from .exports import decompress, exported, made, read
from .made_bundles import bundle_of, int4_bundle

LAYER = "model.layers.0.self_attn.o_proj"
SCALES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
TOKENS = torch.tensor([[1 + 7 * i % 500 for i in range(60)]])


@pytest.mark.parametrize("case", CASES)
def test_transformers_computes_what_it_computes_on_the_bundles_weights(case: str, built: Callable[[str], Built]):
    """In float32, which holds every product of a code and a scale."""
    checkpoint = built(case).export("compressed-tensors")
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    bundle = open_bundle(built(case).bundle)
    state = dequantized_state(bundle, built(case).checkpoint)
    weights = BundleWeights(bundle)
    for weight in weights.weights:
        if weight.form == "int8":  # which the oracle doesn't know of in layers
            state[weight.name] = weights.numbers(weight, 0, weight.shape[0])
    expected = transformers_model(built(case).checkpoint, state)
    with torch.no_grad():
        difference = (model(TOKENS).logits - expected(TOKENS).logits).abs().max()
    assert difference <= 1e-5


@pytest.mark.parametrize("case", CASES)
def test_the_library_unpacks_the_bundles_weights(case: str, built: Callable[[str], Built]):
    checkpoint = built(case).export("compressed-tensors")
    weights, tensors = BundleWeights(open_bundle(built(case).bundle)), read(checkpoint)
    config, packed = read_config(checkpoint)["quantization_config"], 0
    for weight in weights.weights:
        expected = weights.numbers(weight, 0, weight.shape[0])
        layer = weight.name.rpartition(".")[0]
        if weight.form != "dense" and f"{layer}.weight_packed" in tensors:
            packed += 1
            assert tensors[f"{layer}.weight_scale"].dtype == torch.bfloat16
            np.testing.assert_array_equal(decompress(tensors, layer, config), expected, layer)
        else:
            assert str(tensors[weight.name].dtype) == f"torch.{expected.dtype}"
            np.testing.assert_array_equal(tensors[weight.name].float().numpy(), expected.astype(np.float32))
    assert packed == sum(len(group["targets"]) for group in config["config_groups"].values())
    assert packed == len([name for name in tensors if name.endswith(".weight_packed")]) >= 14


@given(
    seed=st.integers(0, 2**32 - 1), n=st.integers(9, 150), groups=st.integers(1, 3), asymmetric=st.booleans(),
    dtype=st.sampled_from(list(SCALES)),
)  # fmt: skip
def test_any_codes_scales_and_zeros_come_back(seed: int, n: int, groups: int, asymmetric: bool, dtype: str):
    """With scales of either sign. Of up to eight lines, the library does not unpack its own zero points."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, (n, 128 * groups), dtype=np.uint8)
    scales = rng.standard_normal((n, groups)).astype(SCALES[dtype])
    zeros = rng.integers(0, 16, (n, groups), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        stored = zeros if asymmetric else None
        weights = BundleWeights(int4_bundle(Path(folder), "w", [f"{LAYER}.weight"], codes, scales, stored))
        export = CompressedTensors(weights, weights.weights)
        found = decompress(made(export.entries(weights.weights[0])), LAYER, export.quantization_config([]))
    offsets = np.repeat(zeros if asymmetric else np.full_like(zeros, 8), 128, 1).astype(np.float32)
    np.testing.assert_array_equal(found, (codes - offsets) * np.repeat(scales.astype(np.float32), 128, 1))


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 150), groups=st.integers(1, 3))
def test_any_int8_codes_come_back(seed: int, n: int, groups: int):
    rng = np.random.default_rng(seed)
    codes, scales = rng.integers(-127, 128, (n, 128 * groups)), rng.random((n, groups))
    tensors = {"w.q": codes.astype(np.int8), "w.scale": scales.astype(np.float16)}
    with tempfile.TemporaryDirectory() as folder:
        forms = {"w.q": "int8_codes", "w.scale": "int8_scales"}
        weights = BundleWeights(bundle_of(Path(folder), tensors, forms, [f"{LAYER}.weight"], codes.shape))
        export = CompressedTensors(weights, weights.weights)
        found = decompress(made(export.entries(weights.weights[0])), LAYER, export.quantization_config([]))
    np.testing.assert_array_equal(found, codes * np.repeat(tensors["w.scale"].astype(np.float32), 128, 1))


def test_layers_of_another_width_are_a_group_of_their_own(built: Callable[[str], Built]):
    """By name: engines that join layers would take the first group that targets a class for all of them."""
    config = read_config(built("int8 and dense layers").export("compressed-tensors"))["quantization_config"]
    four, eight = config["config_groups"].values()
    assert (four["weights"]["num_bits"], eight["weights"]["num_bits"]) == (4, 8)
    assert eight["targets"] == [f"model.layers.{i}.self_attn.o_proj" for i in range(4)]
    assert "Linear" not in four["targets"]
    assert config["ignore"] == ["model.layers.1.mlp.down_proj", "lm_head"]


def test_a_zero_point_of_16_is_refused(tmp_path: Path):
    codes, zeros = np.zeros((64, 128), np.uint8), np.full((64, 1), 16, np.uint8)
    bundle = int4_bundle(tmp_path, "w", [f"{LAYER}.weight"], codes, np.ones((64, 1), np.float16), zeros)
    weights = BundleWeights(bundle)
    with pytest.raises(UnsupportedError, match=rf"{LAYER}.weight: has the zero point 16, compressed-tensors has 0 to"):
        CompressedTensors(weights, weights.weights)


@pytest.mark.parametrize(
    ("name", "flag"), [(f"{LAYER}.weight", r"--module '\*\.o_proj\.weight=bf16'"), ("lm_head.weight", "--lm-head int8")]
)
def test_a_short_last_group_is_refused_with_the_flag_that_avoids_it(name: str, flag: str, tmp_path: Path):
    """The library itself raises ValueError for one."""
    bundle = int4_bundle(tmp_path, "w", [name], np.zeros((64, 200), np.uint8), np.ones((64, 2), np.float16), None)
    weights = BundleWeights(bundle)
    with pytest.raises(UnsupportedError, match=rf"{name}: its lines have 200 weights: .* would have 72.*\n.*{flag}"):
        CompressedTensors(weights, weights.weights)


def test_that_flag_makes_a_bundle_that_can_be_exported(tmp_path: Path):
    model = random_checkpoint(tmp_path / "model", "qwen2", intermediate_size=200)
    with pytest.raises(UnsupportedError, match=r"down_proj.weight: its lines have 200"):
        exported(build_bundle(model, tmp_path / "refused", SMALL), tmp_path / "export", "compressed-tensors")
    options = replace(SMALL, rules=(("*.down_proj.weight", "bf16"),))
    checkpoint = exported(build_bundle(model, tmp_path / "bundle", options), tmp_path / "export", "compressed-tensors")
    assert "model.layers.0.mlp.down_proj.weight" in read(checkpoint)
