"""Bytes -> text, in an order in which each step is certain or refuses; no step falls back to a looser one.

Byte order mark; a declared encoding, unless the bytes are UTF-8 anyhow; NUL bytes; ISO-2022-JP escapes; strict
UTF-8; damaged UTF-8; the five CJK encodings.
"""

import codecs
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qpack_packager.textfix.ambiguity import could_be_gb18030
from qpack_packager.textfix.infer import infer
from qpack_packager.textfix.report import KnownBy, Problem, Refused, place, preview

# UTF-32 first: its little-endian mark begins with that of UTF-16.
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CONTROLS = bytes(set(range(0x20)) - set(b"\t\n\f\r"))
_ASCII = bytes(range(0x80))
_ISO_2022 = re.compile(rb"\x1b(\$|\()")
# Codecs of Python that are no encodings of files.
_NO_ENCODINGS = frozenset(
    {"idna", "punycode", "undefined", "unicode_escape", "raw_unicode_escape", "mbcs", "oem", "utf-7"}
)
MIN_UTF_16 = 6  # bytes; one NUL byte in less is no pattern
DAMAGED_SHARE = 0.6  # of the bytes above 0x7F in well-formed UTF-8 sequences


@dataclass(frozen=True)
class Decoded:
    """`text` without byte order marks; `start` is the offset of its first character in the source."""

    text: str
    encoding: str
    known_by: KnownBy
    bom: bool
    start: int


def decode(data: bytes, parses: Callable[[str], bool], declared: str | None, legacy: Sequence[str]) -> Decoded:
    """The text of a file. `parses` says whether a text is what the file's kind promises. Raises Refused."""
    decoded = _decode(data, parses, declared, legacy)
    text = decoded.text.lstrip("\ufeff")
    marks = len(decoded.text) - len(text)
    start = decoded.start + len(("\ufeff" * marks).encode(decoded.encoding))
    decoded = Decoded(text, decoded.encoding, decoded.known_by, decoded.bom or marks > 0, start)
    _refuse_controls(decoded)
    _refuse_ambiguous(decoded, data, declared)
    return decoded


def offset_of(decoded: Decoded, index: int) -> int:
    """The offset in the source of a character of the text."""
    return decoded.start + len(decoded.text[:index].encode(decoded.encoding))


def _decode(data: bytes, parses: Callable[[str], bool], declared: str | None, legacy: Sequence[str]) -> Decoded:
    for mark, codec in _BOMS:
        if data.startswith(mark):
            return _decode_marked(data, mark, codec)
    as_utf8 = _utf8(data)
    is_plain = b"\0" not in data and b"\x1b" not in data
    if declared is not None and (as_utf8 is None or not is_plain or could_be_gb18030(as_utf8, data)):
        return _decode_declared(data, declared, parses)
    if b"\0" in data:
        return _decode_nuls(data, parses)
    if data.isascii() and _ISO_2022.search(data):
        return _decode_escapes(data, parses)
    if as_utf8 is not None:
        return Decoded(as_utf8, "utf-8", "utf-8", False, 0)
    _refuse_damaged(data)
    text, codec = infer(data, parses, legacy)
    return Decoded(text, codec, "inferred", False, 0)


def _utf8(data: bytes) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _refuse(rule: str, message: str, data: bytes, offset: int | None = None) -> Refused:
    """A refusal at a place in the bytes."""
    if offset is None:
        return Refused(Problem(rule, "error", False, message))
    line, column = data.count(b"\n", 0, offset) + 1, offset - data.rfind(b"\n", 0, offset)
    shown = preview(data[max(offset - 20, 0) : offset + 20].decode("ascii", errors="backslashreplace"))
    return Refused(Problem(rule, "error", False, message, line, column, offset, preview=shown))


def _decode_marked(data: bytes, mark: bytes, codec: str) -> Decoded:
    body = data[len(mark) :]
    name = codec.upper()
    try:
        text = body.decode(codec)
    except UnicodeDecodeError as error:
        offset = len(mark) + error.start
        raise _refuse(
            "QE004", f"begins like {name}, but is damaged at byte {offset}: {error.reason}", data, offset
        ) from None
    if codec.startswith("utf-16") and _is_swapped(body, codec):
        raise _refuse("QE004", f"its mark says {name}, but its bytes are in the other order", data, 0)
    return Decoded(text, codec, "bom", True, len(mark))


def _decode_declared(data: bytes, declared: str, parses: Callable[[str], bool]) -> Decoded:
    try:
        codec = codecs.lookup(declared).name
        if codec.replace("-", "_") in {name.replace("-", "_") for name in _NO_ENCODINGS}:
            raise LookupError(declared)
        text = data.decode(codec)
        lossless = text.encode(codec) == data or codec in ("utf-16", "utf-32")
    except LookupError:
        raise _refuse("QE008", f"{declared!r} was declared, which is no encoding of text files", data) from None
    except UnicodeDecodeError as error:
        message = f"was declared as {declared}, which its bytes are not at byte {error.start}: {error.reason}"
        raise _refuse("QE008", message, data, error.start) from None
    except (UnicodeError, ValueError) as error:
        raise _refuse("QE008", f"was declared as {declared}, which its bytes are not: {error}", data) from None
    if not lossless:
        raise _refuse("QE008", f"was declared as {declared}, but its text does not encode to the same bytes", data)
    if not parses(text.lstrip("\ufeff")):
        raise _refuse("QE008", f"was declared as {declared}, but does not parse when read so", data)
    return Decoded(text, codec, "declared", False, 0)


