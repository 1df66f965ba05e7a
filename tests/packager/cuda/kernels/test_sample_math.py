# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
"""The sampler's arithmetic in kernels against the reference and published numbers: equal to the bit."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import interpreter
from qpack_packager.cuda.kernels import sample_math
from qpack_packager.cuda.kernels.sample_math import SENTINEL
from qpack_runtime.reference import philox, sampling
from qpack_schemas import sampling as schema

interpreter.install()

N = 1024


@triton.jit
def one_output(x, out, FUNCTION: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, FUNCTION(tl.load(x + i)))


@triton.jit
def two_outputs(x, first, second, FUNCTION: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = FUNCTION(tl.load(x + i))
    tl.store(first + i, a)
    tl.store(second + i, b)


@triton.jit
def philox_words(blocks, position, low, high, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b, c, d = sample_math.philox(tl.load(blocks + i), tl.load(position), tl.load(low), tl.load(high))
    tl.store(out + i, a.to(tl.int32, bitcast=True))
    tl.store(out + N + i, b.to(tl.int32, bitcast=True))
    tl.store(out + 2 * N + i, c.to(tl.int32, bitcast=True))
    tl.store(out + 3 * N + i, d.to(tl.int32, bitcast=True))


@triton.jit
def gumbel_of_bits(bits, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, sample_math.gumbel(tl.load(bits + i).to(tl.uint32, bitcast=True)))


@triton.jit
def keys_of(scores, ids, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, sample_math.order_key(tl.load(scores + i), tl.load(ids + i)))


@triton.jit
def masses_of(mantissa, exponent, top, out, shift, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(shift + i, sample_math.cut_shift(tl.load(top), tl.load(exponent + i)))
    tl.store(out + i, sample_math.mass(tl.load(mantissa + i), tl.load(exponent + i), tl.load(top)))


@triton.jit
def selection(keys, out, result, FEW: tl.constexpr, MANY: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    block = tl.load(keys + i)
    least = sample_math.bound(block, FEW, MANY)
    tl.store(result, least)
    tl.store(result + 1, sample_math.compact(block, least, out).to(tl.int64))


def tensor(values, dtype):
    return torch.from_numpy(np.array(np.broadcast_to(values, np.shape(values) or 1), dtype))


def applied(function, x: np.ndarray) -> np.ndarray:
    out = torch.empty(N, dtype=torch.float32)
    one_output[(1,)](torch.from_numpy(x), out, function, N)
    return out.numpy()


def bits_of(x):
    return x.view(np.int32)


def test_flags_and_constants_are_those_of_the_schema_and_the_reference():
    for name in ("GREEDY", "PENALTY", "BIAS", "GRAMMAR", "LOGPROBS", "FILTER", "TOP_P_ONE"):
        assert getattr(sample_math, name).value == getattr(schema, name), name
    for name, owner in (("LOG1P", philox), ("MINUS_LOG1M", philox), ("EXP2", sampling)):
        assert tuple(getattr(sample_math, name).value) == getattr(owner, name), name


def test_philox_gives_the_known_answer_of_its_authors():
    """Random123's kat_vectors: philox4x32, 10 rounds, counter and key 0."""
    out = torch.empty(4, 1, dtype=torch.int32)
    philox_words[(1,)](*(tensor(0, np.int32) for _ in range(4)), out, 1)
    assert out.numpy().view(np.uint32).ravel().tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@settings(max_examples=20)
@given(st.integers(0, 2**31 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1))
def test_philox_equals_the_reference(position, low, high):
    blocks = np.arange(64, dtype=np.int32) * 997
    out = torch.empty(4, 64, dtype=torch.int32)
    philox_words[(1,)](torch.from_numpy(blocks), *(tensor(word, np.int32) for word in (position, low, high)), out, 64)
    words = philox.philox4x32((blocks, position, 0, 0), (low & 0xFFFFFFFF, high & 0xFFFFFFFF))
    assert np.array_equal(out.numpy().view(np.uint32), np.stack(words))


@pytest.mark.parametrize("seed", range(4))
def test_gumbel_noise_equals_the_reference(seed):
    words = np.random.default_rng(seed).integers(0, 2**32, N, dtype=np.uint32)
    words[:8] = [0, 1, 2, 2**30 - 1, 2**30, 2**31, 2**32 - 129, 2**32 - 1]  # the ends, and u around 1/4
    words[8:200] >>= np.arange(192, dtype=np.uint32) // 6
    out = torch.empty(N)
    gumbel_of_bits[(1,)](torch.from_numpy(words.view(np.int32)), out, N)
    assert np.array_equal(bits_of(out.numpy()), bits_of(philox.gumbel_of_words(words)))


