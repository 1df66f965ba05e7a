from pathlib import Path

import pytest

from checkpoints import TINY_QWEN3, numbers, read_config, write_checkpoint

CONFIG = read_config(TINY_QWEN3)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Tensors a, b in the first shard, c, d in the second."""
    return write_checkpoint(tmp_path / "sharded", CONFIG, numbers("a", "b", "c", "d"), shards=2)


@pytest.fixture
def single(tmp_path: Path) -> Path:
    """Tensors a, b in model.safetensors."""
    return write_checkpoint(tmp_path / "single", CONFIG, numbers("a", "b"))
