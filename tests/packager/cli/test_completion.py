"""What bash, zsh and fish propose, each asked by pressing Tab or as it asks itself."""

import os
import pty
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from qpack_packager.recipe import SHIPPED

# qpack as a program on PATH, as an installation has it.
SCRIPT = f"""#!{sys.executable}
import sys
from qpack_packager.cli import main
sys.argv[0] = "qpack"
main()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with `qpack` in bin/ and a folder that may be a checkpoint."""
    program = tmp_path / "bin" / "qpack"
    program.parent.mkdir()
    program.write_text(SCRIPT, encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "Qwen3-0.6B").mkdir()
    (tmp_path / "Quotes.txt").write_text("", encoding="ascii")
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "HOME": str(folder), "TERM": "dumb", "HISTFILE": "", "PS1": "> "}


def bash(folder: Path, typed: str) -> str:
    """The line that Tab makes of what was typed, in an interactive bash on a terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment(folder))
    # The program that is asked for words is the one in bin/; the command line itself comes to the function.
    setup = 'eval "$(_QPACK_COMPLETE=bash_source qpack)"; qpack() { printf %s "$*" > typed; exit; }'
    os.write(terminal, f"{setup}\n{typed}\t\n".encode())
    with suppress(OSError):  # Linux says EIO when the other end is closed
        while os.read(terminal, 4096):
            pass
    os.close(terminal)
    os.waitpid(pid, 0)
    return (folder / "typed").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("qpack bui", "build"),
        ("qpack tun", "tuning-kit"),
        ("qpack build --lm-h", "build --lm-head"),
        ("qpack build --method g", "build --method gptq"),
        ("qpack export --format comp", "export --format compressed-tensors"),
        ("qpack build --recipe few", "build --recipe fewest-bytes"),
        ("qpack build --recipe Quo", "build --recipe Quotes.txt"),
        ("qpack build --target cp", "build --target cpu"),
        ("qpack plan Q", "plan Qwen3-0.6B/"),  # of two names the one that is a folder
        ("qpack eval bundle --text Quo", "eval bundle --text Quotes.txt"),
    ],
)
def test_bash_completes_commands_options_choices_names_and_paths(folder: Path, typed: str, completed: str):
    assert bash(folder, typed) == completed


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_takes_the_script_and_completes(folder: Path):
    command = "_QPACK_COMPLETE=fish_source qpack | source; complete --do-complete 'qpack bui'"
    ran = subprocess.run(
        ["fish", "-c", command], cwd=folder, env=environment(folder), capture_output=True, encoding="utf-8", check=False
    )
    assert ran.stdout.split("\t")[0].strip() == "build", ran.stderr


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_takes_the_script(folder: Path):
    command = 'autoload -Uz compinit; compinit -u; eval "$(_QPACK_COMPLETE=zsh_source qpack)"; print $_comps[qpack]'
    ran = subprocess.run(
        ["zsh", "-f", "-c", command], cwd=folder, env=environment(folder), capture_output=True, encoding="utf-8",
        check=False,
    )  # fmt: skip
    assert ran.stdout.strip() == "_qpack_completion", ran.stderr


def test_every_recipe_and_target_is_proposed(folder: Path):
    def proposed(words: str) -> list[str]:
        variables = {"_QPACK_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()))}
        ran = subprocess.run(
            ["qpack"], env={**environment(folder), **variables}, capture_output=True, encoding="utf-8", check=False
        )
        return [line.partition(",")[2] for line in ran.stdout.splitlines() if line.startswith("plain,")]

    assert proposed("qpack build --recipe") == sorted(path.stem for path in SHIPPED.glob("*.yaml"))
    assert {"cpu", "cuda", "cuda:sm_89"} <= set(proposed("qpack plan --target"))
