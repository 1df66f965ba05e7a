"""What --fix changes, as a unified diff for reading.

The old side is what a reader of UTF-8 would see: bytes that are not UTF-8 and control characters are escaped. A repair
moves no text to another line, so lines are compared in pairs; difflib needs hours where line ends are mixed.
"""

import re
from collections.abc import Iterator, Sequence

from qpack_packager.check.findings import visible

CONTEXT = 3  # lines before and after a change
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_NO_NEWLINE = "\\ No newline at end of file"


def diff_lines(name: str, before: bytes, after: bytes, encoding: str) -> list[str]:
    """Lines without ends; empty if nothing changes. `encoding` is that of `before`: UTF-16 and UTF-32, which look like
    nothing to a reader of UTF-8, are decoded with it."""
    if before == after:
        return []
    wide = encoding.startswith(("utf-16", "utf_16", "utf-32", "utf_32"))
    old = _LINE.findall(before.decode(encoding if wide else "utf-8", "backslashreplace"))
    new = _LINE.findall(after.decode("utf-8"))
    header = [f"--- {visible(name)}\t{encoding}", f"+++ {visible(name)}\tutf-8"]
    return header + [line for start, stop in _hunks(old, new) for line in _hunk(old, new, start, stop)]


def _hunks(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int]]:
    """[start, stop) of the lines to show, context included; hunks whose context touches are one."""
    longest = max(len(old), len(new))
    start = stop = 0
    for index in range(longest):
        if old[index : index + 1] != new[index : index + 1]:
            if index - CONTEXT > stop:
                if stop:
                    yield start, stop
                start = index - CONTEXT
            start, stop = max(start, 0), min(index + 1 + CONTEXT, longest)
    if stop:
        yield start, stop


def _hunk(old: Sequence[str], new: Sequence[str], start: int, stop: int) -> Iterator[str]:
    yield f"@@ -{_range(old, start, stop)} +{_range(new, start, stop)} @@"
    removed, added = list[str](), list[str]()
    for index in range(start, stop):
        ours, theirs = old[index : index + 1], new[index : index + 1]
        if ours == theirs:
            yield from (*removed, *added, *_shown(" ", ours))
            removed, added = [], []
        else:
            removed += _shown("-", ours)
            added += _shown("+", theirs)
    yield from (*removed, *added)


def _range(lines: Sequence[str], start: int, stop: int) -> str:
    return f"{start + 1},{len(lines[start:stop])}"


def _shown(mark: str, line: Sequence[str]) -> Iterator[str]:
    for text in line:
        yield mark + visible(text.removesuffix("\n"))
        if not text.endswith(("\n", "\r")):
            yield _NO_NEWLINE
