"""What a person at a terminal gets: colours there and only there, manual pages, and a page about all commands."""

import importlib.util
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpack_packager.cli import main as qpack
from qpack_runtime.cli import main as qpack_runtime
from qpack_schemas.terminal import painted

ROOT = Path(__file__).parent.parent
PROGRAMS = {"qpack": qpack, "qpack-runtime": qpack_runtime}
PAGE = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
MAKE_MAN = ROOT / "scripts" / "make_man.py"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


@given(st.text(st.sampled_from("ab -+:\n") | st.characters(exclude_characters="\x1b", exclude_categories=["Cs"])))
def test_colours_change_no_character(text: str):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm")
        patch.delenv("NO_COLOR", raising=False)
        assert click.unstyle(painted(text, Terminal())) == text


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_there_are_no_colours_where_they_are_not_wanted(
    variables: dict[str, str], terminal: Terminal, monkeypatch: pytest.MonkeyPatch
):
    text = "error: it is wrong\n  remedy: do it right"
    assert painted(text, terminal) != text
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert painted(text, terminal) == text


def test_there_are_no_colours_in_a_pipe(terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert painted("error: it is wrong", io.StringIO()) == "error: it is wrong"


@pytest.mark.parametrize(
    ("text", "stands_out"),
    [
        ("error: bundle: the bundle is damaged:\n  a: is not there\n  remedy: copy it", ["error:", "  remedy:"]),
        ("Memory: 6.2 MB\n  weights  594.9 kB", ["Memory: 6.2 MB"]),
        ("Buckets: 2 shapes\n                rows\n  decode-b1    1", ["Buckets: 2 shapes"]),
        ("ok       driver  12.4\nFAILURE  target  none", ["ok", "FAILURE"]),
        ("a.json:1:4: QE003 error: is not UTF-8\n    | cp1252", ["error:"]),
        ("  linear_int4   16  refused\ngraphable: no; CPUs only", ["refused", "graphable: no"]),
        ("The gate: missed", ["The gate: missed"]),
        ("--- a\tcp1252\n+++ a\tutf-8\n-x\n+y", ["--- a\tcp1252", "+++ a\tutf-8", "-x", "+y"]),
        ("whole: 10 files, bundle_id a", []),
    ],
)
def test_what_stands_out(text: str, stands_out: list[str], terminal: Terminal):
    assert re.findall("\x1b\\[[0-9;]+m([^\x1b]+)\x1b\\[0m", painted(text, terminal)) == stands_out


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("man")
    subprocess.run([sys.executable, str(MAKE_MAN), str(folder)], check=True)
    return sorted(folder.iterdir())


def test_the_manual_pages_name_every_command_and_every_flag(pages: list[Path]):
    assert [page.name for page in pages] == ["qpack-runtime.1", "qpack.1"]
    for page in pages:
        text = page.read_text(encoding="utf-8").replace(r"\-", "-")
        for name, command in PROGRAMS[page.stem].commands.items():
            assert f"\n.SS {name} " in text
            for parameter in command.params:
                assert all(flag in text for flag in parameter.opts if flag.startswith("-"))


@pytest.mark.skipif(shutil.which("man") is None or shutil.which("groff") is None, reason="man-db is not installed")
def test_man_formats_the_pages_without_a_warning(pages: list[Path]):
    for page in pages:
        command = ["man", "--warnings", "--local-file", str(page)]
        ran = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert "EXIT STATUS" in ran.stdout


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not installed")
def test_mandoc_finds_nothing_but_the_missing_date(pages: list[Path]):
    """A date would make every build another one."""
    for page in pages:
        command = ["mandoc", "-Tlint", "-Wwarning", str(page)]
        ran = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
        found = (ran.stdout + ran.stderr).splitlines()
        assert [line for line in found if "missing date" not in line] == []


def test_the_page_of_commands_names_each_and_no_other():
    named = set(re.findall(r"\| `(qpack|qpack-runtime) ([a-z-]+)", PAGE))
    assert named == {(program, name) for program, group in PROGRAMS.items() for name in group.commands}


def test_the_page_of_commands_names_each_exit_code():
    found = importlib.util.spec_from_file_location("make_man", MAKE_MAN)
    assert found
    assert found.loader
    make_man = importlib.util.module_from_spec(found)
    found.loader.exec_module(make_man)
    table = PAGE.partition("## Exit codes")[2].partition("\n\nA command")[0]
    codes = {int(code) for row in re.findall(r"^\| ([0-9, ]+) \|", table, re.MULTILINE) for code in row.split(",")}
    assert codes == set(make_man.exit_codes())


def test_the_page_of_commands_names_only_flags_that_there_are():
    flags = {
        flag for group in PROGRAMS.values() for one in group.commands.values() for p in one.params for flag in p.opts
    }
    assert set(re.findall(r"--[a-z][a-z-]*", PAGE)) <= flags | {"--help"}