def _other_order(codec: str) -> str:
    return codec[:-2] + ("be" if codec.endswith("le") else "le")


def _ascii_share(text: str) -> float:
    return len(text.encode("ascii", errors="ignore")) / max(len(text), 1)


def _is_swapped(body: bytes, codec: str) -> bool:
    """Whether a mark lies: in the other order the bytes make sense, in its own they don't, or have no ASCII at all."""
    own, other = _sane(body, codec), _sane(body, _other_order(codec))
    return other is not None and (own is None or (_ascii_share(own) == 0 and _ascii_share(other) > 0.5))


def _decode_nuls(data: bytes, parses: Callable[[str], bool]) -> Decoded:
    """UTF-16 or UTF-32 without a mark: NUL bytes are the upper halves of ASCII, and the other order is no text."""
    if len(data) % 4 == 0:
        for codec in ("utf-32-le", "utf-32-be"):
            if (text := _sane(data, codec)) is not None and parses(text):
                return Decoded(text, codec, "nul-pattern", False, 0)
    even, odd = data[0::2].count(0), data[1::2].count(0)
    for order, upper, lower in (("utf-16-le", odd, even), ("utf-16-be", even, odd)):
        text, other = _sane(data, order), _sane(data, _other_order(order))
        if text is None or upper < lower or not parses(text) or len(data) < MIN_UTF_16:
            continue
        plainly_ascii = lower == 0 and _ascii_share(text) > 0.5
        if other is None or not parses(other) or plainly_ascii:
            return Decoded(text, order, "nul-pattern", False, 0)
    offset = data.index(0)
    raise _refuse("QE005", f"has a NUL byte at offset {offset} and is no UTF-16 or UTF-32 text: binary", data, offset)


def _sane(data: bytes, codec: str) -> str | None:
    """The text, if every character is assigned, public and no control."""
    try:
        text = data.decode(codec)
    except UnicodeDecodeError:
        return None
    odd = any(unicodedata.category(char) in ("Cc", "Cn", "Co", "Cs") for char in set(text) - set("\t\n\r\f"))
    return None if odd else text


def _decode_escapes(data: bytes, parses: Callable[[str], bool]) -> Decoded:
    offset = data.index(b"\x1b")
    try:
        text = data.decode("iso2022_jp")
        if text.encode("iso2022_jp") == data and parses(text):
            return Decoded(text, "iso2022_jp", "escape", False, 0)
        reason = "its text does not parse or does not encode to the same bytes"
    except UnicodeError as error:
        reason = str(error)
    message = (
        f"has an ISO-2022 escape at offset {offset}, but is not ISO-2022-JP: {reason}; if it is another encoding, "
        "name it with --encoding GLOB=NAME"
    )
    raise _refuse("QE003", message, data, offset)


def _refuse_damaged(data: bytes) -> None:
    """Raises Refused for control bytes, and for bytes that are mostly well-formed UTF-8: another codec would read
    those, too, and turn a small loss into nonsense."""
    control = (
        next((index for index, byte in enumerate(data) if byte in _CONTROLS), None) if _has_controls(data) else None
    )
    if control is not None:
        message = f"is neither UTF-8 nor text: byte 0x{data[control]:02x} at offset {control}: binary"
        raise _refuse("QE005", message, data, control)
    high = len(data.translate(None, _ASCII))
    well_formed = len(data.decode("utf-8", errors="ignore").encode("utf-8").translate(None, _ASCII))
    if well_formed >= DAMAGED_SHARE * high:
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as error:
            message = (
                f"is damaged UTF-8: byte 0x{data[error.start]:02x} at offset {error.start} does not belong there; if "
                "it is another encoding, name it with --encoding GLOB=NAME"
            )
            raise _refuse("QE004", message, data, error.start) from None


def _has_controls(data: bytes) -> bool:
    return len(data.translate(None, _CONTROLS)) != len(data)


def _refuse_controls(decoded: Decoded) -> None:
    if not _has_controls(decoded.text.encode("utf-8")):
        return
    index = next(index for index, char in enumerate(decoded.text) if char < " " and char not in "\t\n\f\r")
    message = f"has the control character U+{ord(decoded.text[index]):04X}"
    line, column = place(decoded.text, index)
    shown = preview(decoded.text, index)
    raise Refused(Problem("QE007", "error", False, message, line, column, offset_of(decoded, index), shown))


def _refuse_ambiguous(decoded: Decoded, data: bytes, declared: str | None) -> None:
    """Also for what was not UTF-8 before: written as UTF-8 it would be ambiguous to the next reader."""
    utf8 = decoded.text.encode("utf-8")
    if not could_be_gb18030(decoded.text, utf8) or (decoded.known_by == "declared" and decoded.encoding == "utf-8"):
        return
    index = next(index for index, char in enumerate(decoded.text) if char > "\x7f")
    line, column = place(decoded.text, index)
    shown = preview(decoded.text, index)
    other = preview(utf8.decode("gb18030"), index)
    message = (
        f"could be UTF-8, {shown!r}, or GB18030, {other!r}; name the right one with --encoding GLOB=utf-8 or "
        "--encoding GLOB=gb18030"
    )
    raise Refused(Problem("QE006", "error", False, message, line, column, offset_of(decoded, index), shown))
