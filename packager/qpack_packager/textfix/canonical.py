"""The canonical form of a text: transcode, do not rewrite. Also the ASCII form of JSON."""

import re
from collections.abc import Collection

from qpack_packager.textfix.kinds import Kind
from qpack_packager.textfix.report import Newlines, Problem, Severity, place, preview

_NEWLINE = re.compile(r"\r\n?")
_STRING = re.compile(r'"(?:\\.|[^"\\])*"', re.DOTALL)
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def newlines_of(text: str) -> Newlines:
    """Which newlines a text has: LF, CR LF, CR, several kinds of them, or none."""
    crlf = text.count("\r\n")
    counts = {"crlf": crlf, "lf": text.count("\n") - crlf, "cr": text.count("\r") - crlf}
    present: list[Newlines] = [name for name in ("crlf", "lf", "cr") if counts[name]]
    return "none" if not present else present[0] if len(present) == 1 else "mixed"


def canonicalize(text: str, kind: Kind, vocabulary: Collection[str]) -> tuple[str, list[Problem]]:
    """The canonical text and what was not canonical. A licence keeps its newlines; a vocabulary loses its carriage
    returns only where they cannot belong to a token; of a configuration the end is made one newline."""
    problems: list[Problem] = []
    source = text  # where people look for what is wrong
    if "\r" in text and kind is not Kind.LICENSE:
        if kind is Kind.VOCABULARY and (reason := _keeps_carriage_returns(text, vocabulary)):
            return text, [_at(text, text.index("\r"), "QE012", False, reason)]
        problems.append(_at(text, text.index("\r"), "QE011", True, f"newlines are {newlines_of(text).upper()}, not LF"))
        text = _NEWLINE.sub("\n", text)
    if kind is Kind.CONFIG and (ended := text.rstrip("\n") + "\n") != text:
        count = len(text) - len(text.rstrip("\n"))
        message = f"ends with {count} newlines, not one"
        problems.append(_at(source, max(len(source) - 1, 0), "QE013", True, message, "warning"))
        text = ended
    return text, problems


def _at(text: str, index: int, rule: str, fixable: bool, message: str, severity: Severity = "error") -> Problem:
    line, column = place(text, index)
    return Problem(rule, severity, fixable, message, line, column, preview=preview(text, index))


def _keeps_carriage_returns(text: str, vocabulary: Collection[str]) -> str | None:
    """Why the carriage returns must stay, or None."""
    if newlines_of(text) != "crlf" or "\r\r" in text:
        return "some lines end with CR LF, others do not; a carriage return may be part of a token"
    token = next((token for token in vocabulary if token.endswith("\r")), None)
    return (
        None
        if token is None
        else f"every line ends with CR LF, but the vocabulary has a token that ends with CR, {token!r}"
    )


def ascii_json(text: str) -> str:
    """The same JSON in ASCII: characters in strings become \\u escapes, those beyond U+FFFF a surrogate pair, and
    nothing else changes. For readers that use the locale's codec. Raises ValueError if a character outside ASCII is
    not in a string."""
    ascii_text = _STRING.sub(lambda string: _NOT_ASCII.sub(_escape, string.group()), text)
    if not ascii_text.isascii():
        raise ValueError("a character outside ASCII stands outside of a string: this is not JSON")
    return ascii_text


def _escape(found: re.Match[str]) -> str:
    units = found.group().encode("utf-16-be", errors="surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
