"""How fast this GPU's memory copies: what the bytes of a decode step are divided by."""

from qpack_runtime.cuda.driver import Driver

COPY_BYTES = 256 << 20  # more than any L2 cache holds
COPIES = 10


def copy_bandwidth(driver: Driver, stream: int) -> float:
    """Bytes per second, those read and those written, of copies from the GPU's memory to itself."""
    size = min(COPY_BYTES, driver.call("cuMemGetInfo_v2")[0] // 8)
    source, target = (driver.call("cuMemAlloc_v2", size) for _ in range(2))
    begin, end = (driver.call("cuEventCreate", 0) for _ in range(2))
    for number in range(COPIES + 1):
        if number == 1:  # the first one warms up
            driver.call("cuEventRecord", begin, stream)
        driver.call("cuMemcpyDtoDAsync_v2", target, source, size, stream)
    driver.call("cuEventRecord", end, stream)
    driver.call("cuEventSynchronize", end)
    return 2 * size * COPIES / (max(driver.call("cuEventElapsedTime", begin, end), 1e-6) / 1000)
