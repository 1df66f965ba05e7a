"""`qpack-runtime bench` as its user sees it, on the reference executor."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from qpack_runtime.bench import run
from qpack_runtime.cli import main
from qpack_runtime.cpu.host import default_threads
from qpack_runtime.cpu.native import LIBRARY
from qpack_schemas.schema_check import check_schema

FEW = ("--device", "reference", "--batch", "1,3", "--context", "20", "--prefill", "5,40", "--steps", "2")


@pytest.fixture(autouse=True)
def bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known, and without the memory that measuring it takes."""
    monkeypatch.setattr(run, "read_bandwidth", lambda threads: 10.0)


@pytest.fixture
def bundle(tiny_bundle: Callable[[str], Path]) -> Path:
    return tiny_bundle("tiny-qwen3_5")


def bench(bundle: Path, *arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["bench", str(bundle), *map(str, arguments)])


def answered(result: Result) -> Any:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-qwen3_5"])
def test_json_follows_the_schema_and_has_a_row_for_each_case(tiny_bundle: Callable[[str], Path], name: str):
    report = answered(bench(tiny_bundle(name), *FEW, "--format", "json"))
    assert check_schema(report, "bench.v1.schema.json", "report") == []
    assert [(row["phase"], row["batch"], row["context"], row["tokens"]) for row in report["rows"]] == [
        ("decode", 1, 20, 1), ("decode", 3, 20, 3), ("prefill", 1, 5, 5), ("prefill", 1, 40, 40),
    ]  # fmt: skip
    for row in report["rows"]:
        assert row["tokens_per_s"] == pytest.approx(1000 * row["tokens"] / row["median_ms"], rel=1e-4)
        assert row["roofline_ratio"] == pytest.approx(row["bytes_per_step"] / 1e7 / row["median_ms"], rel=1e-4)
        assert row["p99_ms"] >= row["median_ms"]
    assert (report["device"], report["mode"], report["bandwidth_gbs"]) == ("reference", None, 10)
    assert {"verify_s", "bind_s", "tokenizer_s"} <= report["boot"].keys()
    assert report["peak_rss_bytes"] > 1 << 20


def test_without_wishes_every_bucket_is_measured(bundle: Path):
    report = answered(bench(bundle, "--device", "reference", "--steps", "1", "--format", "json"))
    decode = [(row["batch"], row["context"]) for row in report["rows"] if row["phase"] == "decode"]
    prefill = [row["context"] for row in report["rows"] if row["phase"] == "prefill"]
    assert decode == [(1, 32), (4, 32), (1, 64), (4, 64)]
    assert prefill == [1, 16, 64]


def test_text_is_the_table_and_progress_goes_to_stderr(bundle: Path):
    result = bench(bundle, *FEW)
    assert result.exit_code == 0, result.stderr
    assert len([line for line in result.stdout.splitlines() if line.startswith(("decode", "prefill"))]) == 2 * 4
    assert "decode, batch 3, 20 tokens in the cache: " in result.stderr
    assert "prefill of 40 tokens: " in result.stderr


def test_a_report_is_put_beside_an_earlier_one(bundle: Path, tmp_path: Path):
    earlier = answered(bench(bundle, *FEW, "--format", "json"))
    for row in earlier["rows"]:
        row["median_ms"] = 1e6
    earlier["mode"] = "fast"
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(earlier), encoding="utf-8")
    report = answered(bench(bundle, *FEW, "--compare", path, "--format", "json"))
    assert check_schema(report, "bench.v1.schema.json", "report") == []
    assert len(report["x-compare"]["rows"]) == 4
    assert all(row["speedup"] > 100 for row in report["x-compare"]["rows"])
    assert report["x-compare"]["differences"] == ["mode is None here, fast there"]
    assert "warning: mode is None here, fast there" in bench(bundle, *FEW, "--compare", path).stdout


def test_what_can_not_be_measured_ends_before_anything_is(bundle: Path, tmp_path: Path):
    path = tmp_path / "other.json"
    path.write_text('{"rows": []}', encoding="utf-8")
    for arguments, code, said in (
        (("--batch", "5"), 6, "decodes 4 sequences"),
        (("--context", "128"), 6, "context is 128"),
        (("--prefill", "128"), 6, "context is 128"),
        (("--batch", "0"), 2, "from 1 on"),
        (("--batch", "a"), 2, "whole numbers"),
        (("--compare", path), 1, "is no bench report"),
        (("--compare", tmp_path / "absent.json"), 1, "No such file"),
        (("--mode", "fast"), 2, "--mode"),
        (("--threads", "2"), 2, "--threads"),
    ):
        result = bench(bundle, "--device", "reference", *arguments)
        assert (result.exit_code, result.stdout) == (code, ""), arguments
        assert said in result.stderr
        assert "ms" not in result.stderr.split()


@pytest.mark.skipif(not LIBRARY.exists(), reason="this installation has no CPU kernels")
@pytest.mark.parametrize(
    ("chosen", "mode", "threads"), [((), "fast", None), (("--mode", "exact", "--threads", "1"), "exact", 1)]
)
def test_the_cpus_kernels_are_measured_in_the_mode_and_with_the_threads_that_are_asked_for(
    bundle: Path, chosen: tuple[str, ...], mode: str, threads: int | None
):
    report = answered(bench(bundle, *FEW[2:], "--device", "cpu", *chosen, "--format", "json"))
    assert check_schema(report, "bench.v1.schema.json", "report") == []
    assert (report["device"], report["mode"]) == ("cpu", mode)
    assert report["host"]["threads"] == (threads or default_threads())
    assert report["host"]["instructions"] == report["x-facts"]["code_path"]


def test_help_fits_a_terminal():
    result = CliRunner().invoke(main, ["bench", "--help"], terminal_width=80)
    assert result.exit_code == 0
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
