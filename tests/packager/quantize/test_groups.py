"""What holds of every rounding method: its formula to the bit, however the work is cut, and no weight that is not a
number."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from qpack_packager.quantize import groups, int8, rtn
from random_weights import KINDS, draw_weight

METHODS = pytest.mark.parametrize("quantize", [rtn.quantize, int8.quantize], ids=["int4", "int8"])
Quantize = Callable[[np.ndarray], groups.Quantized]
Group = tuple[np.ndarray, float, float, float]  # codes, scale, squared error, squared weight


def by_halves(numbers: np.ndarray) -> np.floating:
    """Their sum in their own precision: the first half plus the second, until one is left."""
    return numbers[0] if len(numbers) == 1 else by_halves(numbers[: len(numbers) // 2] + numbers[len(numbers) // 2 :])


def least_bfloat16(number: float) -> float:
    """That is not below `number`, found by stepping."""
    bits = int(np.float32(number).view(np.uint32)) >> 16
    candidates = np.array([bits, bits + 1], np.uint16).view(ml_dtypes.bfloat16).astype(float)
    return float(min(c for c in candidates if c >= number))


def one_group(exact: np.ndarray, scales: list[float], least: int, most: int) -> Group:
    """float32 [128]: the first of `scales` with the least squared error, in float32 and in units of a power of two."""
    unit = 2.0 ** max(-126, min(126, int(np.frexp(np.abs(exact).max())[1])))
    values, best = exact / np.float32(unit), (np.inf, np.zeros(128), 0.0)
    for scale in scales:
        in_units = np.float32(scale / unit)
        steps = np.clip(np.rint(values / in_units if scale else values), least, most)
        error = float(by_halves((steps * in_units - values) ** 2))
        if error < best[0]:
            best = error, steps, scale
    return best[1], best[2], best[0] * unit**2, float(by_halves(values * values)) * unit**2


def int4_group(exact: np.ndarray) -> Group:
    high, low = float(exact.max()), float(exact.min())
    least = max(max(high, -low) / 8.5, min(high, -low) / 7.5)
    sign = -1 if high >= -low else 1
    scales = [sign * least_bfloat16(least * (1 + i / 20)) for i in range(4)]
    steps, scale, error, whole = one_group(exact, scales, -8, 7)
    return steps + 8, scale, error, whole


def int8_group(exact: np.ndarray) -> Group:
    """With the least scale, or one of the next two if that gives every weight exactly and a smaller one doesn't."""
    least = np.array(least_bfloat16(float(np.abs(exact).max()) / 127), ml_dtypes.bfloat16).view(np.uint16)
    scales = (least + np.arange(3, dtype=np.uint16)).view(ml_dtypes.bfloat16).astype(float)
    made = [one_group(exact, [float(scale)], -127, 127) for scale in scales]
    return next((group for group in made if group[2] == 0), made[0])


def assert_by_the_formula(weight: np.ndarray, quantize: Quantize) -> None:
    exact = weight.astype(np.float32).reshape(len(weight), -1, 128)
    made = quantize(weight)
    for line, (codes, scales) in enumerate(zip(made.codes, made.scales.astype(float), strict=True)):
        method = int4_group if quantize is rtn.quantize else int8_group
        wanted = [method(group) for group in exact[line]]
        assert np.array_equal(codes, np.concatenate([steps for steps, *_ in wanted]))
        assert scales.tolist() == [scale for _, scale, *_ in wanted]
        assert not np.signbit(scales[scales == 0]).any()
        filler = [0.0] * (-len(wanted) % 4)  # of at most four groups
        assert made.squared_error[line] == by_halves(np.array([error for *_, error, _ in wanted] + filler))
        assert made.squared_weight[line] == by_halves(np.array([whole for *_, whole in wanted] + filler))


@METHODS
@given(seed=st.integers(0, 10**6), n=st.integers(1, 4), count=st.integers(1, 4), kind=KINDS)
def test_codes_scales_and_errors_are_those_of_the_formula_to_the_bit(
    quantize: Quantize, seed: int, n: int, count: int, kind: str
):
    assert_by_the_formula(draw_weight(seed, n, count, kind), quantize)


@METHODS
@given(seed=st.integers(0, 10**6), power=st.integers(-140, 110))
def test_extremes_between_two_codes_are_rounded_as_the_formula_has_it(quantize: Quantize, seed: int, power: int):
    """Whole numbers up to 15 lie on halves of a step where the extremes decide the scale; and where the scale or the
    weight is no normal float32."""
    weight = np.random.default_rng(seed).integers(-15, 16, (3, 256)) * 2.0**power
    weight[0] = np.clip(weight[0], -15 * 2.0**power, 14 * 2.0**power)
    assert_by_the_formula(weight.astype(np.float32), quantize)


@METHODS
@given(bits=arrays.arrays(np.uint32, (2, 128)))
def test_any_finite_weights_are_rounded_as_the_formula_has_it(quantize: Quantize, bits: np.ndarray):
    weight = bits.view(np.float32)
    assert_by_the_formula(np.where(np.isfinite(weight), weight, np.float32(0)) * np.float32(0.5), quantize)


@METHODS
@pytest.mark.parametrize("lines", [1, 3, 64])
def test_bytes_do_not_depend_on_blocks(quantize: Quantize, lines: int, monkeypatch: pytest.MonkeyPatch):
    weight = draw_weight(3, 200, 6, "gauss")
    whole = quantize(weight)
    monkeypatch.setattr(groups, "BLOCK_WEIGHTS", lines * 768)
    parts = quantize(weight)
    for name, array in vars(whole).items():
        assert array.tobytes() == getattr(parts, name).tobytes(), name


@METHODS
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_dtype_of_a_weight_does_not_matter(quantize: Quantize, dtype: type):
    """Numbers that all of them hold."""
    weight = np.random.default_rng(0).integers(-255, 256, (5, 256)).astype(ml_dtypes.bfloat16)
    assert quantize(weight.astype(dtype)).codes.tobytes() == quantize(weight).codes.tobytes()
    turned = np.asfortranarray(weight.astype(dtype))
    assert quantize(turned).codes.tobytes() == quantize(weight).codes.tobytes()


@given(bits=st.integers(0, 0x7F7F), share=st.floats(0, 1))
def test_round_up_gives_the_least_bfloat16_that_is_not_below(bits: int, share: float):
    below, above = np.array([bits, bits + 1], np.uint16).view(ml_dtypes.bfloat16).astype(np.float64)
    if np.isfinite(above):
        between = below + share * (above - below)
        assert groups.round_up(np.array([between]))[0] == (below if between == below else above)
    assert groups.round_up(np.array([below]))[0] == below


@METHODS
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused(quantize: Quantize, value: float):
    weight = np.zeros((4, 256), np.float32)
    weight[2, 130] = value
    with pytest.raises(ValueError, match="NaN or infinity"):
        quantize(weight)
