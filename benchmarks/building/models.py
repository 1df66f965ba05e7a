"""The checkpoints of the comparison: published shapes, a small one and one larger than small builders."""

from pathlib import Path

from peers import checkpoint  # which also finds the scripts, that no install has
from random_models import QWEN3_5_9B, RANDOM_MODELS

SHAPES = {**RANDOM_MODELS, "qwen3.5-9b": QWEN3_5_9B}


def write_checkpoint(folder: Path, shape: str) -> None:
    """A checkpoint directory at `folder`, or nothing."""
    checkpoint.write_checkpoint(folder, SHAPES[shape])


def weight_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
