"""Calibration of a whole model: each module rounded by what reaches it, the same way each time, resumed or not."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from bundles import SMALL
from checkpoints import TINY_QWEN3, TINY_QWEN3_5, random_checkpoint, read_config, read_tensors, write_checkpoint
from oracle import EMBEDDING, HEAD, source_tensors, transformers_model
from qpack_packager.calibration.calibrated import Calibrated
from qpack_packager.calibration.gptq import factor
from qpack_packager.calibration.rounding import restored, round_weight
from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.lowering.lower import lower
from qpack_packager.lowering.modules import Module
from qpack_packager.quantize import rtn
from qpack_packager.quantize.groups import Quantized
from qpack_packager.serving import plan_serving
from qpack_packager.weights.lines import read_lines, spans
from qpack_schemas.errors import InputError, QualityError

WINDOWS = np.random.default_rng(0).integers(0, 512, (4, 96), dtype=np.int32)
SIZES: dict[str, Any] = {"initializer_range": 0.1, "hidden_size": 160, "intermediate_size": 200, "vocab_size": 512}


def opened(model: Path) -> tuple[Checkpoint, list[Module]]:
    """The checkpoint, and its modules in the order in which a build makes them."""
    checkpoint = Checkpoint.open(ModelText(model))
    serving = plan_serving(checkpoint.config.max_context, replace(SMALL, lm_head="int4"))
    return checkpoint, list(lower(checkpoint, serving, 512, str(model)).modules)


def layer_of(module: Module) -> float:
    """The head's is behind all."""
    return float(module.name.split(".")[1]) if module.name != "lm_head" else np.inf


def weight_of(module: Module, checkpoint: Checkpoint) -> np.ndarray:
    return read_lines(module, checkpoint, 0, module.shape[0])[:, : module.shape[1]]


def calibrate(calibrated: Calibrated, modules: list[Module]) -> dict[str, tuple[Quantized, dict[str, Any]]]:
    checkpoint = calibrated.model.checkpoint
    return {
        module.name: calibrated.quantize(module, weight_of(module, checkpoint))
        for module in modules
        if module.form == "marlin"
    }


def assert_same(ours: dict[str, tuple[Quantized, Any]], theirs: dict[str, tuple[Quantized, Any]]) -> None:
    assert list(ours) == list(theirs)
    for name, (made, log) in ours.items():
        wanted, wanted_log = theirs[name]
        assert made.codes.tobytes() == wanted.codes.tobytes(), name
        assert made.scales.tobytes() == wanted.scales.tobytes(), name
        assert log == wanted_log, name


def put(state: dict[str, np.ndarray], module: Module, made: Quantized, heads: int) -> None:
    lines = restored(made, module.shape[1])
    for rows, first, last in spans(module):
        if rows.part:
            whole = state[rows.tensor].reshape(heads, 2, -1, lines.shape[1])
            whole[:, int(rows.part == "gate")] = lines[first:last].reshape(heads, -1, lines.shape[1])
        elif rows.tensor == EMBEDDING:
            state[HEAD] = lines[first:last]
        else:
            state[rows.tensor][:] = lines[first:last]


def inputs_of(model: torch.nn.Module, module: Module) -> torch.Tensor:
    """float64 [tokens, K] of what transformers feeds to the module's first source."""
    seen: list[torch.Tensor] = []
    name = module.sources[0].tensor.removesuffix(".weight")
    linear = model.get_submodule("lm_head" if name == EMBEDDING.removesuffix(".weight") else name)
    handle = linear.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].double()))
    with torch.no_grad():
        model(torch.from_numpy(WINDOWS).long())
    handle.remove()
    return torch.cat(seen).flatten(0, 1)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "qwen3_5"])
def test_each_module_is_rounded_by_what_the_rounded_ones_before_it_give(family: str, tmp_path: Path):
    """Seen from transformers' whole model: the Hessian of its inputs with all earlier modules rounded."""
    checkpoint, modules = opened(random_checkpoint(tmp_path / "model", family, **SIZES))
    calibrated = Calibrated(checkpoint, WINDOWS, tmp_path / "work", threads=1)
    state = {name: tensor.copy() for name, tensor in source_tensors(tmp_path / "model").items()}
    state.setdefault(HEAD, state[EMBEDDING])
    for module in modules:
        if module.form != "marlin":
            continue
        weight = weight_of(module, checkpoint)
        made, log = calibrated.quantize(module, weight)
        inputs = inputs_of(transformers_model(tmp_path / "model", state), module)
        hessian = inputs.T @ inputs * (2 / len(inputs))
        damping = max(0.01, module.shape[1] / WINDOWS.size)
        wanted = round_weight(weight, factor(hessian, damping))
        assert np.mean(made.codes != wanted.quantized.codes) < 0.01, module.name  # a tie may fall otherwise
        assert log["output_error"] == pytest.approx(wanted.output_error, rel=0.01)
        assert log["rtn_output_error"] == pytest.approx(wanted.rtn_output_error, rel=1e-3)
        assert (log["tokens"], log["damping"], log["fallback"]) == (WINDOWS.size, damping, None)
        put(state, module, made, checkpoint.config.attention_heads)


