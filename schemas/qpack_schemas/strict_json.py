"""JSON as qpack writes it (canonical ASCII) and as it reads it (strictly).

Reading refuses what json.loads lets through: a byte order mark, NaN, Infinity and numbers that overflow to it,
duplicate keys and lone surrogates. Every message names the line, because these files are edited by people.
"""

import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NoReturn

from qpack_schemas.errors import InputError

JsonValue = Any  # pyright has no recursive JSON type that survives indexing

# A string is one token, so that braces, words and numbers inside it are not taken for JSON.
_TOKEN = re.compile(r'("(?:\\.|[^"\\])*")(\s*:)?|[{}]|[-+.\w]+', re.DOTALL)
# Only an escape can be half of a surrogate pair: UTF-8 has no spelling for one.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
GIT_LFS = b"version https://git-lfs"

Fault = Literal["syntax", "number", "duplicate", "surrogate", "depth"]


class JsonError(InputError):
    """A text that strict JSON refuses: the kind of fault, the bare reason, and the index of the character of the text
    that is to blame, or None if no single one is."""

    def __init__(self, fault: Fault, reason: str, text: str, index: int | None, *, where: str, remedy: str = ""):
        message = reason
        if index is not None:
            line, column = text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index)
            message = f"line {line}, column {column}: {reason}" if fault == "syntax" else f"line {line}: {reason}"
        super().__init__(message, where=where, remedy=remedy)
        self.fault, self.reason, self.index = fault, reason, index


def dump_canonical(value: JsonValue) -> bytes:
    """The one spelling of a value: ASCII, sorted keys, one space of indent, LF, no NaN. Raises ValueError for NaN."""
    return (json.dumps(value, sort_keys=True, indent=1, ensure_ascii=True, allow_nan=False) + "\n").encode("ascii")


def dump_compact(value: JsonValue) -> bytes:
    """Canonical on one line, for programs and log lines."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return (text + "\n").encode("ascii")


def load_text(path: Path) -> str:
    """The text of a UTF-8 file. Raises InputError for a Git LFS pointer, a byte order mark or any other encoding."""
    data = path.read_bytes()
    if data.startswith(GIT_LFS):
        raise InputError(
            "this is a Git LFS pointer, not the file itself", where=str(path), remedy="run `git lfs pull` there"
        )
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise InputError(
            f"begins with a byte order mark ({data[:3].hex(' ')})",
            where=str(path),
            remedy="save it as UTF-8 without BOM",
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}, line {line}",
            where=str(path),
            remedy="save it as UTF-8 without BOM",
        ) from None


def load_strict(path: Path) -> JsonValue:
    """The value of a JSON file. Raises InputError naming the file and line; OSError if it cannot be read."""
    return parse_strict(load_text(path), str(path))


def parse_strict(text: str, where: str) -> JsonValue:
    """Like load_strict, for a text that came from `where`. Raises JsonError, an InputError."""

    def refuse(fault: Fault, index: int | None, message: str, remedy: str = "") -> NoReturn:
        raise JsonError(fault, message, text, index, where=where, remedy=remedy)

    def finite(word: str) -> float:
        if math.isfinite(value := float(word)):
            return value
        index = _index_of(text, word.__eq__)
        refuse("number", index, f"{word} is not a finite number", "replace it by a finite number")

    def unique(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
        value = dict(pairs)
        if len(value) < len(pairs):
            key, first, second = _repeated_key(text)
            line = text.count("\n", 0, first) + 1
            message = f"key {key!r} stands twice in one object (first on line {line})"
            refuse("duplicate", second, message, "delete one of the two")
        return value

    try:
        value = json.loads(text, parse_constant=finite, parse_float=finite, object_pairs_hook=unique)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except json.JSONDecodeError as error:
        refuse("syntax", error.pos, error.msg)
    except UnicodeEncodeError:
        refuse("surrogate", _index_of(text, _is_half_a_pair), "a \\u escape is half of a surrogate pair")
    except RecursionError:
        refuse("depth", None, "is nested too deeply")
    except ValueError:  # of int itself: a parse_int that says which one costs a third more on every file
        index = _index_of(text, _is_too_long)
        found = _TOKEN.match(text, index)
        assert found
        refuse("number", index, f"an integer of {len(found.group())} digits")


def _index_of(text: str, is_culprit: Callable[[str], bool]) -> int:
    """Where the first token starts that is to blame; called only when one is known to exist."""
    tokens = ((found.group(1) or found.group(), found.start()) for found in _TOKEN.finditer(text))
    return next(start for token, start in tokens if is_culprit(token))


def _is_too_long(token: str) -> bool:
    digits = token.removeprefix("-")
    return digits.isdecimal() and len(digits) > sys.get_int_max_str_digits()


def _is_half_a_pair(token: str) -> bool:
    return token[0] == '"' and any("\ud800" <= char <= "\udfff" for char in json.loads(token))


def _repeated_key(text: str) -> tuple[str, int, int]:
    """The first key that stands twice in one object, and where each starts."""
    objects: list[dict[str, int]] = []  # of the objects that are open: key -> index
    for found in _TOKEN.finditer(text):
        if found.group() == "{":
            objects.append({})
        elif found.group() == "}":
            objects.pop()
        elif found.group(2):
            word, index = found.group(1), found.start()
            key = json.loads(word) if "\\" in word else word[1:-1]
            if key in objects[-1]:
                return key, objects[-1][key], index
            objects[-1][key] = index
    raise AssertionError("no key stands twice")
