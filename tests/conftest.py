"""Hypothesis without time limits: the same examples each time in `make test`, fresh ones in `make nightly`. Bundles
that many tests open are built once."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from bundles import ASSETS, build_bundle

# A shell starts what it puts into the background with Ctrl-C ignored, and nohup ignores the terminal's end. Processes
# that the tests start would inherit that, and qpack heeds it.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)

os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel module is imported; the compiler's workers unset it

settings.register_profile("qpack", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("nightly", settings.get_profile("qpack"), derandomize=False, max_examples=1000)
settings.load_profile("qpack")


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """tiny_bundle("tiny-qwen3_5"): the bundle of a trained checkpoint in tests/assets. Only for reading: copy to
    change it."""
    built: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in built:
            built[name] = build_bundle(ASSETS / name, tmp_path_factory.mktemp("bundles") / name)
        return built[name]

    return get
