"""One text file: decode it, check it, make it canonical."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from qpack_packager.textfix.report import Problem, TextFacts

MAX_BYTES = 64 << 20  # the largest tokenizer.json that is published has about 33 MB


@dataclass(frozen=True)
class Fixed:
    """`data` is the clean canonical UTF-8, or None if the file is refused, which is when a problem is an error that is not
    fixable. `facts` is None if it could not be decoded. Only a licence can have data without facts: the source bytes, kept.
    The file is clean if `data` equals the source."""

    data: bytes | None
    facts: TextFacts | None
    problems: list[Problem]


def fix(
    name: str,
    data: bytes,
    *,
    declared: str | None = None,
    legacy: Sequence[str] = (),
    vocabulary: Collection[str] = (),
) -> Fixed:
    """Decodes, checks and canonicalises `data`. Never raises for content.

    `name` decides the kind of file. `declared` is the encoding that a person gave for this file; it must decode and
    parse. `legacy` are the encodings of a site, of the five CJK ones; they settle a choice that is open otherwise.
    `vocabulary` are the tokens that belong to a merges.txt. Files above MAX_BYTES are refused: check the size before reading.
    """
    raise NotImplementedError
