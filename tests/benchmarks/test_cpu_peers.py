"""benchmarks/cpu_peers.py: what it measures, what it makes of the times, and how contenders come and go."""

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from click.testing import CliRunner, Result

from checkpoints import TINY_QWEN3
from qpack_schemas.errors import QpackError

FOLDER = Path(__file__).parents[2] / "benchmarks"


def module(name: str) -> Any:
    """A module of the benchmark, which no install has."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return importlib.import_module(f"peers.{name}")


class Recorder:
    """A contender that notes how many tokens the cache holds when a step begins."""

    def __init__(self) -> None:
        self.held: list[int] = []

    def fill(self, batch: int, positions: int) -> None:
        self.positions = positions

    def step(self) -> None:
        self.held.append(self.positions)
        self.positions += 1


class Player:
    """Stands in for the process of a contender: notes every call, and computes logits of one of two models."""

    calls: ClassVar[list[tuple[str, str, int]]] = []
    strangers: ClassVar[set[str]] = set()

    def __init__(self, name: str, *_: object):
        self.name, self.facts = name, {"version": "1"}

    def ask(self, call: str, **arguments: int) -> list[float]:
        if call == "logits":
            return [1.0, -1.0] if self.name in self.strangers else [1.0, 1.01]
        self.calls.append((self.name, call, arguments["context"]))
        return [2.0] * arguments["times"]

    def close(self) -> None:
        pass


@pytest.fixture
def players(monkeypatch: pytest.MonkeyPatch) -> type[Player]:
    comparison = module("comparison")
    monkeypatch.setattr(comparison, "Worker", Player)
    monkeypatch.setattr(comparison, "read_bandwidth", lambda threads: 10.0)
    monkeypatch.setattr(Player, "calls", [])
    return Player


def play(names: list[str], rounds: int) -> Any:
    comparison = module("comparison")
    cases = [comparison.Case("decode", 1, 128), comparison.Case("prefill", 1, 256)]
    nowhere = Path()
    return comparison.measure(
        nowhere, nowhere, names, vocab=2, threads=1, rounds=rounds, cases=cases, say=lambda line: None
    )


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Gives the library of the openvino contender another content."""

    def write(content: str) -> None:
        (tmp_path / "nncf.py").write_text(content, encoding="utf-8")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return write


def test_the_first_step_that_counts_finds_the_context_in_the_cache():
    contender = module("contender")
    recorder = Recorder()
    times = contender.decode_times(recorder, 1, 128, 32)
    assert len(times) == 32
    assert recorder.held[-32:] == list(range(128, 160))


def test_a_row_is_the_median_of_the_medians_of_rounds():
    comparison, table = module("comparison"), module("table")
    case = comparison.Case("decode", 4, 128)
    generator = np.random.default_rng(0)
    ours, theirs = generator.uniform(1, 9, (2, 5, 32)).tolist()
    measured = comparison.Measured({case: {"qpack-fast": ours, "llama-q4_0": theirs, "transformers-bf16": []}})
    fast, llama = table.rows(measured)
    median = np.median(np.median(theirs, axis=1))
    assert llama["median_ms"] == pytest.approx(median)
    assert llama["round_ms"] == pytest.approx(np.median(theirs, axis=1))
    assert llama["min_ms"] == np.min(theirs)
    assert llama["p99_ms"] == pytest.approx(np.percentile(theirs, 99))
    assert llama["tokens_per_s"] == pytest.approx(4 * 1000 / median)
    assert llama["ratio"] == pytest.approx(median / np.median(np.median(ours, axis=1)))
    assert fast["ratio"] == 1


def test_a_prompts_tokens_count_for_the_speed_of_a_prefill():
    comparison, table = module("comparison"), module("table")
    measured = comparison.Measured({comparison.Case("prefill", 1, 256): {"llama-q4_0": [[500.0, 500.0]]}})
    (row,) = table.rows(measured)
    assert row["tokens_per_s"] == 512
    assert row["ratio"] is None


def test_the_text_shows_every_number_and_who_was_left_out():
    comparison, table = module("comparison"), module("table")
    case = comparison.Case("decode", 1, 512)
    measured = comparison.Measured({case: {"qpack-fast": [[16.0], [18.0]], "llama-q4_0-pure": [[34.0], [68.0]]}})
    measured.left_out["openvino-int4"] = "nncf is not installed"
    measured.bandwidths += [20.0, 30.0]
    report = table.report(measured, module("host").describe(2), 2)
    text = table.as_text(json.loads(json.dumps(report)))
    assert "decode, batch 1, 512 tokens" in text
    assert " ".join(text.splitlines()[-3].split()) == "llama-q4_0-pure 51.00 34.0 - 68.0 34.00 67.66 19.6 3.00"
    assert "25.0 GB/s, 20.0 to 30.0" in text
    assert "left out: openvino-int4: nncf is not installed" in text


