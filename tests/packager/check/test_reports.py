"""The reports of `qpack check`, each read as those read it for whom it is made."""

import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from bundles import ASSETS
from qpack_packager.check import as_github, as_json, as_sarif, as_text
from qpack_packager.check.findings import CheckedFile, Report
from qpack_packager.check.rules import RULES
from qpack_packager.textfix.report import Problem

SARIF = Draft7Validator(
    json.loads((ASSETS / "sarif" / "sarif-schema-2.1.0.json").read_text(encoding="utf-8")),
    format_checker=Draft7Validator.FORMAT_CHECKER,
)
BOM = Problem("QE002", "error", True, "a byte order mark, efbbbf", 1, 1, 0, r"\ufeff{")
LATE = Problem("QE052", "warning", False, "U+FFFD: 1 lost character", 7, 12, 133, "a\ufffdb")
NOWHERE = Problem("QE005", "error", False, "binary")

TEXTS = st.text(max_size=20) | st.sampled_from(["::error::", "%0A", "a\r\nb", "\x1b[2J", "a:b,c", "\u2028", "-->"])
PLACES = st.none() | st.integers(1, 99)
PROBLEMS = st.builds(
    Problem,
    rule=st.sampled_from(sorted(RULES)),
    severity=st.sampled_from(["error", "warning"]),
    fixable=st.booleans(),
    message=TEXTS,
    line=PLACES,
    column=PLACES,
    offset=st.none() | st.integers(0, 99),
    preview=TEXTS,
)
NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=12)
PATHS = NAMES.filter(lambda name: name not in {".", ".."}).map(lambda name: Path("models", os.fsdecode(name.encode())))
REPORTS = st.builds(
    Report, st.lists(st.builds(CheckedFile, PATHS, st.lists(PROBLEMS, max_size=4), st.booleans()), max_size=3)
)
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
NOT_UTF8 = Path(os.fsdecode(b"models/\xce\xd2.md"))


def one(*problems: Problem, path: Path = Path("models/config.json"), written: bool = False) -> Report:
    return Report([CheckedFile(path, problems, written)])


def sarif(report: Report) -> dict[str, Any]:
    log = json.loads(as_sarif.render(report))
    SARIF.validate(log)
    return log["runs"][0]


@given(REPORTS)
@example(one(BOM, path=NOT_UTF8))
@example(one(BOM, path=Path("a b/%41#?.md")))
def test_sarif_follows_the_official_schema_and_leads_to_the_file(report: Report):
    run = sarif(report)
    rules = run["tool"]["driver"]["rules"]
    findings = list(report.findings())
    assert len(run["results"]) == len(findings)
    for result, finding in zip(run["results"], findings, strict=True):
        place = result["locations"][0]["physicalLocation"]
        uri = urlsplit(place["artifactLocation"]["uri"])
        assert (uri.scheme, uri.netloc, uri.query, uri.fragment) == ("", "", "", "")
        assert unquote_to_bytes(uri.path) == os.fsencode(finding.file.path)
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == finding.problem.rule
        assert place["region"]["startLine"] == (finding.problem.line or 1)
        assert place["region"].get("byteOffset") == finding.problem.offset


def test_sarif_names_a_file_outside_the_working_directory_absolutely(tmp_path: Path):
    file = tmp_path / "a b.json"
    location = sarif(one(BOM, path=file))["results"][0]["locations"][0]["physicalLocation"]
    assert location["artifactLocation"] == {"uri": file.as_uri()}


def test_every_rule_in_sarif_has_a_title_and_help():
    rules = sarif(one(BOM))["tool"]["driver"]["rules"]
    assert {rule["id"] for rule in rules} == set(RULES)
    for rule in rules:
        assert rule["shortDescription"]["text"]
        assert rule["help"]["text"]


def fingerprints(report: Report) -> list[str]:
    return [value for result in sarif(report)["results"] for value in result["partialFingerprints"].values()]


def test_a_fingerprint_survives_edits_elsewhere_and_tells_findings_apart():
    moved = Problem(LATE.rule, "warning", False, "U+FFFD: 2 lost characters", 9, 12, 180, LATE.preview)
    assert fingerprints(one(LATE)) == fingerprints(one(moved))
    assert fingerprints(one(LATE)) == fingerprints(one(LATE, path=Path.cwd() / "models/config.json"))
    others = [*fingerprints(one(LATE, LATE, BOM)), *fingerprints(one(LATE, path=Path("models/other.json")))]
    assert len(set(others)) == 4


