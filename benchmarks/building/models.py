"""The checkpoints of the comparison: published shapes, random weights, and a tokenizer with a token for every id."""

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from peers.checkpoint import TOKENIZER  # which also finds the scripts, that no install has
from random_models import RANDOM_MODELS as SHAPES
from random_models import TOKENIZER_FILES, write_model


def write_checkpoint(folder: Path, shape: str) -> None:
    """A checkpoint directory at `folder`, or nothing. A vocabulary as large as the head costs what a real one does."""
    with TemporaryDirectory(dir=folder.parent) as name:
        tokenizer = Path(name)
        for file in TOKENIZER_FILES:
            shutil.copyfile(TOKENIZER / file, tokenizer / file)
        content = json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))
        vocabulary = content["model"]["vocab"]
        ids = {*vocabulary.values(), *(added["id"] for added in content["added_tokens"])}
        vocabulary |= {f"pad{number}": number for number in range(SHAPES[shape]["vocab_size"]) if number not in ids}
        (tokenizer / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        write_model(tokenizer / "checkpoint", SHAPES[shape], tokenizer).rename(folder)


def weight_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
