"""What is measured of a bundle is what transformers gives on its weights, and a bundle that is not sound shows it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bundles import ASSETS, build_bundle
from checkpoints import read_config, read_tensors, write_checkpoint
from executors import EXACT
from oracle import dequantized_state
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.evaluate.evaluate import checkpoint_reference, measure_bundle
from qpack_packager.evaluate.gate import Gate
from qpack_packager.evaluate.quality import Quality
from qpack_packager.evaluate.runner import Device
from qpack_packager.evaluate.windows import Corpus
from qpack_packager.serving import Options
from qpack_runtime.logits import forced_logits
from qpack_schemas.bundle import open_bundle
from qpack_schemas.errors import InputError, UsageError
from references import Reference, transformers_reference
from teacher_forcing import held_out_windows

OPTIONS = Options(batches=(1, 8), contexts=(128,), prefills=(1, 64))
FLOAT32 = replace(OPTIONS, dtype="float32")
GATE, LIMIT = Gate(max_ppl_ratio=1.03, max_kl=0.03), 16  # windows of 128 tokens


@pytest.fixture(scope="module")
def reference() -> Callable[[str], Reference]:
    made: dict[str, Reference] = {}
    return lambda name: made.setdefault(name, transformers_reference(ASSETS / name))


def measured(bundle: Path, name: str, against: Any, **options: Any) -> Quality:
    one_thread = Device("cpu", threads=1)
    return measure_bundle(
        bundle, Corpus(ASSETS / name / "eval.txt"), against, **{"device": one_thread, "limit": LIMIT} | options
    )


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-qwen3_5"])
def test_perplexity_is_that_of_transformers_on_the_bundles_weights(name: str, tmp_path: Path):
    bundle = build_bundle(ASSETS / name, tmp_path / "bundle", FLOAT32)
    same = transformers_reference(ASSETS / name, dequantized_state(open_bundle(bundle), ASSETS / name))
    quality = measured(bundle, name, same, modes=("exact",))
    windows, total = held_out_windows(name, LIMIT), 0.0
    for window, logits in zip(windows, same(windows), strict=True):
        following = torch.from_numpy(window[1:])
        total += float(torch.nn.functional.cross_entropy(torch.from_numpy(logits[:-1]), following, reduction="sum"))
    wanted = float(np.exp(total / (windows.size - len(windows))))
    exact = quality["modes"]["exact"]
    assert quality["tokens"] == windows.size - len(windows)
    assert exact["perplexity"] == pytest.approx(wanted, rel=1e-3)
    assert quality["reference"] is not None
    assert quality["reference"]["perplexity"] == pytest.approx(wanted, rel=1e-6)
    assert exact["kl_mean"] == pytest.approx(0, abs=1e-6)
    assert exact["top1_agreement"] == pytest.approx(1, abs=1e-3)


def test_a_bundle_is_no_way_from_itself(tmp_path: Path):
    bundle = build_bundle(ASSETS / "tiny-qwen3_5", tmp_path / "bundle", FLOAT32)
    engine = EXACT[0].boot(bundle).engine

    def itself(windows: np.ndarray) -> Iterator[np.ndarray]:
        for window in windows.astype(np.int32):
            rows = [logits[0].copy() for logits in forced_logits(engine, window[None])]
            yield np.stack([*rows, rows[0]])  # behind the last token nobody looks

    figures = measured(bundle, "tiny-qwen3_5", itself, modes=("exact",), limit=9)["modes"]["exact"]
    assert (figures["kl_mean"], figures["kl_max"], figures["ppl_ratio"], figures["ppl_ratio_stderr"]) == (0, 0, 1, 0)
    assert figures["top1_agreement"] == 1


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-qwen3_5"])
def test_a_sound_bundle_passes_in_both_modes(name: str, reference: Callable[[str], Reference], tmp_path: Path):
    bundle = build_bundle(ASSETS / name, tmp_path / "bundle", OPTIONS)
    quality = measured(bundle, name, reference(name), modes=("fast", "exact", "fast"), gate=GATE)
    assert list(quality["modes"]) == ["fast", "exact"]
    assert quality["gate"] == {"max_ppl_ratio": 1.03, "max_kl": 0.03, "passed": True, "findings": []}
    fast, exact = quality["modes"].values()
    assert fast["kl_mean"] != exact["kl_mean"]
    assert len(quality["modules"]) == 10
    errors = [one["relative_rms_error"] for one in quality["modules"]]
    assert errors == sorted(errors, reverse=True)


def uniform(config: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    """Logits are all zero."""
    scale = tensors["model.norm.weight"]
    scale[:] = -1 if config["model_type"].startswith("qwen3_5") else 0  # the former's norm multiplies with 1 + weight


def swapped_layers(config: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    for name in [name for name in tensors if name.startswith("model.layers.1.")]:
        other = name.replace("layers.1.", "layers.2.")
        tensors[name], tensors[other] = tensors[other], tensors[name]


def transposed_projection(config: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    name = "model.layers.3.self_attn.o_proj.weight"
    assert tensors[name].shape[0] == tensors[name].shape[1]
    tensors[name] = tensors[name].T


def wrong_rope_base(config: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    config["rope_parameters"]["rope_theta"] *= 100


DEFECTS = [uniform, swapped_layers, transposed_projection, wrong_rope_base]


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-qwen3_5"])
def test_the_gate_catches(name: str, defect: Any, reference: Callable[[str], Reference], tmp_path: Path):
    config = read_config(ASSETS / name)
    tensors = {key: np.array(tensor) for key, tensor in read_tensors(ASSETS / name).items()}
    defect(config, tensors)
    damaged = write_checkpoint(tmp_path / "model", config, tensors, tokenizer=ASSETS / name)
    bundle = build_bundle(damaged, tmp_path / "bundle", OPTIONS)
    quality = measured(bundle, name, reference(name), gate=GATE)
    fast, gate = quality["modes"]["fast"], quality["gate"]
    print(name, defect.__name__, fast["ppl_ratio"], fast["kl_mean"], fast["top1_agreement"])
    assert gate is not None
    assert not gate["passed"]
    if defect is uniform:
        assert fast["perplexity"] == pytest.approx(open_bundle(bundle).manifest["model"]["real_vocab_size"])


def test_a_device_with_one_way_to_compute_is_its_own_mode(tmp_path: Path):
    bundle = build_bundle(ASSETS / "tiny-qwen3", tmp_path / "bundle", OPTIONS)
    quality = measured(bundle, "tiny-qwen3", None, device=Device("reference"), limit=1)
    assert list(quality["modes"]) == ["reference"]
    assert (quality["device"], quality["instructions"]) == ("reference", "numpy")
    assert quality["reference"] is quality["gate"] is None


def test_a_gate_without_a_reference_is_a_usage_error(tmp_path: Path):
    with pytest.raises(UsageError, match="reference"):
        measured(tmp_path, "tiny-qwen3", None, gate=GATE)


def test_a_reference_with_another_tokenizer_is_refused(tiny_bundle: Callable[[str], Path], tmp_path: Path):
    bundle = open_bundle(tiny_bundle("tiny-qwen3"))
    model = write_checkpoint(
        tmp_path / "model", read_config(ASSETS / "tiny-qwen3"), read_tensors(ASSETS / "tiny-qwen3")
    )
    checkpoint_reference(ModelText(model), bundle)
    tokenizer = model / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text(encoding="utf-8").replace("511", "510"), encoding="utf-8")
    with pytest.raises(InputError, match=r"another tokenizer\.json"):
        checkpoint_reference(ModelText(model), bundle)
