"""Runs the steps of GitHub's workflows and actions as a runner does, `uses` apart: those are written down."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
SHELL = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c"]

# `python -m venv FOLDER` as the steps call it. pip in it notes what it should install; the other programs are those
# of the environment that the tests run in.
PYTHON = """#!/bin/sh
[ "$1 $2" = "-m venv" ] || exec {python} "$@"
mkdir -p "$3/bin"
ln -sf {python} "$3/bin/python"
cp "{programs}"/* "$3/bin/"
"""
PIP = '#!/bin/sh\nfor last; do :; done\necho "$last" >>"{programs}/../installed"\n'
QPACK = '#!/bin/sh\nexec {python} -c "from qpack_packager.cli import main; main(prog_name=\'qpack\')" "$@"\n'


class Host:
    """A machine that runs pipelines in `workspace`, without a network. Every file is below `folder`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.workspace, self.temp, self.programs = folder / "work", folder / "temp", folder / "programs"
        self.path = folder / "path"
        for made in (self.workspace, self.temp, self.programs, self.path):
            made.mkdir()
        self.program("pip", PIP)
        self.program("qpack", QPACK)
        python = self.path / "python"
        python.write_text(PYTHON.format(python=sys.executable, programs=self.programs), encoding="utf-8")
        python.chmod(0o755)

    def program(self, name: str, text: str) -> None:
        """One that each `python -m venv` gets."""
        file = self.programs / name
        file.write_text(
            text.replace("{python}", sys.executable).replace("{programs}", str(self.programs)), encoding="utf-8"
        )
        file.chmod(0o755)

    @property
    def installed(self) -> list[str]:
        """What pip was asked for."""
        file = self.folder / "installed"
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    def run(self, script: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PYTHON", "OMP_", "LC_"))}
        whole = {**kept, "PATH": f"{self.path}:{os.environ['PATH']}", "HOME": str(self.folder), **environment}
        return subprocess.run(
            [*SHELL, script], cwd=self.workspace, env=whole, capture_output=True, encoding="utf-8", check=False
        )


@dataclass
class Ran:
    """What steps came to. `uses` has the inputs of each `uses`, by the name of the action."""

    failed: bool = False
    outputs: dict[str, str] = field(default_factory=dict)
    uses: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    summary: str = ""
    log: str = ""


def run_action(host: Host, name: str, inputs: Mapping[str, str], **outputs_of: Mapping[str, str]) -> Ran:
    """An action of this repository. `outputs_of` has the outputs of its `uses` by the step's id."""
    folder = GITHUB / "actions" / name
    action = yaml.safe_load((folder / "action.yml").read_text(encoding="utf-8"))
    assert inputs.keys() <= action["inputs"].keys()
    context = {f"inputs.{key}": str(one.get("default", "")) for key, one in action["inputs"].items()}
    context |= {f"inputs.{key}": value for key, value in inputs.items()}
    python = {"python": {"python-path": str(host.path / "python")}}
    ran = run_steps(host, action["runs"]["steps"], context, folder, {**python, **outputs_of})
    ran.outputs = {key: expand(one["value"], context) for key, one in action.get("outputs", {}).items()}
    return ran


def run_steps(
    host: Host,
    steps: list[dict[str, Any]],
    context: dict[str, str],
    folder: Path,
    outputs_of: Mapping[str, Mapping[str, str]],
) -> Ran:
    ran = Ran()
    files = {name: host.temp / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    context["runner.temp"] = str(host.temp)
    for step in steps:
        asked = step.get("if", "")
        wanted = condition(asked, context) if asked else True
        skipped = not wanted or (ran.failed and "cancelled()" not in asked and "always()" not in asked)
        identity = step.get("id", "")
        context[f"steps.{identity}.outcome"] = "skipped"
        if skipped:
            continue
        failed, found = False, outputs_of.get(identity, {})
        if "uses" in step:
            given = {key: expand(value, context) for key, value in step.get("with", {}).items()}
            ran.uses.setdefault(step["uses"].partition("@")[0], []).append(given)
        else:
            for file in files.values():
                file.write_text("", encoding="utf-8")
            environment = {key: expand(value, context) for key, value in step.get("env", {}).items()}
            own = {"RUNNER_TEMP": str(host.temp), "GITHUB_ACTION_PATH": str(folder)}
            own |= {name: str(file) for name, file in files.items()}
            done = host.run(step["run"], environment | own)
            failed = done.returncode != 0
            ran.log += done.stdout + done.stderr
            ran.summary += files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8")
            lines = files["GITHUB_OUTPUT"].read_text(encoding="utf-8").splitlines()
            found = dict(line.split("=", 1) for line in lines)
        ran.failed |= failed
        context[f"steps.{identity}.outcome"] = "failure" if failed else "success"
        context.update({f"steps.{identity}.outputs.{key}": value for key, value in found.items()})
    return ran


def expand(text: object, context: Mapping[str, str]) -> str:
    return re.sub(r"\$\{\{(.*?)\}\}", lambda found: context.get(found[1].strip(), ""), str(text))


def condition(text: str, context: Mapping[str, str]) -> bool:
    """The part of GitHub's expressions that these workflows use, by way of Python's."""
    text = text.strip().removeprefix("${{").removesuffix("}}")
    text = re.sub(r"[a-z]+\.[\w.-]+", lambda found: repr(context.get(found[0], "")), text)
    text = (
        text.replace("&&", " and ").replace("||", " or ").replace("!=", "<>").replace("!", " not ").replace("<>", "!=")
    )
    known = {"contains": lambda whole, part: part in whole, "cancelled": lambda: False, "always": lambda: True}
    return bool(eval(text.strip(), {"__builtins__": {}}, known))
