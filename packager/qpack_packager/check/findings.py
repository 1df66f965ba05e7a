"""What `qpack check` found: the facts that its reporters put into words."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qpack_packager.commands.typeset import counted
from qpack_packager.textfix.report import Problem

_PERHAPS_INVISIBLE = re.compile("[^ -~]")


@dataclass(frozen=True)
class CheckedFile:
    """One file. `written` says whether its fixable problems are gone; `diff` are lines without their ends."""

    path: Path  # as it was named, or below what was named
    problems: Sequence[Problem]
    written: bool = False
    diff: Sequence[str] = ()

    @property
    def shown(self) -> str:
        """The path for people and reports: UTF-8 whatever the locale, with other bytes escaped."""
        return os.fsencode(self.path).decode("utf-8", "backslashreplace")


@dataclass(frozen=True)
class Finding:
    """One problem and where it is. A fixed one is still a finding, as pre-commit wants it."""

    file: CheckedFile
    problem: Problem

    @property
    def fixed(self) -> bool:
        return self.problem.fixable and self.file.written


@dataclass(frozen=True)
class Report:
    files: Sequence[CheckedFile]
    passed_over: int = 0  # files that were named although their names are those of weights, code and the like

    def findings(self) -> Iterator[Finding]:
        for file in self.files:
            for problem in file.problems:
                yield Finding(file, problem)

    def is_clean(self, *, strict: bool) -> bool:
        """Whether there is no error and nothing was written; with `strict`, no warning either."""
        return not any(strict or found.fixed or found.problem.severity == "error" for found in self.findings())

    def summary(self) -> str:
        """One line: `3 findings in 2 of 14 files: 2 errors, 1 warning; 1 fixed, 1 fixable with --fix`."""
        note = f" ({counted(self.passed_over, 'file')} passed over, not text by name)" if self.passed_over else ""
        return self._summary() + note

    def _summary(self) -> str:
        if not self.files:
            return "nothing to check: no text file of a model is there"
        found = list(self.findings())
        if not found:
            return f"{counted(len(self.files), 'file')} checked, all clean"
        bad = sum(1 for file in self.files if file.problems)
        text = f"{counted(len(found), 'finding')} in {bad:,} of {counted(len(self.files), 'file')}: "
        counts = {name: sum(each.problem.severity == name for each in found) for name in ("error", "warning")}
        text += ", ".join(counted(count, name) for name, count in counts.items() if count)
        fixed = sum(each.fixed for each in found)
        fixable = sum(each.problem.fixable for each in found) - fixed
        notes = [f"{fixed:,} fixed"] * bool(fixed) + [f"{fixable:,} fixable with --fix"] * bool(fixable)
        return f"{text}; {', '.join(notes)}" if notes else text


def visible(text: str) -> str:
    """The text with control characters, line ends and halves of surrogate pairs escaped, so that no file can move the
    cursor of whoever reads a report about it."""
    return _PERHAPS_INVISIBLE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    char = found.group()
    return char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
