"""The models of the comparisons: published shapes, random weights, and a tokenizer with as many ids as the head has."""

import json
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))  # no install has them

from random_models import QWEN3_06B, TOKENIZER_FILES, Config, write_model  # noqa: E402

TOKENIZER = ROOT / "tests" / "assets" / "tiny-qwen3"


def write_checkpoint(folder: Path, config: Config = QWEN3_06B) -> Path:
    """A checkpoint directory at `folder`, or nothing; returns `folder`. Every id of the head gets a token, so that
    nobody can leave a part of the logits out, and the text costs what a real vocabulary does."""
    with TemporaryDirectory(dir=folder.parent) as name:
        tokenizer = Path(name)
        for file in TOKENIZER_FILES:
            shutil.copyfile(TOKENIZER / file, tokenizer / file)
        _pad(tokenizer / "tokenizer.json", config["vocab_size"])
        return write_model(tokenizer / "checkpoint", config, tokenizer).rename(folder)


def _pad(file: Path, size: int) -> None:
    content = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    ids = {*vocabulary.values(), *(added["id"] for added in content["added_tokens"])}
    vocabulary |= {f"pad{number}": number for number in range(size) if number not in ids}
    file.write_text(json.dumps(content), encoding="utf-8")
