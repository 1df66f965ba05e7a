"""Well-formed UTF-8 that could be GB18030 all the same.

A GBK pair with lead C2-DF and trail 80-BF is a two-byte UTF-8 sequence, so a few hanzi between ASCII may be
well-formed UTF-8: U+76EE U+5F55 becomes U+013F U+00BC. Longer Chinese text cannot, since most pairs do not fit. What
is left to look at is a file with a handful of characters outside ASCII, all of two bytes in UTF-8, in which one does
not look like part of a word.
"""

import re

from qpack_packager.textfix.common_characters import SIMPLIFIED, SIMPLIFIED_MORE

HANDFUL = 16  # characters

_RUN = re.compile(r"[^\x00-\x7f]+")
# Symbols of Latin-1 that stand alone in every language, and those that may touch a word.
_SYMBOLS = "\xa0\xa1\xa2\xa3\xa5\xa7\xa9\xab\xae\xb0\xb1\xb2\xb3\xb5\xb7\xb9\xbb\xbc\xbd\xbe\xbf\xd7\xf7"
_AROUND_WORDS = "\xa0\xa1\xab\xbb\xbf"
_LATIN = re.compile("[\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u017f\u0218-\u021b\u01a0\u01a1\u01af\u01b0\u0300-\u0323]+")
_LATIN_1 = re.compile("[\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u00ff]")
_GREEK_OR_CYRILLIC = re.compile("[\u0386\u0388-\u03ce]+|[\u0401-\u045f\u0490\u0491]+")
_OTHER_SCRIPTS = re.compile(
    "[\u05d0-\u05ea]+|[\u060c\u061b\u061f\u0621-\u0652\u067e\u0686\u0698\u06a9\u06af\u06cc]+"  # Hebrew, Arabic
    "|[\u0531-\u0556\u0561-\u0587]+"  # Armenian
)
_FORMULA = re.compile("[ =,+*/()<>^-]")


def could_be_gb18030(text: str, data: bytes) -> bool:
    """Whether `data`, the UTF-8 of `text`, is as likely GB18030. Cheap for ASCII and for long texts."""
    if text.isascii() or len(data) - len(text) > HANDFUL or max(text) >= "\u0800":
        return False
    try:
        chinese = data.decode("gb18030")
    except UnicodeDecodeError:
        return False
    hanzi = {char for char in chinese if char > "\x7f"}
    everyday, common = all(map(_is_everyday, hanzi)), hanzi <= SIMPLIFIED | SIMPLIFIED_MORE
    return any(not _natural(text, found, everyday, common) for found in _RUN.finditer(text))


def _is_everyday(char: str) -> bool:
    """Whether the character is in the rows of GB 2312 for everyday hanzi."""
    try:
        return 0xB0 <= char.encode("gb2312")[0] < 0xD8
    except UnicodeEncodeError:
        return False


def _natural(text: str, found: re.Match[str], everyday: bool, common: bool) -> bool:
    """Whether a run of characters outside ASCII is a word, a part of one, or a symbol. `everyday` and `common`: all
    of the file reads as everyday hanzi, or as common ones, which asks for more."""
    run, before, after = found.group(), text[: found.start()][-2:], text[found.end() :][:1]
    before = "" if before.startswith("\\") else before[-1:]  # the n of an escape is no letter of a word
    if set(run) <= set(_SYMBOLS):
        return len(run) == 1 or set(run) <= set(_AROUND_WORDS) or not everyday
    word = run.strip(_AROUND_WORDS)
    touches = (before.isalpha() and run[0] == word[0]) + (after.isalpha() and run[-1] == word[-1])
    if _LATIN.fullmatch(word) and touches:
        in_case = word.islower() or not before.islower() or after.isupper()
        return not everyday or (in_case and (len(word) == 1 or touches == 2))
    if _LATIN.fullmatch(word):
        return not common if _LATIN_1.fullmatch(word) else _cased(word) and not everyday
    if touches or not _cased(word):
        return False
    if _GREEK_OR_CYRILLIC.fullmatch(word):
        in_formula = (
            len(word) == 1 and "\u03b1" <= word <= "\u03c9" and _FORMULA.match(before) and _FORMULA.match(after)
        )
        return bool(in_formula) or not common
    return _OTHER_SCRIPTS.fullmatch(word) is not None and not everyday


def _cased(word: str) -> bool:
    """Whether capitals stand where words have them: nowhere, first, or everywhere."""
    return word in (word.lower(), word.upper(), word.capitalize())
