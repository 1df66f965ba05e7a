"""What an idle server holds beyond the model, with a vocabulary of the real size."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bundles import build_bundle
from checkpoints import TINY_QWEN3, read_config, read_tensors, write_checkpoint
from qwen_tokenizers import qwen_tokenizer_file
from server_process import ServerProcess

ROWS = 151_936  # of Qwen3's embedding, 151,669 of them tokens
ASKED = {"prompt": "In the beginning", "max_tokens": 8}


@pytest.fixture(scope="module")
def real_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with Qwen3's tokenizer: its rows of the embedding over and over."""
    folder = tmp_path_factory.mktemp("real_vocabulary")
    tokenizer = shutil.copytree(TINY_QWEN3, folder / "tokenizer")
    qwen_tokenizer_file("qwen3").save(str(tokenizer / "tokenizer.json"))
    for name, config in (("tokenizer_config", {"eos_token": "<|im_end|>"}), ("generation_config", {})):
        (tokenizer / f"{name}.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = dict(read_tensors(TINY_QWEN3))
    embedding = tensors["model.embed_tokens.weight"]
    tensors["model.embed_tokens.weight"] = np.resize(embedding, (ROWS, embedding.shape[1]))
    config = read_config(TINY_QWEN3) | {"vocab_size": ROWS, "eos_token_id": 151_645, "pad_token_id": None}
    checkpoint = write_checkpoint(folder / "model", config, tensors, tokenizer=tokenizer)
    return build_bundle(checkpoint, folder / "bundle")


def test_an_idle_server_needs_little_beyond_weights_and_arenas(
    real_vocabulary: Path, capsys: pytest.CaptureFixture[str]
):
    with ServerProcess(real_vocabulary) as server:
        server.ready()
        assert server.get("/v1/completions", ASKED)[0] == 200  # what the first request loads is part of an idle server
        memory = json.loads((real_vocabulary / "manifest.json").read_text(encoding="utf-8"))["memory"]
        model = sum(memory[name] for name in ("weights_bytes", "state_bytes", "io_bytes"))
        model += max(memory["work_bytes"].values())
        own = server.resident_bytes() - model
    with capsys.disabled():
        print(f"\nidle server: {own / 1e6:.1f} MB beyond {model / 1e6:.1f} MB of weights and arenas")
    assert own < 120e6
