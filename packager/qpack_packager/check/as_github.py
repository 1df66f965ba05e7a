"""A report as GitHub's workflow commands, which annotate the lines of a change.

Form and escapes: docs.github.com, "Workflow commands for GitHub Actions"; actions/toolkit, packages/core/command.ts.
"""

from collections.abc import Iterator

from qpack_packager.check.findings import Finding, Report, visible
from qpack_packager.check.rules import RULES

DATA = {"%": "%25", "\r": "%0D", "\n": "%0A"}
PROPERTY = {**DATA, ":": "%3A", ",": "%2C"}


def render(report: Report) -> str:
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield from map(_command, report.findings())
    yield report.summary()


def _command(finding: Finding) -> str:
    problem = finding.problem
    facts = {
        "file": finding.file.shown,
        "line": problem.line,
        "col": problem.column,
        "title": f"{problem.rule} {RULES[problem.rule].title}",
    }
    properties = ",".join(
        f"{name}={_escape(visible(str(value)), PROPERTY)}" for name, value in facts.items() if value is not None
    )
    message = "\n".join(map(visible, problem.message.splitlines()))
    return f"::{problem.severity} {properties}::{_escape(message, DATA)}"


def _escape(text: str, escapes: dict[str, str]) -> str:
    return text.translate(str.maketrans(escapes))
