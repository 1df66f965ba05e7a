"""A command that a signal ends leaves nothing behind, whenever the signal comes."""

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from checkpoints import TINY_QWEN3
from qpack_schemas.bundle import open_bundle

SMALL = ["--batch", "1", "--context", "64", "--prefill", "16"]

# Runs the command that stdin has, again and again, and sends itself a signal just before a thing that it does to files:
# one of `stride` of them, Ctrl-C and SIGTERM by turns. stdout gets a line of JSON a run: signal, code, message, what is
# new, whether the rest is as it was. The last run was not interrupted.
EACH_MOMENT = """
import io, json, os, shutil, signal, sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from qpack_packager.cli import main

CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir"}
arguments, stride = json.load(sys.stdin)
moment = -1  # counts down to the signal

def hook(event, found):
    global moment
    here = os.getcwd()
    opened = event == "open" and isinstance(found[0], str) and os.path.abspath(found[0]).startswith(here)
    if moment >= 0 and (opened or event in CHANGES):
        moment -= 1
        if moment < 0:
            os.kill(os.getpid(), number)

sys.addaudithook(hook)
given = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
for first in range(1, 1_000_000, stride):
    moment, number = first, (signal.SIGINT, signal.SIGTERM)[first % 2]
    stdout, stderr = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(stdout), redirect_stderr(stderr):
            main(arguments)
    except SystemExit as end:
        code = end.code
    came, moment = moment < 0, -1
    new = [path for path in Path().rglob("*") if path not in given]
    left = sorted(str(path) for path in new if path.is_file() or path.name.startswith("."))
    same = all(path.read_bytes() == data for path, data in given.items())
    print(json.dumps([number, code, stderr.getvalue(), left, same]), file=sys.__stdout__, flush=True)
    if not came:
        break
    for path in Path().iterdir():
        if not any(path in (one, *one.parents) for one in given):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path, data in given.items():
        path.write_bytes(data)
"""


def each_moment(folder: Path, *arguments: str, stride: int = 1) -> Iterator[tuple[bool, list[str], bool]]:
    """Of each run whether the signal ended it, what it left, and whether the files before it are as they were."""
    ran = subprocess.run(
        [sys.executable, "-c", EACH_MOMENT], cwd=folder, capture_output=True, encoding="utf-8", check=False,
        input=json.dumps([arguments, stride]),
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    *ended, (_, code, message, _, _) = (tuple(json.loads(line)) for line in ran.stdout.splitlines())
    assert code in (0, 1), message
    assert len(ended) > 1
    for number, code, message, left, same in ended:
        assert "Traceback" not in message
        assert not [path for path in left if path.startswith(".")], message
        assert code in (0, 128 + number), message
        if code:
            says = "interrupted" if number == signal.SIGINT else "terminated"
            assert message.splitlines()[-1] == f"error: {says}"
        yield code != 0, left, same


def builds_end_well(folder: Path, stride: int) -> None:
    model = shutil.copytree(TINY_QWEN3, folder / "model")
    states = set[bool]()
    for _, left, same in each_moment(folder, "build", model.name, "-o", "bundle", *SMALL, stride=stride):
        assert same
        assert not left or "bundle/manifest.json" in left  # renamed already: that is the last thing of it
        states.add(bool(left))
    assert False in states


def test_a_build_leaves_a_whole_bundle_or_nothing(tmp_path: Path):
    builds_end_well(tmp_path, 5)


@pytest.mark.nightly
def test_a_build_leaves_a_whole_bundle_or_nothing_at_any_moment(tmp_path: Path):
    builds_end_well(tmp_path, 1)


@pytest.mark.parametrize(
    "arguments",
    [
        ("export", "bundle", "-o", "checkpoint", "--format", "compressed-tensors"),
        ("inspect", "bundle", "--format", "html", "-o", "page.html"),
    ],
)
def test_a_report_or_an_export_is_whole_or_not_there(
    arguments: tuple[str, ...], tiny_bundle: Callable[[str], Path], tmp_path: Path
):
    shutil.copytree(tiny_bundle("tiny-qwen3"), tmp_path / "bundle")
    whole = set[tuple[str, ...]]()
    for _, left, same in each_moment(tmp_path, *arguments, stride=3):
        assert same
        whole |= {tuple(left)} if left else set()
    assert len(whole) <= 1


def test_a_file_that_check_repairs_is_old_or_new(tmp_path: Path):
    (tmp_path / "README.md").write_bytes(b"one\r\ntwo\r\n")
    assert all(left == [] for _, left, _ in each_moment(tmp_path, "check", "README.md", "--fix"))


def test_ctrl_c_on_a_terminal_ends_a_build_with_one_line_and_shows_the_cursor_again(tmp_path: Path):
    """A real one: the terminal sends the signal, to every process of the build."""
    # A build that waits for the signal when half of its work is done, since a tiny one is over before it can come.
    patch = """
import sys, time
from qpack_packager.progress import Progress
from qpack_packager.cli import main
from contextlib import contextmanager
@contextmanager
def slow(self, name, total, unit="", phase=Progress.phase):
    with phase(self, name, total, unit) as step:
        yield step
        time.sleep(600 * (name == "weights"))
Progress.phase = slow
sys.argv[0] = "qpack"
main()
"""
    arguments = ["-c", patch, "build", str(TINY_QWEN3), "-o", str(tmp_path / "bundle"), *SMALL]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, *arguments], {**os.environ, "TERM": "xterm"})
    shown, sent = b"", False
    try:
        while block := os.read(terminal, 4096):
            shown += block
            if b"weights" in shown and not sent:
                sent = os.write(terminal, b"\x03\x03") == 2  # twice, as people do
    except OSError:  # Linux says EIO when the other end is closed
        pass
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 130, shown
    assert list(tmp_path.iterdir()) == []
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")
    assert shown.endswith(b"\x1b[1;31merror:\x1b[0m interrupted\r\n")
    assert b"Traceback" not in shown


