"""Quantized checkpoints become bundles without a weight being changed, or nothing at all."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from click.testing import CliRunner

from bundles import SMALL, build_bundle
from checkpoints import TINY_QWEN3, TINY_QWEN3_5, random_checkpoint, read_config, read_tensors, write_checkpoint
from compressed_checkpoints import compressed_checkpoint
from executors import REFERENCE, host_executor
from oracle import EMBEDDING, HEAD, bundle_tensors, quantized_sources, source_tensors, transformers_model, vocabulary
from packed_checkpoints import AWQ_CONFIG, GPTQ_CONFIG, awq, gptq, packed_checkpoint
from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.checkpoint.packed import awq as awq_format
from qpack_packager.checkpoint.packed import compressed_tensors as compressed_format
from qpack_packager.checkpoint.packed import gptq as gptq_format
from qpack_packager.checkpoint.packed.nibbles import by_shifts
from qpack_packager.checkpoint.source_tensor import as_packed
from qpack_packager.cli import main
from qpack_packager.weights import imported
from qpack_schemas.bundle import Bundle, open_bundle
from qpack_schemas.errors import InputError, UsageError

V2 = {**GPTQ_CONFIG, "checkpoint_format": "gptq_v2"}
COLUMNS = {**GPTQ_CONFIG, "group_size": -1}
COMPRESSED = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
UNTIED: dict[str, Any] = {"tied": False, "hidden_size": 192, "intermediate_size": 200, "num_attention_heads": 6}

Weights = Mapping[str, np.ndarray]
Case = Callable[[Path], tuple[Path, Path, Weights]]  # folder -> checkpoint, what it was made of, weights


def packed(config: Mapping[str, Any], pack: Any, source: Path | None = None, **settings: Any) -> Case:
    """Of an untied Qwen2 whose K is no multiple of 128, unless there is a source."""

    def make(folder: Path) -> tuple[Path, Path, Weights]:
        origin = source or random_checkpoint(folder / "source", "qwen2", initializer_range=0.1, **UNTIED)
        path, weights = packed_checkpoint(folder / "model", origin, config, pack, **settings)
        return path, origin, {name: weight.values for name, weight in weights.items()}

    return make


def compressed(source: Path, **weights: Any) -> Case:
    def make(folder: Path) -> tuple[Path, Path, Weights]:
        path, values = compressed_checkpoint(folder / "model", source, **weights)
        return path, source, values

    return make


CASES: dict[str, Case] = {
    "gptq": packed(GPTQ_CONFIG, gptq, TINY_QWEN3),
    "gptq asymmetric": packed(GPTQ_CONFIG, gptq, TINY_QWEN3_5, symmetric=False, dtype=ml_dtypes.bfloat16),
    "gptq_v2 asymmetric": packed(V2, partial(gptq, version=2), TINY_QWEN3, symmetric=False),
    "gptq with a head and short groups": packed(GPTQ_CONFIG, gptq, symmetric=False, head=True),
    "gptq with one group a line": packed(COLUMNS, partial(gptq, g_idx=False), TINY_QWEN3_5, size=-1),
    "awq": packed(AWQ_CONFIG, awq, TINY_QWEN3_5, symmetric=False),
    "awq with bfloat16 scales": packed(AWQ_CONFIG, awq, TINY_QWEN3, symmetric=False, dtype=ml_dtypes.bfloat16),
    "compressed": compressed(TINY_QWEN3_5, symmetric=True, **COMPRESSED),
    "compressed asymmetric": compressed(TINY_QWEN3, symmetric=False, dtype=torch.float16, **COMPRESSED),
}


@pytest.mark.parametrize("case", CASES)
def test_a_weight_that_is_held_is_the_one_in_its_file(case: str, tmp_path: Path):
    path, _, _ = CASES[case](tmp_path)
    checkpoint = Checkpoint.open(ModelText(path))
    held = checkpoint.holding(checkpoint.tensors)
    (path / "model.safetensors").rename(tmp_path / "away")
    kept = dict(pieces(held))
    (tmp_path / "away").rename(path / "model.safetensors")
    assert kept
    for place, arrays in pieces(checkpoint):
        for one, other in zip(arrays, kept.pop(place), strict=True):
            assert np.array_equal(one, other)
    assert not kept


def pieces(checkpoint: Checkpoint) -> Iterator[tuple[tuple[str, int, int], list[np.ndarray]]]:
    """Some lines of every packed weight, as its format has them and as codes."""
    for name, tensor in checkpoint.tensors.items():
        if packed := as_packed(tensor):
            for first, last in ((0, packed.shape[0]), (0, 8), (24, 32), (8, packed.shape[0] - 8)):
                codes = [array for array in vars(packed.codes(first, last)).values() if array is not None]
                yield (name, first, last), [packed.lines(first, last), *codes]


def joined(bundle: Bundle) -> dict[str, np.ndarray]:
    """Weights of layers and of an int4 head by checkpoint name, the halves of q_proj put together."""
    found, model = quantized_sources(bundle), bundle.manifest["model"]
    for query in [name for name in found if name.endswith("#query")]:
        name = query.removesuffix("#query")
        halves = [found.pop(f"{name}#{part}") for part in ("query", "gate")]
        heads = [half.reshape(model["attention_heads"], model["head_dim"], -1) for half in halves]
        found[name] = np.stack(heads, axis=1).reshape(2 * len(halves[0]), -1)
    if "lm_head.q" in bundle.manifest["tensors"] and bundle.manifest["quant"]["lm_head"] == "int4":
        found[HEAD] = vocabulary(bundle)[1]
    return found


@pytest.mark.parametrize("case", CASES)
def test_every_weight_of_the_bundle_is_the_librarys_bit_by_bit(case: str, tmp_path: Path):
    checkpoint, source, weights = CASES[case](tmp_path)
    bundle = open_bundle(build_bundle(checkpoint, tmp_path / "bundle", replace(SMALL, dtype="float32")))
    found = joined(bundle)
    assert found.keys() == weights.keys()
    for name, lines in weights.items():
        assert np.array_equal(found[name], lines), name
    stored, given = bundle_tensors(bundle), read_tensors(source)
    zeros = [name for name in stored if name.endswith(".zero")]
    assert bool(zeros) == ("asymmetric" in case or "awq" in case or "head" in case)
    for name, tensor in bundle.manifest["tensors"].items():
        if tensor["form"] == "dense":
            lines = np.concatenate([given[part].reshape(len(given[part]), -1) for part in tensor["sources"]])
            kept = stored[name].reshape(-1)[: lines.size].astype(np.float32)
            assert np.array_equal(kept, lines.reshape(-1).astype(np.float32)), name


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers_on_the_librarys_weights(case: str, tmp_path: Path):
    checkpoint, source, weights = CASES[case](tmp_path)
    options = replace(SMALL, dtype="float32", embedding="bf16", lm_head="bf16")
    booted = REFERENCE.boot(build_bundle(checkpoint, tmp_path / "bundle", options))
    state = source_tensors(source)
    state = {**state, HEAD: state.get(HEAD, state[EMBEDDING]), **weights}
    model = transformers_model(source, dict(state))
    ids = [(17 * i + 5) % 500 for i in range(40)]
    with torch.no_grad():
        wanted = model(torch.tensor([ids]), use_cache=False).logits[0, -1].numpy()
    booted.engine.prefill_chunk(1, 0, ids)
    (bucket,) = booted.engine.runs
    got = host_executor(booted).io(bucket)["logits"][0][: len(wanted)]
    assert np.abs(got - wanted).max() <= 1e-4 * np.abs(wanted).max()


@pytest.mark.parametrize("strategy", ["channel", "tensor", "block"])
def test_fp8_gives_the_bundle_of_its_dequantized_weights(strategy: str, tmp_path: Path):
    weights: dict[str, Any] = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy}
    weights |= {"block_structure": [128, 128]} if strategy == "block" else {}
    path, values = compressed_checkpoint(tmp_path / "fp8", TINY_QWEN3_5, **weights)
    plain = {**read_tensors(TINY_QWEN3_5), **values}
    numbers = write_checkpoint(tmp_path / "plain", read_config(TINY_QWEN3_5), plain)
    ours, wanted = (open_bundle(build_bundle(model, tmp_path / f"{model.name} bundle")) for model in (path, numbers))
    assert {n: t["sha256"] for n, t in ours.manifest["tensors"].items()} == {
        n: t["sha256"] for n, t in wanted.manifest["tensors"].items()
    }


def test_fp8_beside_codes_is_rounded_as_it_is_alone(tmp_path: Path):
    """Layers of both kinds, as LLM Compressor's mixed-precision has them."""
    name = "model.layers.1.self_attn.o_proj"
    path, _ = compressed_checkpoint(tmp_path / "int4", TINY_QWEN3, symmetric=True, **COMPRESSED)
    scale = np.full(1, 0.02, np.float32)
    weight = (read_tensors(TINY_QWEN3)[f"{name}.weight"] / scale).astype(ml_dtypes.float8_e4m3fn)
    held = {key: tensor for key, tensor in read_tensors(path).items() if not key.startswith(name)}
    held |= {f"{name}.weight": weight, f"{name}.weight_scale": scale}
    config = read_config(path)
    config["quantization_config"]["format"] = "mixed-precision"
    config["quantization_config"]["config_groups"]["group_1"] = {
        "targets": [name],
        "format": "float-quantized",
        "weights": {"num_bits": 8, "type": "float", "strategy": "tensor"},
    }
    checkpoint = write_checkpoint(tmp_path / "mixed", config, held)
    bundle = open_bundle(build_bundle(checkpoint, tmp_path / "bundle"))
    assert bundle.manifest["tensors"]["layers.1.attn.o.q"]["form"] == "marlin_codes"
    values = weight.astype(np.float32) * scale
    error = np.linalg.norm(quantized_sources(bundle)[f"{name}.weight"] - values) / np.linalg.norm(values)
    assert 0 < error < 0.15


