"""What a request may ask for, how a refusal reads, and what is written into the static buffers."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpack_runtime.sampling_options import SamplingOptions, write_options
from qpack_schemas.errors import UsageError
from qpack_schemas.sampling import (
    BIAS,
    BIAS_LIMIT,
    FILTER,
    FLOATS,
    GREEDY,
    INTS,
    LOGPROBS,
    PENALTY,
    TOP_K_LIMIT,
    TOP_P_ONE,
)

NAN, INF = math.nan, math.inf


class Buffers:
    """Two slots' rows of the static buffers, full of garbage."""

    def __init__(self):
        self.ints, self.floats = np.full((2, 6), -1, np.int32), np.full((2, 6), np.nan, np.float32)
        self.bias_ids = np.full((2, BIAS_LIMIT), -1, np.int32)
        self.bias_values = np.full((2, BIAS_LIMIT), np.nan, np.float32)


def written(options, vocab=1000):
    """Column name -> value of slot 0, after writing; slot 1 must be untouched."""
    buffers, untouched = Buffers(), Buffers()
    write_options(options, 0, *vars(buffers).values(), vocab=vocab)
    for name, array in vars(buffers).items():
        assert np.array_equal(array[1], vars(untouched)[name][1], equal_nan=True), name
    columns = dict(zip(INTS + FLOATS, [*buffers.ints[0].tolist(), *buffers.floats[0]], strict=True))
    return columns | {"bias_ids": buffers.bias_ids[0], "bias_values": buffers.bias_values[0]}


REFUSED = [
    ("temperature", [-0.1, NAN, INF, 1e39, "1", None, True], "0 (greedy)"),
    ("top_k", [-1, TOP_K_LIMIT + 1, 3.0, True, None], "from 0 (off) to 256"),
    ("top_p", [0, 0.0, -0.5, 1.0001, NAN, "0.9"], "above 0 and at most 1"),
    ("min_p", [-0.1, 1.1, NAN, None], "from 0 (off) to 1"),
    ("repetition_penalty", [0, 0.0, -1.0, 1e-39, INF, NAN, 1e39], "above 0"),
    ("presence_penalty", [NAN, INF, -INF, 1e39, "0"], "finite"),
    ("frequency_penalty", [NAN, INF, -INF, -(10**400), None], "finite"),
    ("seed", [-1, 2**64, 1.0, True, None], "from 0 to 2^64 - 1"),
    ("logprobs", [1, None, 5], "true or false"),
]
ACCEPTED = {
    "temperature": [0, 0.0, 1e-9, 1e-5, 2, 100.0],
    "top_k": [0, 1, TOP_K_LIMIT],
    "top_p": [1, 1.0, 0.5, 1e-9],
    "min_p": [0, 1, 1e-300, 0.5],
    "repetition_penalty": [1, 0.5, 1e30, 1e-30],
    "presence_penalty": [-2.0, 0, 2, 1e30],
    "frequency_penalty": [-2.0, 0, 2],
    "seed": [0, 1, 2**64 - 1],
    "logprobs": [True, False],
}


@pytest.mark.parametrize(("name", "value", "range_in_words"), [(n, v, r) for n, values, r in REFUSED for v in values])
def test_a_value_out_of_range_is_refused_by_name_value_and_range(name, value, range_in_words):
    with pytest.raises(UsageError) as refusal:
        SamplingOptions(**{name: value})
    assert refusal.value.message.startswith(f"{name} is {value!r}")
    assert range_in_words in refusal.value.remedy


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in ACCEPTED.items() for value in values])
def test_the_ends_of_every_range_are_accepted(name, value):
    options: dict[str, Any] = {"temperature": 1.0, name: value}
    columns = written(SamplingOptions(**options))
    for column in FLOATS:
        assert np.isfinite(columns[column]) or (column, columns[column]) == ("ln_min_p", -INF)


@pytest.mark.parametrize(
    ("bias", "parts"),
    [
        (dict.fromkeys(range(BIAS_LIMIT + 1), 1.0), ["513 entries", "at most 512"]),
        ({-1: 1.0}, ["-1", "token ids"]),
        ({"7": 1.0}, ["'7'", "token ids"]),
        ({True: 1.0}, ["True", "token ids"]),
        ({2**31: 1.0}, [str(2**31), "token ids"]),
        ({7: NAN}, ["logit_bias[7]", "nan", "finite"]),
        ({7: -INF}, ["logit_bias[7]", "-inf", "finite"]),
        ({7: "1"}, ["logit_bias[7]", "'1'", "finite"]),
    ],
)
def test_a_bad_logit_bias_is_refused_by_entry(bias, parts):
    with pytest.raises(UsageError) as refusal:
        SamplingOptions(logit_bias=bias)
    assert "logit_bias" in str(refusal.value)
    for part in parts:
        assert part in str(refusal.value)


