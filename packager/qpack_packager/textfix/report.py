"""What is found in one text file: the facts about its bytes and the problems, in words for people."""

from dataclasses import dataclass
from typing import Literal

KnownBy = Literal["utf-8", "bom", "nul-pattern", "escape", "inferred", "declared"]
Newlines = Literal["lf", "crlf", "cr", "mixed", "none"]
Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class TextFacts:
    """How the source was read: Python's name of the codec, how that was known, and what its bytes had."""

    encoding: str
    known_by: KnownBy
    bom: bool
    newlines: Newlines


@dataclass(frozen=True)
class Problem:
    """One broken rule. `line` and `column` count from 1 in the decoded text, or in the bytes where there is none;
    `offset` counts bytes of the source from 0. All three are None if the problem has no single place."""

    rule: str
    severity: Severity
    fixable: bool
    message: str
    line: int | None = None
    column: int | None = None
    offset: int | None = None
    preview: str = ""


class Refused(Exception):
    """Ends the work on a file whose text cannot be had; never leaves `fix`."""

    def __init__(self, problem: Problem):
        super().__init__(problem.message)
        self.problem = problem


PREVIEW = 60  # characters


def preview(text: str, start: int = 0) -> str:
    """The line around a place, at most PREVIEW characters, with every character that does not print escaped."""
    first = max(text.rfind("\n", 0, start) + 1, start - PREVIEW // 2)
    line = text[first : first + PREVIEW].partition("\n")[0].rstrip("\r")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in line)


def place(text: str, index: int) -> tuple[int, int]:
    """(line, column) of a character, from 1; a line ends with LF."""
    return text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index)