@pytest.mark.parametrize("family", ["qwen2", "qwen3_5"])
def test_a_resumed_calibration_is_the_uninterrupted_one(family: str, tmp_path: Path):
    """Interrupted at each module: those that may be kept are those of the layers behind, and the others come out the
    same."""
    checkpoint, modules = opened(random_checkpoint(tmp_path / "model", family, num_hidden_layers=2, **SIZES))
    whole = calibrate(Calibrated(checkpoint, WINDOWS, tmp_path / "whole", threads=1), modules)
    marlin = [module for module in modules if module.form == "marlin"]
    for stop in range(len(marlin)):
        work = tmp_path / f"{stop}"
        first = calibrate(Calibrated(checkpoint, WINDOWS, work, threads=1), marlin[: stop + 1])
        resumed = Calibrated(checkpoint, WINDOWS, work, threads=1)
        kept = [module for module in modules if resumed.keeps(module)]
        assert [m for m in kept if m.form == "marlin"] == [m for m in marlin if layer_of(m) < layer_of(marlin[stop])]
        assert {module.name for module in modules if module.form != "marlin"} <= {module.name for module in kept}
        made = {module.name: first[module.name] for module in kept if module.form == "marlin"}
        assert_same(made | calibrate(resumed, [module for module in marlin if module not in kept]), whole)
        shutil.rmtree(work)


def test_bytes_do_not_depend_on_threads(tmp_path: Path):
    """Nor differ from one time to the next."""
    checkpoint, modules = opened(TINY_QWEN3_5)
    made = [
        calibrate(Calibrated(checkpoint, WINDOWS, tmp_path / f"{i}", threads=threads), modules)
        for i, threads in enumerate((1, 1, 3))
    ]
    assert_same(made[0], made[1])
    assert_same(made[0], made[2])


def test_activations_of_one_layer_are_on_disk_between_modules(tmp_path: Path):
    checkpoint, modules = opened(TINY_QWEN3)
    calibrated = Calibrated(checkpoint, WINDOWS, tmp_path / "work", threads=1)
    for module in modules:
        if module.form == "marlin":
            calibrated.quantize(module, weight_of(module, checkpoint))
            assert len(list((tmp_path / "work").glob("*.npy*"))) == 1


def test_a_layer_that_has_gone_by_is_not_calibrated_again(tmp_path: Path):
    checkpoint, modules = opened(TINY_QWEN3)
    marlin = [module for module in modules if module.form == "marlin"]
    calibrated = Calibrated(checkpoint, WINDOWS, tmp_path / "work", threads=1)
    calibrate(calibrated, [marlin[0], marlin[-2]])
    with pytest.raises(InputError, match=r"layer 0 is wanted again, the calibration is at layer 3"):
        calibrated.quantize(marlin[0], weight_of(marlin[0], checkpoint))


def overflowing(folder: Path) -> Path:
    """tiny-qwen3 whose layer 1 gives infinities, while all its weights are finite."""
    tensors = {name: tensor.astype(np.float32) for name, tensor in read_tensors(TINY_QWEN3).items()}
    tensors["model.layers.1.input_layernorm.weight"][:] = 3e38
    return write_checkpoint(folder, read_config(TINY_QWEN3), tensors)


def test_a_failed_hessian_is_an_error_that_names_the_module_and_the_way_out(tmp_path: Path):
    checkpoint, modules = opened(overflowing(tmp_path / "model"))
    calibrated = Calibrated(checkpoint, WINDOWS, tmp_path / "work", threads=1)
    with pytest.raises(QualityError) as caught:
        calibrate(calibrated, modules)
    assert caught.value.where == "layers.1.attn.qkv"
    assert "of 384 tokens, the Hessian can't be used: it holds NaN or infinity; 0 modules" in caught.value.message
    assert "--max-fallbacks 1" in caught.value.remedy


