"""benchmarks/build_peers.py: who builds when, what is counted of it, and what is made of the counts."""

import json
import sys
from pathlib import Path
from statistics import median

import pytest
from click.testing import CliRunner, Result
from tokenizers import Tokenizer

import build_peers
from building import measure, models
from building.contenders import Contender, Tools, contender
from building.measure import Build, Measured, Step, StepError
from building.table import as_text, report, rows
from checkpoints import TINY_QWEN3
from qpack_schemas.errors import UsageError

MIB = 2**20
NOWHERE = Tools(sys.executable, None, None)
WRITE = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_bytes(bytes(1000))"


def scripted(name: str, *codes: str) -> Contender:
    """Runs Python, step after step; the result is one file of 1000 bytes."""
    commands = [[sys.executable, "-c", code] for code in codes]
    steps = {f"step {number}": command for number, command in enumerate(commands)}
    return Contender(
        name, {**steps, "last": [sys.executable, "-c", WRITE, "{output}/result"]}, "result", {"version": "1"}
    )


def took(*seconds: float, peak: int = 0) -> Build:
    return Build({f"{number}": Step(s, 2 * s, peak) for number, s in enumerate(seconds)}, 5)


def test_a_row_is_the_median_of_rounds_and_the_highest_peak():
    ours, theirs = [1.5, 4.0, 2.0], [(3.0, 1.0), (5.0, 1.0), (9.0, 2.0)]
    peaks = [7, 9, 8]
    measured = Measured({
        "qpack": [took(s) for s in ours],
        "llama-q4_0-pure": [took(*s, peak=peak) for s, peak in zip(theirs, peaks, strict=True)],
        "llmcompressor-w4a16": [],
    })  # fmt: skip
    first, second = rows(measured)
    assert (first["contender"], first["seconds"], first["ratio"]) == ("qpack", median(ours), 1)
    assert second["round_seconds"] == [4, 6, 11]
    assert (second["seconds"], second["cpu_seconds"], second["peak_bytes"]) == (6, 12, 9)
    assert second["ratio"] == 6 / 2
    assert second["steps"] == {"0": 5, "1": 1}


def test_without_our_own_times_there_is_no_ratio():
    (row,) = rows(Measured({"qpack": [], "llama-q4_0-pure": [took(1)]}))
    assert row["ratio"] is None


def test_nobody_always_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    order: list[str] = []
    monkeypatch.setattr(measure, "build", lambda contender, work: (order.append(contender.name), took(1))[1])
    players = [scripted(name) for name in "abc"]
    measured = measure.measure(players, tmp_path, tmp_path, 3, lambda line: None)
    assert "".join(order) == "abc" + "bca" + "cab"
    assert [len(builds) for builds in measured.builds.values()] == [3, 3, 3]


def test_a_step_counts_the_memory_and_the_processor_time_of_its_children_and_nothing_of_ours(tmp_path: Path):
    """Linux counts the process that forks as well, and this one holds torch and what is allocated here."""
    ours = b"x" * (150 * MIB)
    work = """
import time
data, end = b"x" * (100 << 20), time.process_time() + 0.3
while time.process_time() < end:
    pass
"""
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}], check=True)"
    built = measure.build(scripted("a", parent, "pass"), tmp_path)
    step, idle, _ = built.steps.values()
    assert idle.peak_bytes < 50 * MIB < 100 * MIB <= step.peak_bytes == built.peak_bytes < len(ours)
    assert step.cpu_seconds >= 0.3
    assert idle.cpu_seconds < step.cpu_seconds
    assert built.seconds == sum(s.seconds for s in built.steps.values()) >= 0.3
    assert built.result_bytes == 1000


def test_who_fails_is_left_out_with_what_it_said_and_leaves_nothing(tmp_path: Path):
    failing = scripted("broken", "import sys; print('no such tokenizer', file=sys.stderr); sys.exit(3)")
    checkpoint, work = tmp_path / "checkpoint", tmp_path / "work"
    checkpoint.mkdir()
    work.mkdir()
    measured = measure.measure([failing, scripted("whole")], checkpoint, work, 2, lambda line: None)
    assert "step 0 ended with exit code 3: no such tokenizer" in measured.left_out["broken"]
    assert [len(builds) for builds in measured.builds.values()] == [0, 2]
    assert sorted(path.name for path in work.iterdir()) == ["broken.log", "whole.log"]


