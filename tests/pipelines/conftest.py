"""A machine that runs pipelines, and a qpack that only looks at how it is called."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from workflow_steps import Host

# Takes the arguments as qpack does, so that one that it doesn't know fails, and writes them down.
NOTED = """#!{python}
import json, sys
name, *arguments = sys.argv[1:]
if name == "--version":
    print("qpack, version 0.1.0")
    sys.exit()
from qpack_packager.cli import main
main.commands[name].make_context(name, list(arguments))
with open({notes!r}, "a", encoding="utf-8") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
answer = {answers!r}.get(name)
if answer:
    print(answer[1])
    sys.exit(answer[0])
"""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def noted(host: Host) -> Callable[..., Callable[[], list[list[str]]]]:
    """noted(build=(3, "{}")): puts such a qpack on the host, which for `build` prints {} and exits with 3. What comes
    back gives the calls so far."""
    notes = host.folder / "calls"

    def put(**answers: tuple[int, str]) -> Callable[[], list[list[str]]]:
        host.program("qpack", NOTED.replace("{notes!r}", repr(str(notes))).replace("{answers!r}", repr(answers)))
        return lambda: [json.loads(line) for line in notes.read_text(encoding="utf-8").splitlines()]

    return put


@pytest.fixture
def hub(host: Host) -> Callable[[Path], None]:
    """hub(folder): `hf download` on the host gives that folder, whatever is asked for, and notes its arguments."""

    def put(model: Path) -> None:
        log = shlex.quote(str(host.folder / "fetched"))
        host.program(
            "hf",
            f'#!/bin/sh\necho "$@" >{log}\nfor last; do :; done\nmkdir -p "$last/.cache"\n'
            f'cp {shlex.quote(str(model))}/* "$last/"\n',
        )

    return put