def test_the_same_findings_give_the_same_bytes():
    assert as_sarif.render(one(BOM, LATE)) == as_sarif.render(one(BOM, LATE))


def commands(text: str) -> list[tuple[str, dict[str, str], str]]:
    """(command, properties, message) as GitHub's runner reads them: src/Runner.Common/ActionCommand.cs."""
    found: list[tuple[str, dict[str, str], str]] = []
    for line in text.splitlines():
        if line.startswith("::"):
            head, _, data = line[2:].partition("::")
            name, _, fields = head.partition(" ")
            pairs = (pair.partition("=") for pair in fields.split(",") if pair)
            found.append((name, {key: unescape(value, property=True) for key, _, value in pairs}, unescape(data)))
    return found


def unescape(text: str, *, property: bool = False) -> str:
    for escape, char in (("%0D", "\r"), ("%0A", "\n"), *((("%3A", ":"), ("%2C", ",")) if property else ())):
        text = text.replace(escape, char)
    return text.replace("%25", "%")


@given(REPORTS)
@example(one(NOWHERE))
@example(one(BOM, path=Path("models/a::b,c%.md")))
def test_github_gets_one_command_for_each_finding_and_no_other(report: Report):
    text = as_github.render(report)
    findings = list(report.findings())
    assert [name for name, _, _ in commands(text)] == [finding.problem.severity for finding in findings]
    assert len(text.splitlines()) == len(findings) + 1
    for (_, properties, _), finding in zip(commands(text), findings, strict=True):
        assert properties.get("line") == (str(finding.problem.line) if finding.problem.line else None)
        assert properties.get("col") == (str(finding.problem.column) if finding.problem.column else None)
        assert properties["title"].startswith(finding.problem.rule)


def test_github_gets_file_line_and_column():
    assert commands(as_github.render(one(LATE, path=Path("models/a::b,c%.md")))) == [
        (
            "warning",
            {"file": "models/a::b,c%.md", "line": "7", "col": "12", "title": f"QE052 {RULES['QE052'].title}"},
            LATE.message,
        )
    ]


@given(REPORTS)
@example(one(BOM, path=NOT_UTF8))
def test_json_holds_every_fact_in_ascii(report: Report):
    text = as_json.render(report)
    assert text.isascii()
    facts = json.loads(text)
    assert list(facts) == ["version", "files_checked", "findings"]
    assert facts["files_checked"] == len(report.files)
    for found, finding in zip(facts["findings"], report.findings(), strict=True):
        keys = "path line column offset rule severity fixable fixed message preview"
        assert list(found) == keys.split()
        assert found["message"] == finding.problem.message
        assert found["fixed"] == (finding.problem.fixable and finding.file.written)


@given(REPORTS)
@example(one(BOM, path=NOT_UTF8))
@example(one(Problem("QE003", "error", False, "two are possible:\n  gb18030  \x1b[31m\n  cp932")))
def test_no_file_can_move_the_cursor_of_who_reads_a_report(report: Report):
    for render in (as_text.render, as_github.render):
        text = render(report)
        assert not CONTROL.search(text)
        assert text.endswith(f"{report.summary()}\n")


def test_text_says_where_what_and_whether_it_is_fixed():
    text = as_text.render(one(BOM, LATE, NOWHERE, written=True))
    assert text.splitlines() == [
        "models/config.json:1:1: QE002 error: a byte order mark, efbbbf [fixed]",
        r"    | \ufeff{",
        "models/config.json:7:12: QE052 warning: U+FFFD: 1 lost character",
        "    | a\ufffdb",
        "models/config.json: QE005 error: binary",
        "",
        "3 findings in 1 of 1 file: 2 errors, 1 warning; 1 fixed",
    ]


@pytest.mark.parametrize(
    ("report", "summary"),
    [
        (Report([]), "nothing to check: no text file of a model is there"),
        (Report(one().files, 2), "1 file checked, all clean (2 files passed over, not text by name)"),
        (one(), "1 file checked, all clean"),
        (one(BOM), "1 finding in 1 of 1 file: 1 error; 1 fixable with --fix"),
        (Report([*one(LATE, LATE).files, *one().files]), "2 findings in 1 of 2 files: 2 warnings"),
    ],
)
def test_the_summary_counts(report: Report, summary: str):
    assert report.summary() == summary
