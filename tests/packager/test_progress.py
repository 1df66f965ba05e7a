"""Progress is for people and for programs, and always on stderr."""

import json
import os
import pty
import subprocess
import sys

import pytest

from bundles import ASSETS, SMALL
from qpack_packager.build import build
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.progress import Mode, Progress
from slow_hashing import hash_when_shown

CLI = "import sys; from qpack_packager.cli import main; sys.argv[0] = 'qpack'; main()"


def work(mode: Mode, units: int) -> None:
    progress = Progress(mode)
    progress.note("a file was passed over")
    with progress.phase("weights", units) as step:
        for unit in range(units):
            step(f"unit {unit}")


@pytest.mark.parametrize("mode", ["plain", "json", "auto"])
def test_stdout_stays_clean(mode: Mode, capsys: pytest.CaptureFixture[str]):
    work(mode, 3)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "a file was passed over" in captured.err


@pytest.mark.parametrize("units", [1, 3, 10, 11, 997])
def test_plain_lines_are_few_and_tell_the_end(units: int, capsys: pytest.CaptureFixture[str]):
    work("plain", units)
    note, start, *steps = capsys.readouterr().err.splitlines()
    assert (note, start) == ("note: a file was passed over", f"weights ({units})")
    assert len(steps) <= 10
    assert steps[-1] == f"  weights: {units} of {units}"


def test_events_are_one_json_object_per_line(capsys: pytest.CaptureFixture[str]):
    work("json", 3)
    note, start, *steps = map(json.loads, capsys.readouterr().err.splitlines())
    assert note == {"event": "note", "message": "a file was passed over"}
    assert start == {"event": "phase", "phase": "weights", "total": 3}
    assert [(step["event"], step["done"], step["unit"]) for step in steps] == [
        ("step", done, f"unit {done - 1}") for done in (1, 2, 3)
    ]


def test_lines_that_are_no_terminal_get_no_bar(capsys: pytest.CaptureFixture[str]):
    work("auto", 2)
    automatic = capsys.readouterr().err
    work("plain", 2)
    assert automatic == capsys.readouterr().err


def test_a_build_counts_every_module_to_the_last(
    tmp_path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """And every file that is not hashed yet when the weights are made."""
    hash_when_shown(monkeypatch)
    build(ModelText(ASSETS / "tiny-qwen3"), tmp_path / "bundle", SMALL, Progress("json"))
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    names = [event["phase"] for event in events if event["event"] == "phase"]
    assert names == ["weights", "source"]
    for name in names:
        (phase,) = (event for event in events if event["event"] == "phase" and event["phase"] == name)
        steps = [event for event in events if event["event"] == "step" and event["phase"] == name]
        done = [step["done"] for step in steps]
        assert done == sorted(done)
        assert done[-1] == phase["total"]
        assert len({step["unit"] for step in steps}) == len(steps)
        assert steps[-1]["seconds_left"] == 0
        assert all(step["bytes_per_second"] > 0 for step in steps)
        assert all(step["seconds"] >= 0 for step in steps)  # of this unit


def test_a_terminal_gets_a_bar_and_the_result_stays_whole(tmp_path):
    primary, secondary = pty.openpty()
    command = [sys.executable, "-c", CLI, "build", str(ASSETS / "tiny-qwen3"), "-o", str(tmp_path / "bundle")]
    with subprocess.Popen(
        [*command, "--format", "json"], stdout=subprocess.PIPE, stderr=secondary, env={**os.environ, "TERM": "xterm"}
    ) as process:
        os.close(secondary)
        drawn = b""
        try:
            while block := os.read(primary, 4096):
                drawn += block
        except OSError:  # Linux says EIO when the other end is closed
            pass
        out, _ = process.communicate()
    os.close(primary)
    assert process.returncode == 0
    assert b"weights" in drawn
    assert b"\x1b[" in drawn
    assert json.loads(out)["bundle"] == str(tmp_path / "bundle")
