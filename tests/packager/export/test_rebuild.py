"""A bundle built of its own export holds the same weights: what an export gives away, an import takes back."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bundles import build_bundle
from checkpoints import read_config, read_tensors, write_json, write_weights
from qpack_packager.export.bundle_weights import BundleWeights
from qpack_packager.export.export import FormatName
from qpack_schemas.bundle import open_bundle
from qpack_schemas.errors import UnsupportedError

from .conftest import CASES, Built
from .exports import decompress, exported, read

FORMATS: tuple[FormatName, ...] = ("compressed-tensors", "gptq")
INT4_LAYERS = [case for case in CASES if case != "int8 and dense layers"]


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("case", INT4_LAYERS)
def test_a_bundle_of_its_export_has_the_same_weights(
    case: str, format_name: FormatName, built: Callable[[str], Built], tmp_path: Path
):
    """Every tensor to the byte, also int8 ones, whose codes went out as numbers and are rounded again."""
    made = built(case)
    again = build_bundle(made.export(format_name), tmp_path / "again", CASES[case].options)
    before, after = open_bundle(made.bundle), open_bundle(again)
    digests = [{name: tensor["sha256"] for name, tensor in one.manifest["tensors"].items()} for one in (before, after)]
    assert digests[0] == digests[1]


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