def test_contenders_take_turns_case_by_case_and_nobody_is_always_first(players: type[Player]):
    names = ["qpack-fast", "llama-q4_0", "openvino-int4"]
    play(names, rounds=2)
    first, second, third = names
    assert players.calls == [
        (name, *case)
        for turn in ([first, second, third], [second, third, first])
        for case in (("decode", 128), ("prefill", 256))
        for name in turn
    ]


def test_another_model_in_the_gguf_file_stops_the_comparison(players: type[Player], monkeypatch: pytest.MonkeyPatch):
    names = ["llama-q4_0", "transformers-bf16"]
    assert play(names, rounds=1).agreement == {"llama-q4_0": pytest.approx(1), "llama-bf16": pytest.approx(1)}
    monkeypatch.setattr(players, "strangers", {"llama-bf16"})
    with pytest.raises(QpackError, match="don't run the same model"):
        play(names, rounds=1)


def test_the_models_are_gone_afterwards_unless_they_are_to_stay(
    players: type[Player], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    module("host")  # finds the folder
    command = importlib.import_module("cpu_peers")

    def write(folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text('{"vocab_size": 2}', encoding="utf-8")

    def run(*arguments: str) -> Result:
        result = CliRunner().invoke(command.main, ["--rounds", "1", "--format", "json", *arguments])
        assert result.exit_code == 0, result.stderr
        rows = json.loads(result.stdout)["rows"]
        assert [row["median_ms"] for row in rows] == [2.0] * len(command.NAMES) * 7
        return result

    monkeypatch.setattr(command, "write_checkpoint", write)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run()
    assert list(tmp_path.iterdir()) == []
    run("--work", str(tmp_path / "models"))
    assert [path.name for path in tmp_path.iterdir()] == ["models"]
    monkeypatch.setattr(command, "write_checkpoint", None)  # those that are there are used again
    run("--work", str(tmp_path / "models"))
    monkeypatch.setattr(command, "write_checkpoint", write)
    kept = run("--keep")
    (folder,) = {*tmp_path.iterdir()} - {tmp_path / "models"}
    assert str(folder) in kept.stderr


def test_an_unknown_contender_is_a_usage_error_that_names_the_known():
    command = [sys.executable, str(FOLDER / "cpu_peers.py"), "--contenders", "qpack-fast,vllm"]
    ran = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert ran.returncode == 2, ran.stderr
    assert "'vllm' is no contender" in ran.stderr
    assert "transformers-bf16" in ran.stderr


def test_an_absent_library_is_named_with_the_command_that_installs_it(tmp_path: Path, broken: Callable[[str], None]):
    broken("raise ModuleNotFoundError(name='nncf')")
    process = module("process")
    with pytest.raises(process.PeerError, match=r"nncf is not installed: .*pip install -r benchmarks/requirements"):
        process.Worker("openvino-int4", TINY_QWEN3, tmp_path, 1)


def test_a_crash_leaves_one_contender_out_and_measures_the_others(tmp_path: Path, broken: Callable[[str], None]):
    broken("import os, sys; print('no such instruction', file=sys.stderr, flush=True); os.abort()")
    comparison = module("comparison")
    names, cases = ["openvino-int4", "transformers-bf16"], [comparison.Case("decode", 2, 20)]
    measured = comparison.measure(
        TINY_QWEN3, tmp_path, names, vocab=512, threads=1, rounds=2, cases=cases, say=lambda line: None
    )
    assert "exit code -6: no such instruction" in measured.left_out["openvino-int4"]
    assert [len(times) for times in measured.times[cases[0]]["transformers-bf16"]] == [comparison.STEPS] * 2
    assert measured.times[cases[0]]["openvino-int4"] == []


def test_a_contender_that_is_not_asked_is_stopped(tmp_path: Path):
    process = module("process")
    with closing(process.Worker("transformers-bf16", TINY_QWEN3, tmp_path, 2)) as worker:
        for _ in range(2):
            assert len(worker.ask("prefill", context=20, times=2)) == 2
            state = Path(f"/proc/{worker.pid}/stat").read_text(encoding="ascii").rpartition(") ")[2]
            assert state[0] == "T"  # proc(5): stopped on a signal


def test_contenders_run_the_same_model(tmp_path: Path):
    """Those that the tests' own environment has; the trained model, whose logits int4 changes little."""
    comparison, table = module("comparison"), module("table")
    names = ["qpack-fast", "qpack-exact", "transformers-bf16"]
    cases = [comparison.Case("decode", 1, 20), comparison.Case("decode", 4, 40), comparison.Case("prefill", 1, 256)]
    measured = comparison.measure(
        TINY_QWEN3, tmp_path, names, vocab=512, threads=2, rounds=2, cases=cases, say=lambda line: None
    )
    assert not measured.left_out
    assert {name: cosine > 0.97 for name, cosine in measured.agreement.items()} == dict.fromkeys(names[:2], True)
    rows = table.rows(measured)
    assert [(row["phase"], row["contender"]) for row in rows] == [
        (case.phase, name) for case in cases for name in names
    ]
    assert all(len(row["round_ms"]) == 2 and 0 < row["min_ms"] <= row["median_ms"] <= row["p99_ms"] for row in rows)
