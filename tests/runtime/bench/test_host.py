"""What the report says of the machine, and how its memory is measured."""

import os
import platform
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qpack_runtime.bench import bandwidth
from qpack_runtime.bench.host import cores, describe_host, peak_rss_bytes


def test_cores_are_those_that_the_process_may_run_on():
    code = (
        "import os; from qpack_runtime.bench.host import cores; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    )
    ran = subprocess.run([sys.executable, "-c", f"{code}; print(cores())"], capture_output=True, check=True)
    assert ran.stdout.split() == [b"1"]
    assert 1 <= cores() <= (os.cpu_count() or 1)


def test_peak_memory_is_that_of_this_process_and_stays_when_memory_is_freed():
    before = peak_rss_bytes()
    block = np.ones(before + (64 << 20), np.uint8)  # more than there ever was
    resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    del block
    # Linux adds the last few pages of each thread up later.
    assert 0.99 * resident <= peak_rss_bytes() <= 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + 2**20


def test_peak_memory_is_not_inherited_from_the_process_that_started_this_one():
    block = np.ones(256 << 20, np.uint8)
    code = "from qpack_runtime.bench.host import peak_rss_bytes; print(peak_rss_bytes())"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert int(ran.stdout) < block.nbytes


def test_a_host_is_described_without_its_name_or_user():
    facts = describe_host(2, "numpy")
    text = str(facts)
    assert platform.node() not in text
    assert os.path.expanduser("~") not in text
    assert facts["memory_bytes"] == pytest.approx(_total_of_meminfo(), rel=0.01)


def _total_of_meminfo() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemTotal:"))


def test_bandwidth_is_that_of_the_best_pass_over_all_threads_arrays(monkeypatch: pytest.MonkeyPatch):
    passes = iter([0.5, 0.25, *[0.75] * bandwidth.PASSES])
    monkeypatch.setattr(bandwidth, "THREAD_BYTES", 4 << 20)
    monkeypatch.setattr(bandwidth, "_seconds", lambda pool, arrays: next(passes))
    assert bandwidth.read_bandwidth(3) == pytest.approx(3 * (4 << 20) / 0.25 / 1e9)


def test_bandwidth_of_the_kernels_is_that_of_their_best_pass():
    passes = iter([0.5, 0.25, *[0.75] * bandwidth.PASSES])
    read: list[int] = []

    def read_seconds(_handle: int, _address: int, size: int) -> float:
        read.append(size)
        return next(passes)

    team: Any = SimpleNamespace(threads=2, handle=1, kernels=SimpleNamespace(read_seconds=read_seconds))
    assert bandwidth.team_bandwidth(team) == pytest.approx(2 * bandwidth.THREAD_BYTES / 0.25 / 1e9)
    assert read == [2 * bandwidth.THREAD_BYTES] * bandwidth.PASSES


def test_every_byte_is_read_by_a_pass(monkeypatch: pytest.MonkeyPatch):
    """The sums say so: numpy adds up what it reads."""
    sums: list[Any] = []
    add = np.sum
    monkeypatch.setattr(bandwidth, "THREAD_BYTES", 1 << 20)
    monkeypatch.setattr(np, "sum", lambda array: sums.append(add(array)))
    bandwidth.read_bandwidth(2)
    assert sums == [3 * (1 << 20) // 8] * (2 * bandwidth.PASSES)


def test_a_copy_on_a_gpu_reads_and_writes_its_bytes():
    """Ten copies of 256 MiB in 200 ms."""
    calls: list[str] = []

    class Driver:
        def call(self, name: str, *_: Any) -> Any:
            calls.append(name)
            return {"cuMemGetInfo_v2": (1 << 40, 1 << 40), "cuEventElapsedTime": 200.0}.get(name, 1)

    driver: Any = Driver()
    assert bandwidth.copy_bandwidth(driver, 0) == pytest.approx(2 * 10 * (256 << 20) / 0.2 / 1e9)
    begin, end = (place for place, name in enumerate(calls) if name == "cuEventRecord")
    assert calls[begin + 1 : end] == ["cuMemcpyDtoDAsync_v2"] * 10
