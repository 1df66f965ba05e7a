"""`qpack check`: finds what is wrong with text files, and repairs what can be repaired without a guess."""

import re
import stat
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from qpack_packager.check import as_github, as_json, as_sarif, as_text
from qpack_packager.check.diff import diff_lines
from qpack_packager.check.findings import CheckedFile, Report
from qpack_packager.check.paths import Found, find_files
from qpack_packager.check.replace_file import replace_file
from qpack_packager.check.rules import NOT_ASCII, NOT_WRITTEN, UNREADABLE
from qpack_packager.check.vocabulary import vocabulary_beside
from qpack_packager.commands.typeset import counted
from qpack_packager.declared_encodings import DeclaredEncodings
from qpack_packager.textfix.canonical import ascii_json
from qpack_packager.textfix.fix import MAX_BYTES, fix
from qpack_packager.textfix.kinds import Kind, kind_of
from qpack_packager.textfix.report import Problem, place, preview
from qpack_packager.textfix.rules import Rule
from qpack_schemas.errors import UsageError
from qpack_schemas.terminal import painted

RENDER = {
    "text": as_text.render,
    "json": as_json.render,
    "sarif": as_sarif.render,
    "github": as_github.render,
}
JSON = (Kind.CONFIG, Kind.TOKENIZER)
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


@dataclass(frozen=True)
class Wishes:
    """What the flags ask for. `ascii`: JSON is to be ASCII, for readers that use the locale's codec."""

    fix: bool = False
    diff: bool = False
    ascii: bool = False
    declared: DeclaredEncodings = field(default_factory=DeclaredEncodings)
    legacy: Sequence[str] = ()


def check(paths: Iterable[Path], wishes: Wishes) -> Report:
    """Checks every file that `paths` name or hold; with `wishes.fix`, writes those that can be repaired.

    Raises UsageError for a path that does not exist, and if files of a bundle were to be written."""
    found, passed_over = find_files(paths)
    sealed = next((each for each in found if each.bundle), None)
    if wishes.fix and sealed:
        raise UsageError(
            f"lies in the bundle {sealed.bundle}, which is sealed by digests",
            where=str(sealed.path),
            remedy="check it without --fix, or fix the checkpoint and build the bundle again",
        )
    return Report([_check_file(each, wishes) for each in found], passed_over)


def write_report(report: Report, output_format: str, output: Path | None) -> None:
    """To stdout, where characters that its encoding lacks are escaped; or to the file `output`, as UTF-8, with the
    summary on stderr. Raises UsageError if it cannot be written."""
    text = RENDER[output_format](report)
    if output is None:
        encoding = sys.stdout.encoding or "ascii"
        text = text.encode(encoding, "backslashreplace").decode(encoding)
        click.echo(painted(text, sys.stdout) if output_format == "text" else text, nl=False)
        return
    try:
        replace_file(output, text.encode("utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(reason, where=f"--output {output}", remedy="name a file that can be written") from None
    click.echo(report.summary(), err=True)


def _check_file(found: Found, wishes: Wishes) -> CheckedFile:
    path = found.path
    try:
        data = _read(found)
    except OSError as error:
        return CheckedFile(path, [_of_whole_file(UNREADABLE, error)])
    vocabulary = vocabulary_beside(path) if kind_of(path.name) is Kind.VOCABULARY and b"\r" in data else ()
    result = fix(path.name, data, declared=wishes.declared.of(path), legacy=wishes.legacy, vocabulary=vocabulary)
    clean, problems = result.data, list(result.problems)
    if wishes.ascii and clean is not None and kind_of(path.name) in JSON and not clean.isascii():
        problems.append(_not_ascii(clean.decode("utf-8")))
        clean = ascii_json(clean.decode("utf-8")).encode("ascii")
    if clean is None or clean == data:
        return CheckedFile(path, problems)
    diff: list[str] = []
    if wishes.diff:
        encoding = result.facts.encoding if result.facts else "utf-8"
        diff = diff_lines(CheckedFile(path, ()).shown, data, clean, encoding)
    if not wishes.fix:
        return CheckedFile(path, problems, diff=diff)
    try:
        replace_file(path, clean)
    except OSError as error:
        return CheckedFile(path, [*problems, _of_whole_file(NOT_WRITTEN, error)], diff=diff)
    return CheckedFile(path, problems, written=True, diff=diff)


def _read(found: Found) -> bytes:
    """At most one byte more than `fix` takes, which is enough for it to say that the file is too large."""
    if found.error:
        raise found.error
    if not stat.S_ISREG(found.path.stat().st_mode):  # opening a pipe would wait for its writer
        raise OSError(None, "is no regular file")
    with found.path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def _of_whole_file(rule: Rule, error: OSError) -> Problem:
    return Problem(rule.id, "error", fixable=False, message=f"{rule.title}: {error.strerror or error}")


def _not_ascii(text: str) -> Problem:
    """At the first character that is not ASCII, in the text that --fix would write without --ascii."""
    first = next(_NOT_ASCII.finditer(text)).start()
    count = len(_NOT_ASCII.findall(text))
    line, column = place(text, first)
    message = f"{counted(count, 'character')} outside ASCII, the first is U+{ord(text[first]):04X}"
    return Problem(NOT_ASCII.id, "error", True, message, line, column, preview=preview(text, first))