def test_what_the_checkpoint_leaves_as_it_is_stays_so_and_the_manifest_says_why(tmp_path: Path):
    name = "model.layers.1.self_attn.o_proj"
    plain = read_tensors(TINY_QWEN3)[f"{name}.weight"]
    changes = {f"{name}.{part}": None for part in ("qweight", "qzeros", "scales", "g_idx")} | {f"{name}.weight": plain}
    config = GPTQ_CONFIG | {"modules_to_not_convert": [name]}
    path, _ = packed_checkpoint(tmp_path / "model", TINY_QWEN3, config, gptq, changes=changes)
    bundle = open_bundle(build_bundle(path, tmp_path / "bundle"))
    assert np.array_equal(bundle_tensors(bundle)["layers.1.attn.o.weight"].view(np.uint16), plain.view(np.uint16))
    (rule,) = [rule for rule in bundle.manifest["quant"]["kept"] if "quantized checkpoint" in rule["reason"]]
    assert rule["tensors"] == 1


def test_biases_of_zero_are_no_obstacle(tmp_path: Path):
    """As AutoGPTQ gives them to Qwen2's o_proj and MLP."""
    origin = random_checkpoint(tmp_path / "source", "qwen2", **UNTIED)
    empty = {
        f"model.layers.{i}.{linear}.bias": np.zeros(lines, np.float16)
        for i in range(2)
        for linear, lines in (("self_attn.o_proj", 192), ("mlp.up_proj", 200), ("mlp.down_proj", 192))
    }
    path, _ = packed_checkpoint(tmp_path / "model", origin, GPTQ_CONFIG, gptq, changes=empty)
    assert build_bundle(path, tmp_path / "bundle").exists()