def test_as_many_modules_as_allowed_are_rounded_to_nearest_and_say_so(tmp_path: Path):
    checkpoint, modules = opened(overflowing(tmp_path / "model"))
    failing = [m for m in modules if m.form == "marlin" and not m.name.startswith("layers.0.")]
    made = calibrate(Calibrated(checkpoint, WINDOWS, tmp_path / "work", max_fallbacks=len(failing), threads=1), modules)
    for module in failing:
        quantized, log = made[module.name]
        plain = rtn.quantize(read_lines(module, checkpoint, 0, module.shape[0]))
        assert quantized.codes.tobytes() == plain.codes.tobytes()
        assert quantized.scales.tobytes() == plain.scales.tobytes()
        assert log == {
            "tokens": 384, "damping": None, "output_error": None, "rtn_output_error": None,
            "fallback": "the Hessian can't be used: it holds NaN or infinity",
        }  # fmt: skip
    assert made["layers.0.attn.qkv"][1]["fallback"] is None
    with pytest.raises(QualityError, match=f"{len(failing) - 1} modules have been"):
        calibrate(
            Calibrated(checkpoint, WINDOWS, tmp_path / "less", max_fallbacks=len(failing) - 1, threads=1), modules
        )


def test_fallbacks_of_an_interrupted_build_count(tmp_path: Path):
    checkpoint, modules = opened(overflowing(tmp_path / "model"))
    marlin = [module for module in modules if module.form == "marlin"]
    calibrate(Calibrated(checkpoint, WINDOWS, tmp_path / "work", max_fallbacks=5, threads=1), marlin[:9])
    resumed = Calibrated(checkpoint, WINDOWS, tmp_path / "work", max_fallbacks=5, threads=1)
    assert resumed.fallbacks == 4
    with pytest.raises(QualityError, match="5 modules have been rounded to nearest instead, 5 may be"):
        calibrate(resumed, marlin[8:])


def test_more_of_them_than_the_next_build_allows_are_an_error(tmp_path: Path):
    checkpoint, modules = opened(overflowing(tmp_path / "model"))
    marlin = [module for module in modules if module.form == "marlin"]
    calibrate(Calibrated(checkpoint, WINDOWS, tmp_path / "work", max_fallbacks=5, threads=1), marlin[:9])
    with pytest.raises(QualityError, match="has rounded 4 modules to nearest, 3 may be") as caught:
        Calibrated(checkpoint, WINDOWS, tmp_path / "work", max_fallbacks=3, threads=1)
    assert "--max-fallbacks 4" in caught.value.remedy


def test_a_text_without_a_window_is_an_error(tmp_path: Path):
    checkpoint, _ = opened(TINY_QWEN3)
    with pytest.raises(InputError, match="fills no window"):
        Calibrated(checkpoint, np.zeros((0, 512), np.int32), tmp_path)


def test_a_text_of_few_tokens_is_told(tmp_path: Path):
    checkpoint, _ = opened(TINY_QWEN3)
    (note,) = Calibrated(checkpoint, WINDOWS, tmp_path, threads=1).notes
    assert "has 384 tokens; more than 10 times the 384 inputs" in note
    assert not Calibrated(checkpoint, np.tile(WINDOWS, (10, 1)), tmp_path, threads=1).notes


@pytest.mark.parametrize("model", [TINY_QWEN3, TINY_QWEN3_5], ids=lambda model: model.name)
def test_a_calibrated_model_is_nearer_to_the_trained_one_than_a_rounded_one(model: Path, tmp_path: Path):
    """Calibrated on the first half of a held-out text, compared on the second: mean KL in nats, all in transformers."""
    checkpoint, modules = opened(model)
    ids = (
        Tokenizer.from_file(str(model / "tokenizer.json")).encode((model / "eval.txt").read_text(encoding="utf-8")).ids
    )
    half = len(ids) // 2 // 256
    windows = np.array(ids[: 2 * half * 256], np.int32).reshape(-1, 256)
    marlin = [module for module in modules if module.form == "marlin" and module.name != "lm_head"]
    made = {
        name: one
        for name, (one, _) in calibrate(
            Calibrated(checkpoint, windows[:half], tmp_path / "work", threads=1), marlin
        ).items()
    }
    plain = {module.name: rtn.quantize(read_lines(module, checkpoint, 0, module.shape[0])) for module in marlin}
    tokens = torch.from_numpy(windows[half : half + 20]).long()
    with torch.no_grad():
        wanted = torch.log_softmax(transformers_model(model)(tokens).logits.double(), -1)
        divergence = dict[str, float]()
        for method, quantized in (("gptq", made), ("rtn", plain)):
            state = {name: tensor.copy() for name, tensor in source_tensors(model).items()}
            state.setdefault(HEAD, state[EMBEDDING])
            for module in marlin:
                put(state, module, quantized[module.name], checkpoint.config.attention_heads)
            ours = torch.log_softmax(transformers_model(model, state)(tokens).logits.double(), -1)
            divergence[method] = float((wanted.exp() * (wanted - ours)).sum(-1).mean())
    assert divergence["gptq"] < 0.75 * divergence["rtn"]
