"""Teacher-forced logits are those of transformers on the bundle's weights, whatever runs beside a window; and the
stream of the command is framed as its help says."""

import io
import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from bundles import ASSETS, build_bundle
from checkpoints import random_checkpoint
from executors import EXACT, FAST, REFERENCE, Kind, host_executor
from late_executor import LateExecutor
from oracle import dequantized_state, transformers_model
from qpack_packager.serving import Options
from qpack_runtime.cli import main
from qpack_runtime.engine import Engine
from qpack_runtime.logits import forced_logits
from qpack_schemas.bundle import open_bundle
from teacher_forcing import held_out_windows

LENGTH = 24
FLOAT32 = Options(batches=(1, 4), contexts=(32, 64), prefills=(1, 16), slots=4, dtype="float32")


@pytest.fixture(scope="module")
def windows() -> np.ndarray:
    """int32 [6, LENGTH]: more than a decode step has rows."""
    return held_out_windows("tiny-qwen3_5", 6)[:, :LENGTH].astype(np.int32)


@pytest.fixture(scope="module")
def exact_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_bundle(ASSETS / "tiny-qwen3_5", tmp_path_factory.mktemp("bundles") / "bundle", FLOAT32)


def stacked(engine: Engine, windows: np.ndarray) -> np.ndarray:
    """[windows, LENGTH - 1, vocab]"""
    return np.stack([logits.copy() for logits in forced_logits(engine, windows)], axis=1)


@pytest.mark.parametrize("kind", [REFERENCE, EXACT[0]], ids=str)
def test_they_are_those_of_transformers_on_the_same_weights(kind: Kind, exact_bundle: Path, windows: np.ndarray):
    booted = kind.boot(exact_bundle)
    model = transformers_model(ASSETS / "tiny-qwen3_5", dequantized_state(booted.bundle, ASSETS / "tiny-qwen3_5"))
    with torch.no_grad():
        wanted = model(torch.from_numpy(windows[:4].astype(np.int64)), use_cache=False).logits[:, :-1].numpy()
    wanted = wanted[..., : booted.engine.vocab]
    got = stacked(booted.engine, windows[:4])
    assert np.abs(got - wanted).max() < 1e-4 * np.abs(wanted).max()


@pytest.mark.parametrize("kind", [REFERENCE, FAST[0]], ids=str)
def test_a_window_gives_the_same_bits_alone_and_beside_others(
    kind: Kind, tiny_bundle: Callable[[str], Path], windows: np.ndarray
):
    booted = kind.boot(tiny_bundle("tiny-qwen3_5"))
    together = stacked(booted.engine, windows[:4])
    for window in (2, 0):
        assert np.array_equal(stacked(booted.engine, windows[window : window + 1])[0], together[window])


def test_an_executor_that_computes_late_gives_the_same(tiny_bundle: Callable[[str], Path], windows: np.ndarray):
    bundle = open_bundle(tiny_bundle("tiny-qwen3_5"))
    wanted = stacked(Engine(REFERENCE.make(bundle), bundle.manifest), windows[:2])
    assert np.array_equal(stacked(Engine(LateExecutor(bundle), bundle.manifest), windows[:2]), wanted)


@pytest.mark.parametrize("kind", [REFERENCE, FAST[0]], ids=str)
def test_behind_logits_that_are_not_finite_a_window_has_none_and_the_others_go_on(
    kind: Kind, tiny_bundle: Callable[[str], Path], windows: np.ndarray
):
    booted = kind.boot(tiny_bundle("tiny-qwen3_5"))
    wanted, got = stacked(booted.engine, windows[:3]), []
    context, spoilt = booted.engine.context, (4, 5)  # from behind one position to behind the next, and sound again
    state = {name: host_executor(booted).state(name) for name in ("3.attn.k", "3.attn.v")}  # [slots * context, ...]
    for position, logits in enumerate(forced_logits(booted.engine, windows[:3])):
        got.append(logits.copy())
        if position == spoilt[0]:
            kept = {name: array.copy() for name, array in state.items()}
            for array in state.values():
                array[context : 2 * context] = np.nan
        if position == spoilt[1]:
            for name, array in state.items():
                array[context : 2 * context] = kept[name][context : 2 * context]
    found = np.stack(got, axis=1)
    assert np.array_equal(found[[0, 2]], wanted[[0, 2]])
    assert np.array_equal(found[1, :5], wanted[1, :5])
    assert not np.isfinite(found[1, 5:]).any(-1).any()
    assert np.isnan(found[1, 6:]).all()


