"""A report as SARIF 2.1.0 (OASIS), which code scanning services show beside the code.

The same findings give the same bytes: nothing tells the time or the host. Section numbers are the standard's.
"""

import hashlib
import json
import os
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from urllib.parse import quote

from qpack_packager.check.findings import CheckedFile, Finding, Report, visible
from qpack_packager.check.rules import RULES
from qpack_packager.textfix.rules import Rule

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
ROOT = "%SRCROOT%"  # the working directory; a reader knows where that is for it (3.14.14)
FINGERPRINT = "qpackFinding/v1"


def render(report: Report) -> str:
    seen = Counter[str]()
    driver = {
        "name": "qpack",
        "semanticVersion": version("qpack-llm"),
        "rules": [_rule(rule) for rule in RULES.values()],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {ROOT: {"description": {"text": "The directory that qpack check ran in."}}},
        "results": [_result(finding, seen) for finding in report.findings()],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, ensure_ascii=True, indent=1) + "\n"


def _rule(rule: Rule) -> dict[str, object]:
    return {"id": rule.id, "shortDescription": {"text": rule.title}, "help": {"text": rule.help}}


def _result(finding: Finding, seen: Counter[str]) -> dict[str, object]:
    problem = finding.problem
    region: dict[str, object] = {"startLine": problem.line or 1}  # GitHub shows nothing without a line
    if problem.column is not None:
        region["startColumn"] = problem.column
    if problem.offset is not None:
        region["byteOffset"] = problem.offset
    if problem.preview:
        region["snippet"] = {"text": visible(problem.preview)}
    location = {"artifactLocation": _artifact(finding.file), "region": region}
    return {
        "ruleId": problem.rule,
        "ruleIndex": list(RULES).index(problem.rule),
        "level": problem.severity,
        "message": {"text": "\n".join(map(visible, problem.message.splitlines()))},
        "locations": [{"physicalLocation": location}],
        "partialFingerprints": {FINGERPRINT: _fingerprint(finding, seen)},
        "properties": {"fixable": problem.fixable, "fixed": finding.fixed},
    }


def _artifact(file: CheckedFile) -> dict[str, str]:
    """A relative URI where the file lies below the working directory, otherwise an absolute one."""
    path = os.path.relpath(file.path)
    if path.partition(os.sep)[0] == os.pardir:
        return {"uri": file.path.absolute().as_uri()}
    return {"uri": quote(os.fsencode(Path(path).as_posix())), "uriBaseId": ROOT}


def _fingerprint(finding: Finding, seen: Counter[str]) -> str:
    """The same while the file is only edited elsewhere: it has no line and no offset, but counts equal findings."""
    facts = json.dumps([_artifact(finding.file)["uri"], finding.problem.rule, finding.problem.preview])
    seen[facts] += 1
    return hashlib.sha256(f"{facts}{seen[facts]}".encode("ascii")).hexdigest()
