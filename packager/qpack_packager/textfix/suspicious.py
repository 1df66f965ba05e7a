"""Characters that are well encoded and still look like an accident. The text is left alone: only its source can
tell."""

import re
from collections.abc import Iterator

from qpack_packager.textfix.kinds import Kind
from qpack_packager.textfix.report import Problem, place, preview

_SUSPICIOUS = (
    ("QE050", re.compile("\ufeff"), "a byte order mark, U+FEFF, stands inside the text"),
    ("QE051", re.compile("[\x80-\x9f]"), "a control character of a double conversion"),
    ("QE052", re.compile("\ufffd"), "a replacement character, U+FFFD: an earlier conversion has lost what stood here"),
)


def suspicious(text: str, kind: Kind) -> Iterator[Problem]:
    """A warning for the first place of each sort. Vocabularies list such characters as tokens, rightly."""
    if kind in (Kind.TOKENIZER, Kind.VOCABULARY) or text.isascii():
        return
    for rule, pattern, message in _SUSPICIOUS:
        if found := pattern.search(text):
            line, column = place(text, found.start())
            yield Problem(rule, "warning", False, message, line, column, preview=preview(text, found.start()))
