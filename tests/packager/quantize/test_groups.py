"""What holds of every rounding method: the same bytes however the work is cut, and no weight that is not a number."""

import os
from collections.abc import Callable

import numpy as np
import pytest

from qpack_packager.quantize import groups, int8, rtn
from random_weights import draw_weight

METHODS = pytest.mark.parametrize("quantize", [rtn.quantize, int8.quantize], ids=["int4", "int8"])
Quantize = Callable[[np.ndarray], groups.Quantized]


@METHODS
@pytest.mark.parametrize("processors", [1, 2])
def test_bytes_do_not_depend_on_threads_or_blocks(quantize: Quantize, processors: int, monkeypatch: pytest.MonkeyPatch):
    weight = draw_weight(3, 40, 4, "gauss")
    whole = quantize(weight)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(processors)))
    monkeypatch.setattr(groups, "BLOCK_WEIGHTS", 3 * 512)
    parts = quantize(weight)
    assert np.array_equal(whole.codes, parts.codes)
    assert whole.scales.tobytes() == parts.scales.tobytes()


@METHODS
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused(quantize: Quantize, value: float):
    weight = np.zeros((4, 256), np.float32)
    weight[2, 130] = value
    with pytest.raises(ValueError, match="NaN or infinity"):
        quantize(weight)