def test_a_biased_id_beyond_the_real_vocabulary_is_refused_before_anything_is_written():
    buffers, untouched = Buffers(), Buffers()
    options = SamplingOptions(logit_bias={3: 1.0, 1000: 1.0})
    with pytest.raises(UsageError, match=r"logit_bias has the key 1000(.|\n)*from 0 to 999"):
        write_options(options, 0, *vars(buffers).values(), vocab=1000)
    for name, array in vars(buffers).items():
        assert np.array_equal(array, vars(untouched)[name], equal_nan=True), name
    assert written(options, vocab=1001)["bias_count"] == 2


def test_the_defaults_are_greedy_and_ask_for_nothing_else():
    columns = written(SamplingOptions())
    assert columns["flags"] == GREEDY
    assert (columns["inverse_temperature"], columns["bias_count"]) == (1, 0)


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        (SamplingOptions(temperature=1.0), 0),
        (SamplingOptions(temperature=1e-5), 0),
        (SamplingOptions(temperature=0.99e-5), GREEDY),
        (SamplingOptions(temperature=1.0, top_k=1), FILTER),
        (SamplingOptions(temperature=1.0, top_p=0.9), FILTER),
        (SamplingOptions(temperature=1.0, min_p=0.1), FILTER),
        (SamplingOptions(top_k=5, top_p=0.9, min_p=0.1), GREEDY),  # no filter removes the best
        (SamplingOptions(repetition_penalty=1.1), GREEDY | PENALTY),
        (SamplingOptions(presence_penalty=-0.5), GREEDY | PENALTY),
        (SamplingOptions(frequency_penalty=0.5), GREEDY | PENALTY),
        (SamplingOptions(logit_bias={0: 0.0}), GREEDY | BIAS),
        (SamplingOptions(logprobs=True), GREEDY | LOGPROBS),
    ],
)
def test_flags_ask_for_what_the_options_need_and_no_more(options, flags):
    assert written(options)["flags"] == flags


@given(st.integers(0, 2**64 - 1))
def test_both_words_of_the_seed_are_written(seed):
    columns = written(SamplingOptions(seed=seed))
    assert np.array([columns["seed_low"], columns["seed_high"]], np.int32).view(np.uint64)[0] == seed  # little-endian


@given(
    st.floats(1e-5, 1e5), st.integers(0, TOP_K_LIMIT), st.floats(0, 1, exclude_min=True), st.floats(1e-30, 1),
    st.floats(1e-3, 1e3), st.floats(-2, 2), st.floats(-2, 2),
)  # fmt: skip
def test_columns_hold_float32_and_reciprocals(temperature, top_k, top_p, min_p, repetition, presence, frequency):
    columns = written(SamplingOptions(temperature, top_k, top_p, min_p, repetition, presence, frequency))
    assert columns["top_k"] == top_k
    assert abs(columns["top_p24"] / TOP_P_ONE - top_p) <= 0.5 / TOP_P_ONE
    assert columns["inverse_temperature"] == np.float32(1) / np.float32(temperature)
    assert columns["ln_min_p"] == np.float32(math.log(min_p))
    assert columns["repetition"] == np.float32(repetition)
    assert columns["inverse_repetition"] == np.float32(1) / np.float32(repetition)
    assert (columns["presence"], columns["frequency"]) == (np.float32(presence), np.float32(frequency))


def test_a_full_bias_list_is_written_and_a_shorter_one_clears_the_rest():
    full = {999 - token: token / 8 for token in range(BIAS_LIMIT)}
    columns = written(SamplingOptions(logit_bias=full))
    assert columns["bias_count"] == BIAS_LIMIT
    assert dict(zip(columns["bias_ids"].tolist(), columns["bias_values"].tolist(), strict=True)) == full
    columns = written(SamplingOptions(logit_bias={9: -1.5}))
    assert (columns["bias_count"], columns["bias_ids"][0], columns["bias_values"][0]) == (1, 9, -1.5)
    assert not columns["bias_ids"][1:].any()
    assert not columns["bias_values"][1:].any()


def test_options_cannot_change_after_they_were_checked():
    bias = {1: 2.0}
    options = SamplingOptions(logit_bias=bias)
    bias[2] = NAN
    assert dict(options.logit_bias) == {1: 2.0}
    with pytest.raises(TypeError):
        options.logit_bias[3] = NAN  # type: ignore[index]
    with pytest.raises(AttributeError):
        options.seed = -1  # type: ignore[misc]
