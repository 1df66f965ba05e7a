"""A bundle built of its own export holds the same weights: what an export gives away, an import takes back."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bundles import SMALL, build_bundle
from checkpoints import TINY_QWEN3, TINY_QWEN3_5, read_config, read_tensors, write_checkpoint, write_json, write_weights
from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.export.bundle_weights import BundleWeights
from qpack_packager.export.compressed_tensors import CompressedTensors
from qpack_packager.export.export import FormatName
from qpack_packager.quantize import int8
from qpack_packager.recipe import find_recipe, read_recipe
from qpack_schemas.bundle import Bundle, open_bundle
from qpack_schemas.errors import UnsupportedError
from random_weights import KINDS, draw_weight

from .conftest import CASES, Built
from .exports import decompress, exported, read
from .made_bundles import bundle_of

FORMATS: tuple[FormatName, ...] = ("compressed-tensors", "gptq")
INT4_LAYERS = [case for case in CASES if case != "int8 and dense layers"]
LAYER = "model.layers.0.mlp.up_proj"
ATTENTION, DELTA = "*.self_attn.o_proj.weight", "*.linear_attn.out_proj.weight"


def digests(bundle: Bundle) -> dict[str, str]:
    return {name: tensor["sha256"] for name, tensor in bundle.manifest["tensors"].items()}


def forms(bundle: Bundle) -> set[str]:
    """Of the matrices of layers that may have any."""
    weights = [weight for weight in BundleWeights(bundle).weights if weight.name.endswith("_proj.weight")]
    return {weight.form for weight in weights}


def rules(recipe: str) -> tuple[tuple[str, str], ...]:
    pairs = [rule.rsplit("=", 1) for rule in read_recipe(find_recipe(recipe))["module"]]
    return tuple((glob, form) for glob, form in pairs)


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("case", INT4_LAYERS)
def test_a_bundle_of_its_export_has_the_same_weights(
    case: str, format_name: FormatName, built: Callable[[str], Built], tmp_path: Path
):
    """Every tensor to the byte, also int8 ones, whose codes went out as numbers and are rounded again."""
    made = built(case)
    again = build_bundle(made.export(format_name), tmp_path / "again", CASES[case].options)
    assert digests(open_bundle(made.bundle)) == digests(open_bundle(again))


@pytest.mark.parametrize(
    ("source", "asked", "made"),
    [
        (TINY_QWEN3, rules("qwen3-small"), {"int4", "int8"}),
        (TINY_QWEN3_5, rules("qwen3.5-small"), {"int4", "int8"}),
        (TINY_QWEN3, (("*.layers.0.*", "int8"), (ATTENTION, "bf16")), {"int4", "int8", "dense"}),
        (TINY_QWEN3_5, (("*.layers.0.*", "int8"), (DELTA, "bf16")), {"int4", "int8", "dense"}),
        (TINY_QWEN3, (("*", "int8"),), {"int8"}),
        (TINY_QWEN3, (("*.q_proj.weight", "int8"), ("*.[kv]_proj.weight", "int8"), ("*", "bf16")), {"int8", "dense"}),
    ],
    ids=["recipe of qwen3", "recipe of qwen3.5", "three forms", "three forms of qwen3.5", "int8", "int8 and dense"],
)
def test_int8_layers_come_back_without_a_rule(
    source: Path, asked: tuple[tuple[str, str], ...], made: set[str], tmp_path: Path
):
    """Every tensor to the byte, and what the checkpoint has as numbers stays numbers."""
    first = open_bundle(build_bundle(source, tmp_path / "bundle", replace(SMALL, rules=asked)))
    assert forms(first) == made
    checkpoint = exported(first.path, tmp_path / "export", "compressed-tensors")
    again = open_bundle(build_bundle(checkpoint, tmp_path / "again"))
    assert digests(again) == digests(first)


@given(seed=st.integers(0, 2**32 - 1), kind=KINDS, most=st.sampled_from([0, 1, 2, 8, 128]))
def test_any_int8_codes_that_a_build_makes_are_found_again(
    tmp_path_factory: pytest.TempPathFactory, seed: int, kind: str, most: int
):
    """Those of groups with few weights, or none, as well. Scales too small for a normal number have many spellings of
    the same weights."""
    weight = draw_weight(seed, 8, 2, kind).astype(np.float32)
    weight.reshape(8, 2, 128)[..., most:] = 0
    made = int8.quantize(weight)
    assume(not np.any((made.scales > 0) & (made.scales < np.finfo(np.float32).tiny)))
    folder = tmp_path_factory.mktemp("codes")
    tensors = {"w.q": made.codes, "w.scale": made.scales}
    kinds = {"w.q": "int8_codes", "w.scale": "int8_scales"}
    weights = BundleWeights(bundle_of(folder / "bundle", tensors, kinds, [f"{LAYER}.weight"], weight.shape))
    export = CompressedTensors(weights, weights.weights)
    stored = {entry.name: np.concatenate(list(entry.pieces())) for entry in export.entries(weights.weights[0])}
    config = {**read_config(TINY_QWEN3), "quantization_config": export.quantization_config([])}
    tensor = Checkpoint.open(ModelText(write_checkpoint(folder / "model", config, stored))).tensors[f"{LAYER}.weight"]
    again = int8.quantize(tensor.lines(0, 8))
    assert np.array_equal(again.codes, made.codes)
    assert again.scales.tobytes() == made.scales.tobytes()
    assert not again.squared_error.any()


def test_an_asymmetric_checkpoint_is_given_back(built: Callable[[str], Built], tmp_path: Path):
    """float16 scales and zero points as they came, in a float16 model."""
    source, rng = changed(built("tied, int8 both").export("gptq"), tmp_path / "source"), np.random.default_rng(0)
    before = read_tensors(source)
    for name, tensor in before.items():
        if name.endswith(".qzeros"):
            before[name] = rng.integers(-(2**31), 2**31, tensor.shape, np.int32)
    write_weights(source / "model.safetensors", before)
    config = read_config(source)
    config["quantization_config"] |= {"sym": False, "checkpoint_format": "gptq_v2"}
    write_json(source / "config.json", config)
    bundle = build_bundle(source, tmp_path / "bundle", CASES["tied, int8 both"].options)
    checkpoint = exported(bundle, tmp_path / "gptq", "gptq")
    assert read_config(checkpoint)["dtype"] == "float16"
    assert read_config(checkpoint)["quantization_config"] == config["quantization_config"]
    after = read_tensors(checkpoint)
    assert set(after) == set(before)
    assert {after[name].dtype.name for name in before if name.endswith(".scales")} == {"float16"}
    assert [name for name in before if after[name].tobytes() != before[name].tobytes()] == []

    other = exported(bundle, tmp_path / "compressed-tensors", "compressed-tensors")
    (group,) = read_config(other)["quantization_config"]["config_groups"].values()
    assert group["weights"]["symmetric"] is False
    weights, tensors = BundleWeights(open_bundle(bundle)), read(other)
    for weight in (weight for weight in weights.weights if weight.asymmetric):
        found = decompress(tensors, weight.name.rpartition(".")[0], read_config(other)["quantization_config"])
        np.testing.assert_array_equal(found, weights.numbers(weight, 0, weight.shape[0]))


def test_scales_of_two_dtypes_are_refused(built: Callable[[str], Built], tmp_path: Path):
    """A layer that its checkpoint left unquantized and a rule made int8 has bfloat16 scales."""
    layer = "model.layers.0.mlp.down_proj"
    source = changed(built("tied, int8 both").export("gptq"), tmp_path / "source", dense=layer)
    options = replace(CASES["tied, int8 both"].options, rules=((f"{layer}.weight", "int8"),))
    bundle = build_bundle(source, tmp_path / "bundle", options)
    with pytest.raises(UnsupportedError, match=rf"bfloat16 in {layer}.weight and float16 in .*one dtype"):
        exported(bundle, tmp_path / "export", "compressed-tensors")


def changed(export: Path, folder: Path, *, dense: str = "") -> Path:
    """A copy of the export with its scales in float16, and perhaps a layer of numbers."""
    shutil.copytree(export, folder)
    tensors = read_tensors(export)
    tensors |= {name: tensor.astype(np.float16) for name, tensor in tensors.items() if name.endswith(".scales")}
    if dense:
        shape = (tensors[f"{dense}.scales"].shape[1], tensors[f"{dense}.g_idx"].shape[0])
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(dense)}
        tensors[f"{dense}.weight"] = np.linspace(-1, 1, shape[0] * shape[1], dtype=np.float32).reshape(shape)
    write_weights(folder / "model.safetensors", tensors)
    return folder
