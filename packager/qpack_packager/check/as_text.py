"""A report for people: a block of lines for each finding, the diffs, a summary."""

from collections.abc import Iterator

from qpack_packager.check.findings import Finding, Report, visible

PREVIEW = 100  # characters of a preview


def render(report: Report) -> str:
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    for file in report.files:
        for problem in file.problems:
            yield from _finding_lines(Finding(file, problem))
        yield from file.diff
        if file.problems or file.diff:
            yield ""
    yield report.summary()


def _finding_lines(finding: Finding) -> Iterator[str]:
    problem = finding.problem
    first, *others = problem.message.splitlines() or [""]
    state = " [fixed]" if finding.fixed else " [fixable]" if problem.fixable else ""
    place = f"{visible(finding.file.shown)}"
    place += "".join(f":{number}" for number in (problem.line, problem.column) if number is not None)
    yield f"{place}: {problem.rule} {problem.severity}: {visible(first)}{state}"
    yield from (f"    {visible(line)}" for line in others)
    if problem.preview:
        preview = visible(problem.preview)
        yield f"    | {preview if len(preview) <= PREVIEW else preview[: PREVIEW - 3] + '...'}"