def test_a_program_that_is_absent_is_named(tmp_path: Path):
    with pytest.raises(StepError, match="quantize: /nowhere/llama-quantize: No such file"):
        measure.run(["/nowhere/llama-quantize"], tmp_path / "log", "quantize")


def test_what_a_contender_needs_is_asked_for_by_its_option():
    with pytest.raises(UsageError, match="--llama-source and --llama-quantize"):
        contender("llama-q4_0-pure", TINY_QWEN3, NOWHERE, 2)
    bare = Tools("/usr/bin/false", None, None)
    with pytest.raises(UsageError, match="has not all of llmcompressor, torch"):
        contender("llmcompressor-w4a16", TINY_QWEN3, bare, 2)


def test_llama_quantizes_what_it_has_converted_with_the_threads_of_the_host(tmp_path: Path):
    tools = Tools(sys.executable, tmp_path / "llama.cpp", tmp_path / "llama-quantize")
    convert, quantize = contender("llama-q4_0-pure", TINY_QWEN3, tools, 7).steps.values()
    assert convert[2:4] == [str(tools.llama_source), str(TINY_QWEN3)]
    assert convert[-1] == quantize[2]
    assert quantize[:2] == [str(tools.llama_quantize), "--pure"]
    assert quantize[-2:] == ["Q4_0", "7"]


def test_our_own_build_is_the_command_that_users_run(tmp_path: Path):
    built = measure.build(contender("qpack", TINY_QWEN3, NOWHERE, 2), tmp_path)
    assert built.result_bytes > (TINY_QWEN3 / "tokenizer.json").stat().st_size
    assert built.peak_bytes > 20 * MIB


def test_every_id_of_a_checkpoint_has_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tiny = {**models.SHAPES["qwen3-0.6b"], "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
            "vocab_size": 1000}  # fmt: skip
    monkeypatch.setitem(models.SHAPES, "tiny", tiny)
    models.write_checkpoint(tmp_path / "model", "tiny")
    assert Tokenizer.from_file(str(tmp_path / "model" / "tokenizer.json")).get_vocab_size() == 1000
    assert models.weight_bytes(tmp_path / "model") == (tmp_path / "model" / "model.safetensors").stat().st_size
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_text_says_the_machine_the_versions_and_who_is_left_out():
    measured = Measured({"a": [took(1, 2)], "b": []}, {"b": "its tokenizer is unknown"})
    host = {"cpu": "A processor", "cores": 2, "threads": 2}
    text = as_text(report(measured, [scripted("a"), scripted("b")], host, {"shape": "tiny", "bytes": 10**9}, 1))
    for part in ("A processor, 2 cores", "tiny, random weights, 1.00 GB; 1 rounds", "a: 1", "0 1.0 s, 1 2.0 s"):
        assert part in text
    assert "left out: b: its tokenizer is unknown" in text


def run(*arguments: object) -> Result:
    return CliRunner().invoke(build_peers.main, [str(argument) for argument in arguments])


def test_the_checkpoint_stays_in_a_named_folder_and_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written: list[str] = []

    def write(folder: Path, shape: str) -> None:
        folder.mkdir()
        written.append(shape)

    monkeypatch.setattr(build_peers, "write_checkpoint", write)
    monkeypatch.setattr(measure, "build", lambda contender, work: took(1))
    for _ in range(2):
        ran = run("--work", tmp_path, "--contenders", "qpack", "--rounds", 2, "--model-shape", "qwen3.5-0.8b", "--json")
        assert ran.exit_code == 0, ran.stderr
        (row,) = json.loads(ran.stdout)["rows"]
        assert row["round_seconds"] == [1, 1]
    assert written == ["qwen3.5-0.8b"]


def test_an_unknown_contender_is_a_usage_error_that_names_the_known():
    ran = run("--contenders", "qpack,gptqmodel")
    assert ran.exit_code == 2
    assert "'gptqmodel' is no contender" in ran.stderr
    assert "llmcompressor-w4a16" in ran.stderr


def test_if_nobody_can_be_measured_it_is_an_error_that_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(contender: Contender, work: Path) -> Build:
        raise StepError("build ended with exit code 1: out of memory")

    monkeypatch.setattr(build_peers, "write_checkpoint", lambda folder, shape: folder.mkdir())
    monkeypatch.setattr(measure, "build", fail)
    ran = run("--work", tmp_path, "--contenders", "qpack")
    assert ran.exit_code == 1
    assert "out of memory" in ran.stderr
