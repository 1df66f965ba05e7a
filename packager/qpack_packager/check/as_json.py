"""A report for programs. ASCII, so that it survives every locale; keys are only ever added while VERSION stays."""

import json

from qpack_packager.check.findings import Report

VERSION = 1


def render(report: Report) -> str:
    findings = [
        {
            "path": found.file.shown,
            "line": found.problem.line,
            "column": found.problem.column,
            "offset": found.problem.offset,
            "rule": found.problem.rule,
            "severity": found.problem.severity,
            "fixable": found.problem.fixable,
            "fixed": found.fixed,
            "message": found.problem.message,
            "preview": found.problem.preview,
        }
        for found in report.findings()
    ]
    facts = {"version": VERSION, "files_checked": len(report.files), "findings": findings}
    return json.dumps(facts, ensure_ascii=True, indent=1) + "\n"
