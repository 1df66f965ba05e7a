"""JSON as qpack writes it (canonical ASCII) and as it reads it (strictly).

Reading refuses what json.loads lets through: a byte order mark, NaN, Infinity and numbers that overflow to it,
duplicate keys and lone surrogates. Every message names the line, because these files are edited by people.
"""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from qpack_schemas.errors import InputError

JsonValue = Any  # pyright has no recursive JSON type that survives indexing

# A string is one token, so that braces, words and numbers inside it are not taken for JSON.
_TOKEN = re.compile(r'("(?:\\.|[^"\\])*")(\s*:)?|[{}]|[-+.\w]+', re.DOTALL)
_GIT_LFS = b"version https://git-lfs"


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
    if data.startswith(_GIT_LFS):
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
    """Like load_strict, for a text that came from `where`."""

    def refuse(line: int, message: str, remedy: str = "") -> NoReturn:
        raise InputError(f"line {line}: {message}", where=where, remedy=remedy)

    def finite(word: str) -> float:
        if math.isfinite(value := float(word)):
            return value
        refuse(_line_of(text, word.__eq__), f"{word} is not a finite number", "replace it by a finite number")

    def integer(word: str) -> int:
        try:
            return int(word)
        except ValueError:  # CPython's limit on digits
            refuse(_line_of(text, word.__eq__), f"an integer of {len(word)} digits")

    def unique(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
        value = dict(pairs)
        if len(value) < len(pairs):
            key, first, second = _repeated_key(text)
            refuse(second, f"key {key!r} stands twice in one object (first on line {first})", "delete one of the two")
        return value

    try:
        value = json.loads(text, parse_constant=finite, parse_float=finite, parse_int=integer, object_pairs_hook=unique)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except json.JSONDecodeError as error:
        raise InputError(f"line {error.lineno}, column {error.colno}: {error.msg}", where=where) from None
    except UnicodeEncodeError:
        line = _line_of(text, _is_half_a_pair)
        raise InputError(f"line {line}: a \\u escape is half of a surrogate pair", where=where) from None
    except RecursionError:
        raise InputError("is nested too deeply", where=where) from None


def _line_of(text: str, is_culprit: Callable[[str], bool]) -> int:
    """The line of the first token that is to blame; called only when one is known to exist."""
    tokens = ((found.group(1) or found.group(), found.start()) for found in _TOKEN.finditer(text))
    return next(text.count("\n", 0, start) + 1 for token, start in tokens if is_culprit(token))


def _is_half_a_pair(token: str) -> bool:
    return token[0] == '"' and any("\ud800" <= char <= "\udfff" for char in json.loads(token))


def _repeated_key(text: str) -> tuple[str, int, int]:
    """The first key that stands twice in one object, and both lines."""
    objects: list[dict[str, int]] = []  # of the objects that are open: key -> offset
    for found in _TOKEN.finditer(text):
        if found.group() == "{":
            objects.append({})
        elif found.group() == "}":
            objects.pop()
        elif found.group(2):
            key, offset = json.loads(found.group(1)), found.start()
            if key in objects[-1]:
                return key, text.count("\n", 0, objects[-1][key]) + 1, text.count("\n", 0, offset) + 1
            objects[-1][key] = offset
    raise AssertionError("no key stands twice")
