"""The child is this installation's runtime; what ends it is passed on in its words and with its exit code."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from executors import EXACT
from qpack_packager.evaluate import runner
from qpack_packager.evaluate.runner import Device, running
from qpack_runtime.logits import forced_logits
from qpack_schemas.errors import QpackError

WINDOWS = np.arange(30, dtype=np.int32).reshape(5, 6) + 40
LACKING = """
import importlib.abc, sys
class Lacking(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            raise ModuleNotFoundError("No module named 'numpy'", name=name)
sys.meta_path.insert(0, Lacking())
from qpack_runtime.cli import main; main()
"""
HEADER = b'{"windows": 5, "rows": 5, "batch": 4, "vocab": 2}\\n'


@pytest.fixture
def bundle(tiny_bundle: Callable[[str], Path]) -> Path:
    """Its decode steps have up to 4 rows."""
    return tiny_bundle("tiny-qwen3_5")


def child(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """A child that runs `code` instead."""
    monkeypatch.setattr(runner, "RUNTIME", (sys.executable, "-c", code))


def test_steps_are_those_of_the_runtime(bundle: Path):
    with running(bundle, WINDOWS, "exact", Device("cpu", 1)) as stream:
        header = stream.header
        assert (header["mode"], header["device"], header["facts"]["threads"], header["batch"]) == ("exact", "cpu", 1, 4)
        engine = EXACT[0].boot(bundle).engine
        for first, count in ((0, 4), (4, 1)):
            for position, wanted in enumerate(forced_logits(engine, WINDOWS[first : first + count])):
                assert np.array_equal(stream.read(first, count, position), wanted)
        stream.end()


def test_a_relative_path_is_the_callers(bundle: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(bundle.parent)
    with running(Path(bundle.name), WINDOWS, None, Device("reference")) as stream:
        assert stream.header["mode"] is None


def refusal(bundle: Path, windows: np.ndarray = WINDOWS, device: Device | None = None) -> QpackError:
    def ask() -> None:
        with running(bundle, windows, None, device or Device()) as stream:
            stream.read(0, 4, 0)
            stream.end()

    with pytest.raises(QpackError) as raised:
        ask()
    return raised.value


def test_what_the_runtime_refuses_is_refused_in_its_words_with_its_exit_code(bundle: Path):
    absent = refusal(bundle / "absent")
    assert (absent.exit_code, absent.remedy) == (1, "name the directory of a bundle")
    assert f"{bundle / 'absent'}: is no directory" in str(absent)
    beyond = refusal(bundle, np.zeros((1, 200), np.int32))
    assert beyond.exit_code == 6
    assert "the bundle's context is 128" in str(beyond)
    assert refusal(bundle, device=Device("cuda")).exit_code == 4
    assert refusal(bundle, device=Device("cuda", 2)).exit_code == 2
    damaged = refusal(bundle.parent)
    assert damaged.exit_code == 5
    assert "manifest.json" in str(damaged)


def test_a_runtime_that_is_not_installed_is_named_with_the_command_that_installs_it(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runner, "RUNTIME", (sys.executable, "-c", LACKING))
    error = refusal(bundle)
    assert error.exit_code == 2
    assert (error.message, error.remedy) == (
        "this command needs numpy, which is not installed",
        "pip install 'qpack-llm[runtime]'",
    )


def test_a_child_that_dies_is_an_error_whenever_it_does(bundle: Path, monkeypatch: pytest.MonkeyPatch):
    child(monkeypatch, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    killed = refusal(bundle)
    assert killed.exit_code == 1
    assert "SIGKILL" in str(killed)
    write = f"import sys; sys.stdout.buffer.write(b'{HEADER.decode()}'"
    child(monkeypatch, f"{write} + bytes(30))")
    assert "exit code 0" in str(refusal(bundle))
    child(monkeypatch, f"{write}); sys.exit('error: no room: disk error: full\\n  remedy: make room')")
    error = refusal(bundle)
    assert (error.message, error.remedy, error.exit_code) == ("no room: disk error: full", "make room", 1)
    child(monkeypatch, f"{write} + bytes(12 + 4 * 4 * 2)[:0] + (0).to_bytes(4, 'little') + (4).to_bytes(4, 'little') "
          "+ bytes(4 + 4 * 4 * 2)); sys.exit(7)")  # fmt: skip
    assert refusal(bundle).exit_code == 7


def test_steps_out_of_order_are_noticed(bundle: Path, monkeypatch: pytest.MonkeyPatch):
    child(monkeypatch, f"import sys; sys.stdout.buffer.write(b'{HEADER.decode()}' + bytes(12 + 4 * 4 * 2))")
    with running(bundle, WINDOWS, None, Device()) as stream, pytest.raises(AssertionError, match="sent step"):
        stream.read(0, 4, 0)


def test_leaving_early_ends_the_child(bundle: Path):
    with running(bundle, WINDOWS, None, Device("cpu", 1)) as stream:
        process = stream._process
        assert process.poll() is None or process.returncode == 0
    assert process.returncode is not None