def test_log_equals_the_reference_over_the_whole_range():
    x = np.exp2(np.random.default_rng(0).uniform(-126, 128, N)).astype(np.float32)
    x[:4] = [1, np.finfo(np.float32).tiny, np.finfo(np.float32).max, np.sqrt(np.float32(0.5))]
    assert np.array_equal(bits_of(applied(sample_math.log, x)), bits_of(philox.log(x)))


@pytest.mark.parametrize("scale", [1, 100, 1e6, 7e8, 3e38])
def test_exponentials_equal_the_reference(scale):
    y = (np.random.default_rng(1).uniform(-1, 1, N) * scale).astype(np.float32)
    y[:10] = [0, -0.0, np.inf, -np.inf, 1e-45, -1e-45, -1e-40, 3.4e38, -3.4e38, np.log(2)]
    mantissa, exponent = torch.empty(N, dtype=torch.int32), torch.empty(N, dtype=torch.int32)
    with np.errstate(over="ignore"):
        two_outputs[(1,)](torch.from_numpy(y), mantissa, exponent, sample_math.exponential, N)
        expected = sampling.exponential(y)
    assert np.array_equal(mantissa.numpy(), expected[0])
    assert np.array_equal(exponent.numpy(), expected[1])


def test_masses_equal_the_reference_even_where_exponents_lie_2_to_the_31_apart():
    rng = np.random.default_rng(2)
    mantissa = rng.integers(2**29, 2**30 + 1, N).astype(np.int32)
    for top in (2**30, 0, -(2**30)):
        away = rng.integers(0, 80, N)
        away[:3] = [0, 63, top + 2**30]
        exponent = np.maximum(top - away, -(2**30)).astype(np.int32)
        out, shift = torch.empty(N, dtype=torch.int64), torch.empty(N, dtype=torch.int64)
        masses_of[(1,)](torch.from_numpy(mantissa), torch.from_numpy(exponent), tensor(top, np.int32), out, shift, N)
        assert shift.tolist() == [min(top - e, 63) for e in exponent.tolist()]  # no shift by less than 0 or beyond 63
        assert np.array_equal(out.numpy(), sampling.mass(mantissa, exponent, np.int32(top)))


@settings(max_examples=30)
@given(
    hnp.arrays(
        np.float32, 64, elements=st.floats(width=32, allow_nan=False) | st.sampled_from([0.0, -0.0, np.inf, -np.inf])
    )
)
def test_keys_order_scores_descending_and_equal_ones_by_ascending_id(scores):
    ids = np.random.default_rng(3).permutation(300_000)[:64].astype(np.int32)
    keys = torch.empty(64, dtype=torch.int64)
    keys_of[(1,)](torch.from_numpy(scores), torch.from_numpy(ids), keys, 64)
    assert np.argsort(-keys.numpy()).tolist() == np.lexsort((ids, -scores)).tolist()
    assert keys.min() > SENTINEL.value + 1
    back, same = torch.empty(64), torch.empty(64, dtype=torch.int32)
    two_outputs[(1,)](keys, back, same, sample_math.score_and_id, 64)
    assert np.array_equal(back.numpy(), scores)  # -0 comes back as 0, its equal
    assert np.array_equal(same.numpy(), ids)


@given(st.data())
def test_a_bound_lets_through_from_few_to_many_of_the_largest(data):
    few, many = data.draw(st.sampled_from([(1, 2), (2, 2), (32, 32), (48, 64), (20, 32), (1, 64)]))
    number = st.integers(-(2**63) + 2, 2**63 - 1) | st.integers(0, 100)
    keys = data.draw(st.lists(number, min_size=0, max_size=128, unique=True))
    start = data.draw(st.integers(0, 128 - len(keys)))
    block = np.full(128, SENTINEL.value, np.int64)
    block[start : start + len(keys)] = keys
    out, result = torch.full((128,), -5, dtype=torch.int64), torch.empty(2, dtype=torch.int64)
    selection[(1,)](torch.from_numpy(block), out, result, few, many, 128)
    least, n = result.tolist()
    chosen = [key for key in keys if key >= least]
    if len(keys) <= many:
        assert (least, chosen) == (SENTINEL.value + 1, keys)
    else:
        assert few <= n <= many
    assert out[:n].tolist() == chosen
    assert (out[n:] == -5).all()
