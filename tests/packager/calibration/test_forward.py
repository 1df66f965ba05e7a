"""The streamed model computes what transformers computes, with one layer in memory."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from checkpoints import (
    TINY_QWEN3,
    TINY_QWEN3_5,
    published_form,
    random_checkpoint,
    read_config,
    read_tensors,
    write_checkpoint,
    write_json,
)
from oracle import transformers_model
from qpack_packager.calibration.forward import StreamedModel
from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.checkpoint.model_text import ModelText
from qpack_schemas.errors import InputError

MODELS: dict[str, Callable[[Path], Path]] = {
    "trained qwen3": lambda folder: TINY_QWEN3,
    "trained qwen3_5": lambda folder: TINY_QWEN3_5,
    "published qwen3_5": lambda folder: published_form(TINY_QWEN3_5, folder),
    "qwen2, untied": lambda folder: random_checkpoint(folder, "qwen2", tied=False, initializer_range=0.1),
    "qwen3 with biases": lambda folder: random_checkpoint(folder, "qwen3", attention_bias=True, initializer_range=0.1),
    "qwen3_5, three values per key": lambda folder: random_checkpoint(
        folder, "qwen3_5", linear_num_key_heads=1, linear_num_value_heads=3, initializer_range=0.1
    ),
    "float16": lambda folder: random_checkpoint(folder, "qwen3", dtype="float16", initializer_range=0.1),
}


def streamed(model: Path, folder: Path) -> StreamedModel:
    return StreamedModel(Checkpoint.open(ModelText(model)), folder)


def transformers_logits(model: Path, windows: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return transformers_model(model)(torch.from_numpy(windows)).logits.numpy()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("length", [1, 70])
def test_logits_are_those_of_transformers(name: str, length: int, tmp_path: Path):
    model, work = MODELS[name](tmp_path / "model"), tmp_path / "work"
    work.mkdir()
    windows = np.random.default_rng(0).integers(0, 512, (3, length))
    ours, theirs = list(streamed(model, work).logits(windows)), transformers_logits(model, windows)
    assert [(window.shape, window.dtype) for window in ours] == [(theirs.shape[1:], np.float32)] * 3
    assert np.abs(np.stack(ours) - theirs).max() <= 1e-5 * np.abs(theirs).max()
    assert not list(work.iterdir())


def test_rotary_embeddings_are_read_in_their_older_spelling(tmp_path: Path):
    config = {key: value for key, value in read_config(TINY_QWEN3).items() if key != "rope_parameters"}
    model = write_checkpoint(tmp_path / "model", {**config, "rope_theta": 500.0}, read_tensors(TINY_QWEN3))
    windows = np.arange(40)[None]
    ours, theirs = next(streamed(model, tmp_path).logits(windows)), transformers_logits(model, windows)[0]
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()
    assert np.abs(ours - transformers_logits(TINY_QWEN3, windows)[0]).max() > 0.1


def test_the_head_may_be_read_in_blocks_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    windows = np.arange(20)[None]
    whole = next(streamed(TINY_QWEN3, tmp_path).logits(windows))
    monkeypatch.setattr("qpack_packager.calibration.forward.BLOCK_WEIGHTS", 100 * 128)
    assert np.allclose(next(streamed(TINY_QWEN3, tmp_path).logits(windows)), whole, rtol=1e-5, atol=1e-5)


def test_a_missing_tensor_is_named(tmp_path: Path):
    tensors = dict(read_tensors(TINY_QWEN3))
    del tensors["model.layers.2.mlp.up_proj.weight"]
    model = write_checkpoint(tmp_path / "model", read_config(TINY_QWEN3), tensors)
    with pytest.raises(InputError, match=r"model\.layers\.2\.mlp\.up_proj\.weight.*is missing"):
        list(streamed(model, tmp_path).logits(np.zeros((1, 4), np.int64)))


PEAK = """
import json, resource, sys
from pathlib import Path
import numpy as np
from qpack_packager.calibration.forward import StreamedModel
from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.checkpoint.model_text import ModelText
model = StreamedModel(Checkpoint.open(ModelText(Path(sys.argv[1]))), Path(sys.argv[2]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in model.logits(np.zeros((2, 64), np.int64)):
    pass
print(json.dumps((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024))
"""


@pytest.mark.nightly
def test_memory_is_that_of_one_layer_however_many_there_are(tmp_path: Path):
    """Each layer is 48 MiB of float32."""
    sizes: dict[str, Any] = {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 8, "head_dim": 128}
    layer = 4 * 1024 * (2 * 1024 + 2 * 256 + 3 * 3072)
    peaks = dict[int, int]()
    for depth in (2, 12):
        model = random_checkpoint(tmp_path / f"{depth}", "qwen3", num_hidden_layers=depth, **sizes)
        work = tmp_path / f"work-{depth}"
        work.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", PEAK, str(model), str(work)], capture_output=True, encoding="utf-8", check=True
        )
        peaks[depth] = json.loads(done.stdout)
    assert peaks[2] < 3 * layer
    assert peaks[12] < peaks[2] + layer / 2


def test_a_config_that_contradicts_the_tensors_is_an_error(tmp_path: Path):
    model = random_checkpoint(tmp_path / "model", "qwen2", num_hidden_layers=1)
    write_json(model / "config.json", {**read_config(model), "intermediate_size": 400})
    with pytest.raises(InputError, match=r"has shape \[384, 128\], config.json asks for \[400, 128\]"):
        list(streamed(model, tmp_path).logits(np.zeros((1, 4), np.int64)))
