"""What other repositories use: the pre-commit hooks and the GitHub action, and that they look at the same files."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from qpack_packager.textfix.kinds import text_files

ROOT = Path(__file__).parent.parent
ACTION = ROOT / ".github" / "actions" / "check"
TEXT = [
    "config.json",
    "tokenizer.json",
    "data.jsonl",
    "chat_template.jinja",
    "x.jinja2",
    "x.j2",
    "a.yaml",
    "a.yml",
    "README.md",
    "x.markdown",
    "merges.txt",
    "CITATION.cff",
    "README",
    "LICENSE",
    "LICENCE",
    "NOTICE",
    "COPYING",
    "License-MIT",
    "LICENSE.txt",
    "NOTICE_THIRD_PARTY",
    "readme.zh",
    "CONFIG.JSON",
]
OTHERS = [
    "model.safetensors",
    "run.py",
    "x.json.bak",
    "jsonl",
    "LICENSED",
    "Makefile",
    "x.txt.gz",
    "vocab.bin",
    ".gitignore",
]


def hooks() -> list[dict[str, Any]]:
    return yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))


def test_the_hooks_choose_the_files_that_a_directory_would_give(tmp_path: Path):
    for name in TEXT + OTHERS:
        (tmp_path / name).touch()
    assert {path.name for path in text_files(tmp_path)} == set(TEXT)
    assert [hook["id"] for hook in hooks()] == ["qpack-check", "qpack-fix"]
    for hook in hooks():
        for folder in ("", "models/a/"):
            assert [name for name in TEXT + OTHERS if re.search(hook["files"], folder + name)] == TEXT
        assert not {"types", "types_or"} & hook.keys()  # pre-commit's tag of a UTF-16 file is binary


def action() -> dict[str, Any]:
    return yaml.safe_load((ACTION / "action.yml").read_text(encoding="utf-8"))


def test_the_action_hands_its_inputs_to_the_script_and_never_into_a_shell():
    for step in action()["runs"]["steps"]:
        assert "${{" not in step.get("run", "")
        if "check.sh" in step.get("run", ""):
            assert step["env"] == {name.upper(): f"${{{{ inputs.{name} }}}}" for name in action()["inputs"]}


def test_the_action_uses_others_only_by_commit():
    for step in action()["runs"]["steps"]:
        assert re.fullmatch(r"[\w-]+/[\w/-]+@[0-9a-f]{40}", step.get("uses", f"a/b@{'0' * 40}"))


@pytest.fixture
def runner(tmp_path: Path) -> Path:
    """A RUNNER_TEMP whose qpack writes down its arguments, one a line."""
    qpack = tmp_path / "qpack-check" / "bin" / "qpack"
    qpack.parent.mkdir(parents=True)
    qpack.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\nexit 1\n', encoding="utf-8")
    qpack.chmod(0o755)
    return tmp_path


def script(runner: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RUNNER_TEMP": str(runner), "PATHS": ".", "STRICT": "false", "ENCODINGS": "", **inputs}
    command = ["bash", str(ACTION / "check.sh"), "--format", "github"]
    return subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)


@pytest.mark.parametrize(
    ("inputs", "arguments"),
    [
        ({}, ["check", "--format", "github", "--", "."]),
        ({"STRICT": "true"}, ["check", "--format", "github", "--strict", "--", "."]),
        (
            {"PATHS": "my models\n--fix\n", "ENCODINGS": "README*=gb18030\n\n$(id)=cp1252\n"},
            ["check", "--format", "github", "--encoding", "README*=gb18030", "--encoding", "$(id)=cp1252", "--",
             "my models", "--fix"],
        ),
    ],
)  # fmt: skip
def test_the_script_passes_each_line_as_one_argument(runner: Path, inputs: dict[str, str], arguments: list[str]):
    ran = script(runner, **inputs)
    assert (ran.returncode, ran.stdout.splitlines()) == (1, arguments)


@pytest.mark.parametrize("strict", ["", "yes", "True"])
def test_a_misspelt_strict_is_refused(runner: Path, strict: str):
    ran = script(runner, STRICT=strict)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "strict" in ran.stderr


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.mark.nightly
def test_pre_commit_installs_the_hooks_and_they_find_and_repair(tmp_path: Path):
    source, user = tmp_path / "qpack", tmp_path / "user"
    subprocess.run(["git", "clone", "--quiet", ROOT, source], check=True)
    user.mkdir()
    git(user, "init")
    (user / "config.json").write_bytes(b"{}\n")
    (user / "README").write_bytes('{"a": "x"}\n'.encode("utf-16"))
    git(user, "add", ".")

    def run(hook: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pre_commit", "try-repo", str(source), hook, "--all-files", "--verbose"]
        # Our warnings are errors; pre-commit's own are its concern.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHONWARN")}
        environment["PRE_COMMIT_HOME"] = str(tmp_path / "cache")
        return subprocess.run(command, cwd=user, env=environment, capture_output=True, encoding="utf-8", check=False)

    found = run("qpack-check")
    assert found.returncode == 1, found.stdout
    assert "README:1:1: QE" in found.stdout
    assert "in 1 of 2 files" in found.stdout
    assert run("qpack-fix").returncode == 1
    assert (user / "README").read_bytes() == b'{"a": "x"}\n'
    assert run("qpack-check").returncode == 0