def test_qpack_plan_shows_what_the_build_makes(tmp_path: Path):
    path, _ = packed_checkpoint(tmp_path / "model", TINY_QWEN3, AWQ_CONFIG, awq, symmetric=False)
    result = CliRunner().invoke(main, ["plan", str(path), "--format", "json"])
    assert result.exit_code == 0, result.output
    assert build_bundle(path, tmp_path / "bundle").exists()


# An import that would change a weight is noticed by the build itself.

BACKWARDS = (7, 6, 5, 4, 3, 2, 1, 0)
pack_as_it_is = imported.pack
WRONG: dict[str, tuple[Any, Any, Any, str, Any]] = {
    "the order of awq": (AWQ_CONFIG, awq, awq_format, "WRITTEN", awq_format.READ),
    "the order of awq when checking": (AWQ_CONFIG, awq, awq_format, "READ", awq_format.WRITTEN),
    "the order of gptq": (GPTQ_CONFIG, gptq, gptq_format, "by_shifts", lambda words: by_shifts(words, BACKWARDS)),
    "the zeros of gptq": (V2, partial(gptq, version=2), gptq_format, "by_shifts", lambda words: by_shifts(words) ^ 1),
    "the order of the bundle": (GPTQ_CONFIG, gptq, imported, "pack", lambda codes: pack_as_it_is(codes[::-1].copy())),
    "the scales of the bundle": (GPTQ_CONFIG, gptq, imported, "permute_scales", lambda scales: scales),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_order_is_noticed_by_the_build(wrong: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    config, pack, module, name, value = WRONG[wrong]
    path, _ = packed_checkpoint(tmp_path / "model", TINY_QWEN3, config, pack, symmetric=False)
    monkeypatch.setattr(module, name, value)
    with pytest.raises(InputError, match=r"imported, weight \[\d+, \d+\] is .*; \d+ of \d+ weights differ") as error:
        build_bundle(path, tmp_path / "bundle")
    assert error.value.where.startswith("model.layers.0.self_attn.")
    assert not (tmp_path / "bundle").exists()


def test_a_wrong_order_of_compressed_codes_is_noticed_by_the_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    path, _ = compressed_checkpoint(tmp_path / "model", TINY_QWEN3, symmetric=False, **COMPRESSED)
    monkeypatch.setattr(compressed_format, "by_bytes", lambda words: by_shifts(words)[..., ::-1])
    with pytest.raises(InputError, match="compressed-tensors makes it"):
        build_bundle(path, tmp_path / "bundle")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_scale_that_is_no_number_is_refused_with_its_place(value: float, tmp_path: Path):
    name = "model.layers.2.mlp.down_proj"
    path, weights = packed_checkpoint(tmp_path / "model", TINY_QWEN3, GPTQ_CONFIG, gptq)
    scales = weights[f"{name}.weight"].scales.T.copy()
    scales[1, 77] = value
    path, _ = packed_checkpoint(tmp_path / "model", TINY_QWEN3, GPTQ_CONFIG, gptq, changes={f"{name}.scales": scales})
    with pytest.raises(InputError, match=f"the scale of line 77, columns 128 and on, is {value}") as error:
        build_bundle(path, tmp_path / "bundle")
    assert error.value.where == f"{name}.weight"


def test_a_scale_that_makes_a_weight_infinite_is_refused(tmp_path: Path):
    name, bfloat16 = "model.layers.2.mlp.down_proj", ml_dtypes.bfloat16
    path, weights = packed_checkpoint(tmp_path / "model", TINY_QWEN3, GPTQ_CONFIG, gptq, dtype=bfloat16)
    scales = weights[f"{name}.weight"].scales.T.copy()
    scales[1, 77] = 3e38
    changes = {f"{name}.scales": scales}
    path, _ = packed_checkpoint(tmp_path / "model", TINY_QWEN3, GPTQ_CONFIG, gptq, dtype=bfloat16, changes=changes)
    with pytest.raises(InputError, match="weights are infinite") as error:
        build_bundle(path, tmp_path / "bundle")
    assert error.value.where == f"{name}.weight"


def test_joined_weights_with_scales_of_two_dtypes_are_refused_with_both(tmp_path: Path):
    name = "model.layers.0.self_attn.v_proj"
    path, weights = packed_checkpoint(tmp_path / "model", TINY_QWEN3, GPTQ_CONFIG, gptq)
    scales = weights[f"{name}.weight"].scales.T.astype(ml_dtypes.bfloat16)
    path, _ = packed_checkpoint(tmp_path / "model", TINY_QWEN3, GPTQ_CONFIG, gptq, changes={f"{name}.scales": scales})
    with pytest.raises(InputError) as error:
        build_bundle(path, tmp_path / "bundle")
    assert f"bfloat16 ({name}.weight)" in str(error.value)
    assert "float16 (model.layers.0.self_attn.q_proj.weight)" in str(error.value)


def test_joined_weights_of_which_one_is_not_quantized_are_refused(tmp_path: Path):
    name = "model.layers.0.self_attn.v_proj"
    changes = {f"{name}.{part}": None for part in ("qweight", "qzeros", "scales", "g_idx")}
    changes |= {f"{name}.weight": read_tensors(TINY_QWEN3)[f"{name}.weight"]}
    path, _ = packed_checkpoint(tmp_path / "model", TINY_QWEN3, GPTQ_CONFIG, gptq, changes=changes)
    for rules in ((), ((f"{name}.weight", "int4"),)):
        with pytest.raises(UsageError) as error:
            build_bundle(path, tmp_path / "bundle", replace(SMALL, rules=rules))
        assert name in str(error.value)
        assert "all of them" in error.value.remedy
        assert "rule" not in error.value.remedy


@pytest.mark.parametrize(
    "weights", [{"strategy": "channel", "symmetric": True}, {"strategy": "group", "group_size": 32, "symmetric": False}]
)
def test_int8_gives_the_bundle_of_its_dequantized_weights(weights: dict[str, Any], tmp_path: Path):
    """Rounded to int8 without a rule, and what a rule asks for of numbers else."""
    path, values = compressed_checkpoint(tmp_path / "int8", TINY_QWEN3_5, num_bits=8, type="int", **weights)
    plain = {**read_tensors(TINY_QWEN3_5), **values}
    numbers = write_checkpoint(tmp_path / "plain", read_config(TINY_QWEN3_5), plain)
    asked = (("*.o_proj.weight", "int4"), ("*.down_proj.weight", "bf16"))
    same = (*asked, *((name, "int8") for name in values if not name.endswith(("o_proj.weight", "down_proj.weight"))))
    bundles = [(path, asked), (numbers, same)]
    ours, wanted = (
        open_bundle(build_bundle(model, tmp_path / f"{model.name} bundle", replace(SMALL, rules=rules)))
        for model, rules in bundles
    )
    assert {n: t["sha256"] for n, t in ours.manifest["tensors"].items()} == {
        n: t["sha256"] for n, t in wanted.manifest["tensors"].items()
    }
    forms = {t["form"] for n, t in ours.manifest["tensors"].items() if n.endswith((".o.q", ".down.weight", ".out.q"))}
    assert forms == {"marlin_codes", "dense", "int8_codes"}
