"""How fast memory can be read: what the bytes of a step are divided by."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from qpack_runtime.cpu.native import Team
    from qpack_runtime.cuda.driver import Driver

THREAD_BYTES = 128 << 20  # more than the part of a cache that one core gets
PASSES = 7
COPY_BYTES, COPIES = 256 << 20, 10


def read_bandwidth(threads: int) -> float:
    """GB/s (10^9 bytes) that `threads` threads read from memory together: the best of several passes, in each of which
    every thread adds up an array of its own by `numpy.sum`.

    What numpy's loop reaches, not the limit of the hardware: a loop that prefetches better can read faster. Takes
    THREAD_BYTES of memory a thread."""
    with ThreadPoolExecutor(threads) as pool:
        # Filled, not zeros: untouched pages would all be the same one. 64-bit sums have no order to keep, so they are
        # vector instructions.
        arrays = list(pool.map(lambda _: np.full(THREAD_BYTES // 8, 3, np.uint64), range(threads)))
        best = min(_seconds(pool, arrays) for _ in range(PASSES))
    return sum(array.nbytes for array in arrays) / best / 1e9


def _seconds(pool: ThreadPoolExecutor, arrays: list[np.ndarray]) -> float:
    begin = time.perf_counter()
    list(pool.map(np.sum, arrays))
    return time.perf_counter() - begin


def team_bandwidth(team: "Team") -> float:
    """GB/s at which the threads of the CPU's kernels read one array together, as they read weights: the best of several
    passes. Takes THREAD_BYTES of memory a thread."""
    data = np.full(THREAD_BYTES * team.threads, 3, np.uint8)
    seconds = (team.kernels.read_seconds(team.handle, data.ctypes.data, data.nbytes) for _ in range(PASSES))
    return data.nbytes / min(seconds) / 1e9


def copy_bandwidth(driver: "Driver", stream: int) -> float:
    """GB/s, read and written together, of copies from the GPU's memory to itself."""
    size = min(COPY_BYTES, driver.call("cuMemGetInfo_v2")[0] // 8)
    source, target = (driver.call("cuMemAlloc_v2", size) for _ in range(2))
    begin, end = (driver.call("cuEventCreate", 0) for _ in range(2))
    for number in range(COPIES + 1):
        if number == 1:  # the first one warms up
            driver.call("cuEventRecord", begin, stream)
        driver.call("cuMemcpyDtoDAsync_v2", target, source, size, stream)
    driver.call("cuEventRecord", end, stream)
    driver.call("cuEventSynchronize", end)
    return 2 * size * COPIES / max(driver.call("cuEventElapsedTime", begin, end), 1e-6) / 1e6
