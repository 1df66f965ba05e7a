"""A text as windows of token ids, by the tokenizer that is in the bundle."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
from tokenizers import Tokenizer

from qpack_packager.checkpoint.model_text import ModelText, refusal
from qpack_packager.declared_encodings import DeclaredEncodings
from qpack_packager.textfix.fix import MAX_BYTES, fix
from qpack_schemas.bundle import Bundle
from qpack_schemas.bundle_rules import TOKENIZER_PATH
from qpack_schemas.errors import InputError

LENGTH = 512  # tokens of a window, unless the bundle's context is shorter
MOST_BYTES = MAX_BYTES // 4  # as `fix` takes of a text
_REMEDY = "name a text file"
_NAME = "text.txt"  # to `fix`, whatever the file's: it says nothing of what is in it, prose may lie in a *.json


@dataclass(frozen=True)
class Corpus:
    """Any text that is measured or calibrated with. `declared` and `legacy` are as of a ModelText."""

    path: Path
    declared: DeclaredEncodings = field(default_factory=DeclaredEncodings)
    legacy: Sequence[str] = ()

    @classmethod
    def of_build(cls, path: Path, text: ModelText) -> Self:
        """Decoded by what is declared for the checkpoint's texts. Raises InputError for what is no file, or a pipe."""
        if not path.is_file():
            pipe = path.exists() and not path.is_dir()
            message = "is no regular file, and a build reads it more than once" if pipe else "is no file"
            raise InputError(message, where=str(path), remedy=_REMEDY)
        return cls(path, text.declared, text.legacy)

    def read(self) -> tuple[str, str]:
        """The text, its newlines LF, and the sha256 of the file's bytes. Raises InputError for what is no file, is too
        large, or can't be decoded without a guess."""
        if not self.path.exists() or self.path.is_dir():
            raise InputError("is no file", where=str(self.path), remedy=_REMEDY)
        with self.path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise InputError(
                f"has more than {MOST_BYTES:,} bytes",
                where=str(self.path),
                remedy="give its beginning; some 100,000 words are plenty",
            )
        fixed = fix(_NAME, data, declared=self.declared.of(self.path), legacy=self.legacy)
        if fixed.data is None:
            raise refusal(self.path, fixed)
        return fixed.data.decode("utf-8"), hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Windows:
    ids: np.ndarray  # int32 [windows, length]
    text_sha256: str  # of the file's bytes


def read_windows(bundle: Bundle, text: Corpus, limit: int | None = None) -> Windows:
    """The first `limit` windows of a text, of LENGTH tokens or the bundle's context; see `cut`."""
    return cut(text, bundle.path / TOKENIZER_PATH, min(LENGTH, bundle.manifest["context"]), limit)


def cut(text: Corpus, tokenizer: Path, longest: int, limit: int | None = None) -> Windows:
    """The first `limit` windows of a text by the tokenizer.json at `tokenizer`: consecutive, without overlap, of
    `longest` tokens.

    A text shorter than a window is one short window; otherwise what fills no window is left out. Raises InputError if
    it can't be read, or if there are fewer than 2 tokens, or only one in a window."""
    if longest < 2:
        raise InputError(
            f"a context of {longest} predicts nothing: the first token predicts the second",
            remedy="build with a larger --context",
        )
    words, digest = text.read()
    ids = Tokenizer.from_str(tokenizer.read_text(encoding="utf-8")).encode(words, add_special_tokens=False).ids
    if len(ids) < 2:
        raise InputError(
            f"gives {len(ids)} tokens; the first one predicts the second, so 2 are the least",
            where=str(text.path),
            remedy="give a text of some thousand words",
        )
    length = min(longest, len(ids))
    count = min(len(ids) // length, limit or len(ids))
    return Windows(np.array(ids[: count * length], np.int32).reshape(count, length), digest)