def test_a_build_that_may_resume_keeps_its_work(tmp_path: Path):
    stop = """
import os, signal, sys
from qpack_packager.progress import Progress
from qpack_packager.cli import main
def event(self, event, plain, write=Progress._event):
    write(self, event, plain)
    if event.get("phase") == "weights" and event.get("done", 0) > 500_000:
        os.kill(os.getpid(), signal.SIGTERM)
Progress._event = event
sys.argv[0] = "qpack"
main()
"""
    command = [sys.executable, "-c", stop, "build", str(TINY_QWEN3), "-o", str(tmp_path / "bundle"), *SMALL, "--resume"]
    ran = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert (ran.returncode, ran.stdout) == (143, "")
    left = sorted(os.listdir(tmp_path))
    assert left[0].startswith(".bundle.")
    assert left[1:] == [f"{left[0]}.work"]
    again = [sys.executable, "-c", "from qpack_packager.cli import main; main()", *command[3:]]
    assert subprocess.run(again, capture_output=True, check=False).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
    open_bundle(tmp_path / "bundle")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("phase", "flags"),
    [
        ("kernels", ["--target", "cuda:sm_89"]),
        ("evaluation", ["--eval", str(TINY_QWEN3 / "eval.txt")]),
    ],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_compilers_and_measurements_leave_neither_files_nor_processes(
    phase: str, flags: list[str], number: signal.Signals, tmp_path: Path
):
    """The signal comes to all processes of the build, as a terminal or a CI system sends it."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in background jobs
    code += "from qpack_packager.cli import main; main()"
    command = [sys.executable, "-c", code, "build", str(TINY_QWEN3), "-o", str(tmp_path / "bundle"), *SMALL, *flags]
    variables = {**os.environ, "TMPDIR": str(temporary), "QPACK_KERNEL_CACHE": str(tmp_path / "cache")}
    with subprocess.Popen(
        [*command, "--progress", "json"],
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=variables,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        heard = iter(process.stderr)
        begun = next(line for line in heard if json.loads(line).get("phase") == phase)
        assert begun
        os.killpg(process.pid, number)
        rest = [line for line in heard if not line.startswith("{")]  # to the end: no process is left that could write
    assert process.returncode == 128 + number, rest
    assert len(rest) == 1
    assert rest[0].startswith("error: ")
    assert list(temporary.iterdir()) == []
    assert not [path for path in tmp_path.iterdir() if "bundle" in path.name]
