"""Writes the manual pages of both programs from their commands: what `--help` says, examples, exit codes.

    python scripts/make_man.py FOLDER

Needs click and nothing else. hatch_build.py runs it for each wheel, which installs the pages in share/man/man1.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / room) for room in ("packager", "schemas", "delivery", "runtime")]

from qpack_packager.cli import main as qpack  # noqa: E402
from qpack_runtime.cli import main as qpack_runtime  # noqa: E402
from qpack_schemas import errors  # noqa: E402
from qpack_schemas.report import ENDING, SIGNAL_EXIT  # noqa: E402

PROGRAMS = {"qpack": qpack, "qpack-runtime": qpack_runtime}


def page(name: str) -> str:
    """The page of one program, in the macros of man(7). The same commands give the same page."""
    return "\n".join(_lines(name, PROGRAMS[name])) + "\n"


def exit_codes() -> dict[int, str]:
    """Exit code -> what it means: fine, the errors as their module lists them, signals."""
    found = re.findall(r"^[ |+-]*\w+Error +(\d+) +(.+)$", errors.__doc__ or "", re.MULTILINE)
    signals = {SIGNAL_EXIT + number: words for number, words in ENDING.items()}
    meanings = {int(code): re.sub("^it ", "the bundle ", words) for code, words in found}
    return dict(sorted({0: "all is well", **meanings, **signals}.items()))


def _lines(name: str, program: click.Group) -> Iterator[str]:
    context = click.Context(program, info_name=name)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    yield f'.TH {_escaped(name)} 1 "" "qpack {version}" "User Commands"'
    yield from (".SH NAME", f"{_escaped(name)} \\- {_escaped(program.get_short_help_str(1_000))}")
    yield from (".SH SYNOPSIS", f".B {_escaped(name)}", r"\fIcommand\fR [\fIoptions\fR] [\fIarguments\fR]")
    yield ".SH COMMANDS"
    for command_name in program.list_commands(context):
        command = program.commands[command_name]
        within = click.Context(command, info_name=command_name, parent=context, help_option_names=["-h", "--help"])
        yield f".SS {_escaped(' '.join([command_name, *command.collect_usage_pieces(within)]))}"
        yield "\n.PP\n".join(_escaped(part) for part in (command.help or "").split("\n\n"))
        yield from _options(command, within)
        examples = (command.epilog or "").splitlines()[2:]
        yield from (".PP", "Examples:", ".PP", ".RS", ".nf", *(_escaped(line) for line in examples), ".fi", ".RE")
    yield ".SH EXIT STATUS"
    for code, meaning in exit_codes().items():
        yield from (".TP", f".B {code}", _escaped(meaning))
    yield from (".SH SEE ALSO", *(f".BR {_escaped(other)} (1)" for other in PROGRAMS if other != name))


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        if isinstance(parameter, click.Option) and (record := parameter.get_help_record(context)):
            names, text = record
            yield from (".TP", f".B {_escaped(names)}", _escaped(text) or r"\&")


def _escaped(text: str) -> str:
    """On one line that is no request, with backslashes and hyphens as characters: roff(7)."""
    line = re.sub(r"\s+", " ", text).strip().replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"^(?=[.'])", r"\\&", line)


if __name__ == "__main__":
    for program in PROGRAMS:
        Path(sys.argv[1], f"{program}.1").write_text(page(program), encoding="utf-8")
