"""A text as windows of token ids, by the tokenizer that is in the bundle."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from qpack_packager.checkpoint.model_text import ModelText
from qpack_schemas.bundle import Bundle
from qpack_schemas.bundle_rules import TOKENIZER_PATH
from qpack_schemas.errors import InputError

LENGTH = 512  # tokens of a window, unless the bundle's context is shorter


@dataclass(frozen=True)
class Windows:
    ids: np.ndarray  # int32 [windows, length]
    text_sha256: str  # of the file's bytes


def read_windows(bundle: Bundle, text: Path, limit: int | None = None) -> Windows:
    """The first `limit` windows of a text file, of LENGTH tokens or the bundle's context; see `cut`."""
    return cut(text, bundle.path / TOKENIZER_PATH, min(LENGTH, bundle.manifest["context"]), limit)


def cut(text: Path, tokenizer: Path, longest: int, limit: int | None = None) -> Windows:
    """The first `limit` windows of a text file by the tokenizer.json at `tokenizer`: consecutive, without overlap, of
    `longest` tokens.

    A text shorter than a window is one short window; otherwise what fills no window is left out. The file is decoded as
    every text of a model is. Raises InputError if that takes a guess, or if there are fewer than 2 tokens."""
    if not text.is_file():
        raise InputError("is no file", where=str(text), remedy="name a text file")
    clean = ModelText(text.parent).clean(text.name)
    ids = (
        Tokenizer.from_str(tokenizer.read_text(encoding="utf-8"))
        .encode(clean.data.decode("utf-8"), add_special_tokens=False)
        .ids
    )
    if len(ids) < 2:
        raise InputError(
            f"gives {len(ids)} tokens; the first one predicts the second, so 2 are the least",
            where=str(text),
            remedy="give a text of some thousand words",
        )
    length = min(longest, len(ids))
    count = min(len(ids) // length, limit or len(ids))
    return Windows(np.array(ids[: count * length], np.int32).reshape(count, length), clean.source_sha256)