def test_they_end_where_the_tokenizers_ids_do(windows: np.ndarray, tmp_path: Path):
    """A checkpoint's matrices may have lines that no token belongs to."""
    model = random_checkpoint(tmp_path / "model", "qwen3", vocab_size=640)
    booted = REFERENCE.boot(build_bundle(model, tmp_path / "bundle", FLOAT32))
    with torch.no_grad():
        state = dequantized_state(booted.bundle, model)
        wanted = transformers_model(model, state)(torch.from_numpy(windows[:1].astype(np.int64))).logits[0, :-1].numpy()
    assert wanted.shape[1] == 640
    got = stacked(booted.engine, windows[:1])[0]
    assert got.shape == (LENGTH - 1, 512)
    assert np.abs(got - wanted[:, :512]).max() < 1e-4 * np.abs(wanted).max()


def ask(bundle: Path, windows: np.ndarray | Path, *flags: str, tmp_path: Path) -> Result:
    if isinstance(windows, np.ndarray):
        np.save(tmp_path / "windows.npy", windows)
        windows = tmp_path / "windows.npy"
    return CliRunner().invoke(main, ["logits", str(bundle), "--windows", str(windows), *flags])


def test_the_stream_is_a_line_of_json_and_a_frame_for_each_position_of_each_batch(
    tiny_bundle: Callable[[str], Path], windows: np.ndarray, tmp_path: Path
):
    bundle = tiny_bundle("tiny-qwen3_5")
    result = ask(bundle, windows, "--mode", "exact", "--threads", "1", tmp_path=tmp_path)
    assert result.exit_code == 0, result.stderr
    head, _, rest = result.stdout_bytes.partition(b"\n")
    header = json.loads(head)
    assert header["bundle_id"] == open_bundle(bundle).bundle_id
    assert (header["device"], header["mode"], header["facts"]["threads"]) == ("cpu", "exact", 1)
    assert (header["windows"], header["rows"], header["batch"]) == (6, LENGTH - 1, 4)
    engine, stream = EXACT[0].boot(bundle).engine, io.BytesIO(rest)
    assert header["vocab"] == engine.vocab
    for first, last in ((0, 4), (4, 6)):
        for position, wanted in enumerate(forced_logits(engine, windows[first:last])):
            assert struct.unpack("<3i", stream.read(12)) == (first, last - first, position)
            assert stream.read(wanted.nbytes) == wanted.astype("<f4").tobytes()
    assert stream.read() == b""


def test_windows_of_two_tokens_are_one_row_each(tiny_bundle: Callable[[str], Path], windows: np.ndarray):
    booted = REFERENCE.boot(tiny_bundle("tiny-qwen3_5"))
    wanted = stacked(booted.engine, windows[:2])
    assert np.array_equal(stacked(booted.engine, windows[:2, :2]), wanted[:, :1])


def test_a_window_may_fill_the_context(tiny_bundle: Callable[[str], Path]):
    booted = FAST[0].boot(tiny_bundle("tiny-qwen3_5"))
    windows = held_out_windows("tiny-qwen3_5", 1).astype(np.int32)
    assert windows.shape[1] == booted.engine.context
    assert np.isfinite(stacked(booted.engine, windows)).all()


def refused(result: Result, code: int) -> str:
    assert (result.exit_code, result.stdout_bytes) == (code, b""), result.stderr
    assert result.stderr.startswith("error: ")
    return result.stderr


def test_a_terminal_is_refused(tiny_bundle: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    with pytest.raises(SystemExit) as exit:
        main.main(["logits", str(tiny_bundle("tiny-qwen3")), "--windows", "x.npy"], standalone_mode=False)
    assert exit.value.code == 2
    assert terminal.getvalue() == ""


def test_what_are_no_windows_is_refused_with_what_was_found(
    tiny_bundle: Callable[[str], Path], windows: np.ndarray, tmp_path: Path
):
    bundle = tiny_bundle("tiny-qwen3_5")
    (tmp_path / "text.npy").write_bytes(b"no array")
    np.savez(tmp_path / "several.npz", windows=windows)
    cases = [
        (windows.astype(np.int64), 1, "int64 [6, 24]"),
        (windows[0], 1, "int32 [24]"),
        (windows[:, :1], 1, "int32 [6, 1]"),
        (windows[:0], 1, "int32 [0, 24]"),
        (tmp_path / "text.npy", 1, "is no .npy file"),
        (tmp_path / "several.npz", 1, "is no .npy file"),
        (tmp_path / "absent.npy", 1, "No such file"),
        (np.zeros((1, 129), np.int32), 6, "129 tokens, the bundle's context is 128"),
        (np.array([[1, 2], [-1, 2]], np.int32), 1, "token -1 of window 1"),
        (np.array([[1, 2], [3, 70000]], np.int32), 1, "token 70000 of window 1"),
    ]
    for given, code, words in cases:
        assert words in refused(ask(bundle, given, "--device", "reference", tmp_path=tmp_path), code)
