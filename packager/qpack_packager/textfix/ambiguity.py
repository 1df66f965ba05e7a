"""Well-formed UTF-8 that could be GB18030 all the same.

A GBK pair with lead C2-DF and trail 80-BF is a two-byte UTF-8 sequence, so a few hanzi between ASCII may be well-formed UTF-8:
U+76EE U+5F55 becomes U+013F U+00BC. Longer Chinese text cannot, since most pairs do not fit. What is left to look at is a file
with a handful of characters outside ASCII, all of two bytes in UTF-8, that read as hanzi or do not look like words.
"""

import re

from qpack_packager.textfix.common_characters import SIMPLIFIED, SIMPLIFIED_MORE

HANDFUL = 16  # characters; of common pairs one in thirty is well-formed UTF-8, of eight in a row none

_RUN = re.compile(r"[^\x00-\x7f]+")
# Symbols of Latin-1 that stand alone in every language, and the no-break space.
_SYMBOLS = frozenset("\xa0\xa1\xa2\xa3\xa5\xa7\xa9\xab\xae\xb0\xb1\xb2\xb3\xb5\xb7\xb9\xbb\xbc\xbd\xbe\xbf\xd7\xf7")
_WORDS = re.compile(
    "[\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u017f\u0218-\u021b\u01a0\u01a1\u01af\u01b0\u0300-\u0323]+"  # Latin
    "|[\u0386\u0388-\u03ce]+|[\u0401-\u045f\u0490\u0491]+|[\u05d0-\u05ea]+"  # Greek, Cyrillic, Hebrew
    "|[\u060c\u061b\u061f\u0621-\u0652\u067e\u0686\u0698\u06a9\u06af\u06cc]+|[\u0531-\u0556\u0561-\u0587]+"  # Arabic, Armenian
)
_LATIN = re.compile("[\u00c0-\u024f\u0300-\u0323]+")


def could_be_gb18030(text: str, data: bytes) -> bool:
    """Whether `data`, the UTF-8 of `text`, is as likely GB18030. Cheap for ASCII and for long texts."""
    if text.isascii() or len(data) - len(text) > HANDFUL or max(text) >= "\u0800":
        return False
    try:
        data.decode("gb18030")
    except UnicodeDecodeError:
        return False
    return any(not _natural(text, found) for found in _RUN.finditer(text))


def _natural(text: str, found: re.Match[str]) -> bool:
    """Whether a run of characters outside ASCII is a word, or part of one, or a symbol."""
    run, before, after = found.group(), text[: found.start()][-1:], text[found.end() :][:1]
    if set(run) <= _SYMBOLS:
        return len(run) == 1 or run[0] == "\xa0" or run[-1] == "\xa0" or len(set(run)) == 1
    words = run.strip("".join(_SYMBOLS))
    in_ascii_word = (before.isalpha() and not run.startswith(tuple(_SYMBOLS))) or (
        after.isalpha() and not run.endswith(tuple(_SYMBOLS))
    )
    if _LATIN.fullmatch(words):
        return _natural_latin(words, before, after) if in_ascii_word else len(words) == 1 and not _hanzi(words)
    if in_ascii_word or not _WORDS.fullmatch(words) or words not in (words.lower(), words.upper(), words.capitalize()):
        return False
    return not _hanzi(words) or (len(words) == 1 and _alone(before) and _alone(after))


def _natural_latin(words: str, before: str, after: str) -> bool:
    """Accented letters inside a word of ASCII letters: at most three in a row, no capital after a small letter."""
    mixed_case = before.islower() and words[0].isupper() and not after.isupper()
    return _WORDS.fullmatch(words) is not None and len(words) <= 3 and not mixed_case


def _hanzi(words: str) -> bool:
    """Whether the same bytes are common hanzi, every one."""
    pairs = words.encode("utf-8").decode("gb18030", errors="replace")
    return all(char in SIMPLIFIED or char in SIMPLIFIED_MORE for char in pairs)


def _alone(neighbour: str) -> bool:
    """A symbol of mathematics has spaces or operators around it; a hanzi has digits, letters or quotes."""
    return not (neighbour.isalnum() or neighbour in ('"', "'", ":"))
