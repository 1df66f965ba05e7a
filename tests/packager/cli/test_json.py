"""With --format json every command of both programs says one JSON document on stdout, whatever happens."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from qpack_packager.cli import main as qpack
from qpack_runtime.cli import main as qpack_runtime

PROGRAMS = {"qpack": qpack, "qpack-runtime": qpack_runtime}


def takes_json(command: click.Command) -> bool:
    return any(
        "--format" in parameter.opts and isinstance(parameter.type, click.Choice) and "json" in parameter.type.choices
        for parameter in command.params
    )


JSON = [
    (program, name)
    for program, group in PROGRAMS.items()
    for name, command in group.commands.items()
    if takes_json(command)
]


def document(result_stdout: str) -> dict:
    """The one document; anything beside it is no JSON."""
    assert result_stdout.count("\n") >= 1
    return json.loads(result_stdout)


def absent(program: str, name: str) -> list[str]:
    """Arguments that name things which don't exist, as many as the command needs."""
    arguments: list[str] = []
    for parameter in PROGRAMS[program].commands[name].params:
        if parameter.required:
            value = "absent" if isinstance(parameter, click.Argument) else "absent.out"
            value = "localhost:1/absent" if parameter.name == "reference" else value
            arguments += [value] if isinstance(parameter, click.Argument) else [parameter.opts[-1], value]
    return [*arguments, *(["--prompt", "a"] if name == "generate" else []), *(["absent"] if name == "check" else [])]


def test_all_commands_take_it_but_those_that_serve_or_export():
    every = [(program, name) for program, group in PROGRAMS.items() for name in group.commands]
    assert sorted(set(every) - set(JSON)) == [
        ("qpack", "export"),
        ("qpack-runtime", "logits"),
        ("qpack-runtime", "serve"),
    ]


@pytest.mark.parametrize(("program", "name"), JSON, ids=" ".join)
def test_input_that_is_not_there_is_one_document(
    program: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(PROGRAMS[program], [name, *absent(program, name), "--format", "json"])
    found = document(ran.stdout)
    assert ran.exit_code in (1, 2, 4)
    assert "Traceback" not in ran.stderr
    if name not in ("check", "doctor") or "error" in found:  # those two report what they find, also that
        assert found["error"]["exit_code"] == ran.exit_code
        assert found["error"]["message"] in ran.stderr
    assert not (tmp_path / "absent.out").exists()


@pytest.mark.parametrize("flags", [["--no-such-flag"], ["--format=json", "--no-such-flag"]], ids=["apart", "joined"])
@pytest.mark.parametrize(("program", "name"), JSON, ids=" ".join)
def test_a_wrong_flag_is_one_document(program: str, name: str, flags: list[str]):
    ran = CliRunner().invoke(PROGRAMS[program], [name, "--format", "json", *flags])
    facts = document(ran.stdout)["error"]
    assert (ran.exit_code, facts["exit_code"]) == (2, 2)
    assert "--no-such-flag" in facts["message"]
    assert facts["remedy"].endswith(f"{name} --help")
    assert "Usage: " in ran.stderr


def test_an_unknown_command_is_one_document_and_named_with_the_nearest():
    ran = CliRunner().invoke(qpack, ["biuld", "--format", "json"])
    assert "biuld" in document(ran.stdout)["error"]["message"]
    assert "build" in ran.stderr


def test_an_interrupted_command_is_one_document(tmp_path: Path):
    code = "import os; from qpack_packager.cli import models, main\n"
    code += f"models.model_text = lambda *_: os.kill(os.getpid(), {int(signal.SIGTERM)})\nmain()"
    command = [sys.executable, "-c", code, "plan", str(tmp_path), "--format", "json"]
    ran = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert (ran.returncode, document(ran.stdout)["error"]["exit_code"]) == (143, 143)
    assert ran.stderr == "error: terminated\n"


@pytest.mark.parametrize("name", ["validate", "inspect", "diff", "eval", "verify", "kernels"])
def test_without_a_terminal_stdout_and_the_report_have_no_colours(name: str, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    ran = CliRunner().invoke(qpack, [name, *absent("qpack", name)])
    assert "\x1b" not in ran.output
