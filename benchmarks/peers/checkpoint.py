"""The model of the comparison: Qwen3-0.6B's shape, random weights, and a tokenizer with as many ids as the head has."""

import json
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))  # no install has them

from random_models import QWEN3_06B, TOKENIZER_FILES, write_model  # noqa: E402

TOKENIZER = ROOT / "tests" / "assets" / "tiny-qwen3"


def write_checkpoint(folder: Path) -> Path:
    """A checkpoint directory of 1.2 GB at `folder`, or nothing; returns `folder`. Every id of the head gets a token, so
    that nobody can leave a part of the logits out."""
    with TemporaryDirectory(dir=folder.parent) as name:
        tokenizer = Path(name)
        for file in TOKENIZER_FILES:
            shutil.copyfile(TOKENIZER / file, tokenizer / file)
        _pad(tokenizer / "tokenizer.json", QWEN3_06B["vocab_size"])
        return write_model(tokenizer / "checkpoint", QWEN3_06B, tokenizer).rename(folder)


def _pad(file: Path, size: int) -> None:
    content = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    ids = {*vocabulary.values(), *(added["id"] for added in content["added_tokens"])}
    vocabulary |= {f"pad{number}": number for number in range(size) if number not in ids}
    file.write_text(json.dumps(content), encoding="utf-8")
