"""The table, the bars, and one report beside another."""

import copy
from pathlib import Path
from typing import Any

import pytest

from qpack_runtime.bench.compare import compare, read_report
from qpack_runtime.bench.report import BAR, as_text
from qpack_schemas.errors import InputError
from qpack_schemas.strict_json import dump_canonical


def step(phase: str, batch: int, context: int, median: float, ratio: float) -> dict[str, Any]:
    tokens = batch if phase == "decode" else context
    return {
        "phase": phase, "batch": batch, "context": context, "tokens": tokens, "median_ms": median, "p99_ms": 2 * median,
        "std_ms": 0.5, "tokens_per_s": 1000 * tokens / median, "bytes_per_step": 401_200_000, "roofline_ratio": ratio,
    }  # fmt: skip


@pytest.fixture
def report() -> Any:
    return {
        "host": {"cpu": "AMD EPYC", "cores": 4, "threads": 2, "instructions": "avx512", "memory_bytes": 33_600_000_000},
        "device": "cpu", "mode": "fast", "bandwidth_gbs": 21.3,
        "rows": [
            step("decode", 1, 128, 25.0, 0.75), step("decode", 8, 512, 80.0, 1.5), step("prefill", 1, 256, 900.0, 0.0)
        ],
        "boot": {"verify_s": 0.25, "bind_s": 0.5}, "peak_rss_bytes": 612_000_000, "x-bundle_id": "ab",
    }  # fmt: skip


def test_the_text_has_a_line_for_each_step_and_fits_a_terminal(report: Any):
    lines = as_text(report).splitlines()
    assert lines[:4] == [
        "AMD EPYC, 4 cores, 33.6 GB of memory",
        "device cpu (avx512), mode fast, 2 threads",
        "booted in 0.75 s (verify 0.25, bind 0.50)",
        "at most 612 MB resident",
    ]
    assert lines[5].split() == ["phase", "batch", "context", "median", "ms", "p99", "std", "tokens/s", "MB"]
    assert lines[6].split() == ["decode", "1", "128", "25.00", "50.00", "0.50", "40.0", "401.2"]
    assert lines[8].split() == ["prefill", "1", "256", "900.00", "1800.00", "0.50", "284.4", "401.2"]
    report["x-compare"] = compare(report, report)
    assert all(len(line) <= 80 and line.isascii() for line in as_text(report).splitlines())


def test_a_bar_is_the_share_of_what_memory_allows_and_never_longer_than_its_frame(report: Any):
    bars = [line for line in as_text(report).splitlines() if line.endswith("|")]
    assert [bar.count("#") for bar in bars] == [BAR * 3 // 4, BAR, 0]
    assert len({len(bar) for bar in bars}) == 1
    assert "75.0 %" in bars[0]
    assert "150.0 %" in bars[1]


def test_a_gpu_has_no_threads_and_no_mode(report: Any):
    report["host"] |= {"threads": None, "instructions": "cuda:sm_89"}
    report |= {"device": "cuda", "mode": None}
    assert as_text(report).splitlines()[1] == "device cuda (cuda:sm_89)"


def test_rows_are_matched_by_phase_batch_and_context_wherever_they_stand(report: Any):
    other = copy.deepcopy(report)
    other["rows"] = [step("prefill", 1, 256, 450, 0), step("decode", 8, 128, 1, 0), step("decode", 1, 128, 50.0, 0)]
    compared = compare(report, other)
    assert compared == {
        "differences": [],
        "rows": [
            {"phase": "decode", "batch": 1, "context": 128, "other_median_ms": 50.0, "speedup": 2.0},
            {"phase": "prefill", "batch": 1, "context": 256, "other_median_ms": 450, "speedup": 0.5},
        ],
    }
    lines = as_text({**report, "x-compare": compared}).splitlines()
    assert [line.split()[-1] for line in lines[5:9]] == ["other", "2.00x", "-", "0.50x"]


def test_a_report_beside_itself_differs_in_nothing(report: Any):
    compared = compare(report, report)
    assert compared["differences"] == []
    assert [row["speedup"] for row in compared["rows"]] == [1, 1, 1]


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("host", "cpu"), "Intel", "host.cpu is AMD EPYC here, Intel there"),
        (("host", "cores"), 8, "host.cores is 4 here, 8 there"),
        (("host", "threads"), None, "host.threads is 2 here, None there"),
        (("host", "instructions"), "avx2", "host.instructions is avx512 here, avx2 there"),
        (("host", "memory_bytes"), 1, "host.memory_bytes is 33600000000 here, 1 there"),
        (("device",), "reference", "device is cpu here, reference there"),
        (("mode",), "exact", "mode is fast here, exact there"),
        (("x-bundle_id",), "cd", "x-bundle_id is ab here, cd there"),
    ],
)
def test_what_makes_times_incomparable_is_a_warning(report: Any, place: tuple[str, ...], value: Any, said: str):
    other = copy.deepcopy(report)
    target = other
    for name in place[:-1]:
        target = target[name]
    target[place[-1]] = value
    compared = compare(report, other)
    assert compared["differences"] == [said]
    assert f"warning: {said}" in as_text({**report, "x-compare": compared}).splitlines()


def test_a_report_is_read_back(report: Any, tmp_path: Path):
    path = tmp_path / "report.json"
    path.write_bytes(dump_canonical(report))
    assert read_report(path) == report


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"rows": None}, "#/rows"),
        ({"device": "tpu"}, "#/device"),
        ({"mode": "slow"}, "#/mode"),
        ({"bandwidth_gbs": 0}, "#/bandwidth_gbs"),
        ({"boot": {"verify": 1}}, "#/boot"),
        ({"unknown": 1}, "#"),
        ({"rows": [{"phase": "decode"}]}, "#/rows/0"),
    ],
)
def test_what_is_no_report_is_refused_with_its_place(report: Any, change: Any, where: str, tmp_path: Path):
    path = tmp_path / "report.json"
    path.write_bytes(dump_canonical({**report, **change}))
    with pytest.raises(InputError, match="is no bench report") as refused:
        read_report(path)
    assert refused.value.where == f"{path}{where}"
    assert "--format json" in refused.value.remedy
