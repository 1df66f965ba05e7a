# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
"""Arithmetic of the `sample` instruction, equal to the reference to the bit: noise, order, masses, and a selection.

Compile whatever calls these with enable_fp_fusion=False: every product and every sum is rounded on its own. There is no
sort: sorting a vocabulary takes minutes to compile and spills, whereas a bound on distinct keys is found by halving.
"""

import triton
import triton.language as tl

# Bits of `flags` and the fixed-point 1 of top_p24, as in the schema of sampling.
GREEDY, PENALTY, BIAS, GRAMMAR, LOGPROBS, FILTER = (tl.constexpr(1 << bit) for bit in range(6))
TOP_P_ONE = tl.constexpr(1 << 24)

SENTINEL = tl.constexpr(-(1 << 63))  # below every key
NO_EXPONENT = tl.constexpr(-(1 << 30))  # at most every exponent

# Polynomials, constant term first: log(1 + f) / f, -log(1 - u) / u and 2^r, where the reference uses them.
LOG1P = tl.constexpr((
    1.0, -0.49999988079071045, 0.33333325386047363, -0.25001585483551025, 0.2000207155942917, -0.16609126329421997,
    0.14180079102516174, -0.13240842521190643, 0.129141703248024, -0.07638592272996902,
))  # fmt: skip
MINUS_LOG1M = tl.constexpr((
    1.0, 0.5000000596046448, 0.33332714438438416, 0.2501929700374603, 0.1970776468515396, 0.1902793049812317,
    0.04079221934080124, 0.3349906802177429,
))  # fmt: skip
EXP2 = tl.constexpr((
    1.0, 0.6931469440460205, 0.2402305006980896, 0.05548042804002762, 0.009684580378234386, 0.0012387821916490793,
    0.00021877505059819669,
))  # fmt: skip


@triton.jit
def horner(x, coefficients: tl.constexpr, TERMS: tl.constexpr):
    value = tl.zeros_like(x) + coefficients[TERMS - 1]
    for i in tl.static_range(1, TERMS):
        value = value * x + coefficients[TERMS - 1 - i]
    return value


@triton.jit
def log(x):
    """log of positive normal float32 numbers."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F3504F3) >> 23
    f = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0
    return exponent.to(tl.float32) * 0.6931471805599453 + f * horner(f, LOG1P, 10)


@triton.jit
def philox(block, position, seed_low, seed_high):
    """The four uint32 words of Philox4x32-10 at the counter (block, position, 0, 0); int32 arguments, `block` a block.

    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    c0 = block.to(tl.uint32, bitcast=True)
    c2 = tl.zeros_like(c0)
    c1 = c2 + position.to(tl.uint32, bitcast=True)
    c3 = c2
    k0 = seed_low.to(tl.uint32, bitcast=True)
    k1 = seed_high.to(tl.uint32, bitcast=True)
    for _ in tl.static_range(10):
        a = c0.to(tl.uint64) * 0xD2511F53
        b = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (b >> 32).to(tl.uint32) ^ c1 ^ k0
        c1 = b.to(tl.uint32)
        c2 = (a >> 32).to(tl.uint32) ^ c3 ^ k1
        c3 = a.to(tl.uint32)
        k0 = k0 + tl.full((), 0x9E3779B9, tl.uint32)
        k1 = k1 + tl.full((), 0xBB67AE85, tl.uint32)
    return c0, c1, c2, c3


@triton.jit
def gumbel(word):
    """Standard Gumbel noise, float32, of uint32 words."""
    u = tl.minimum((word.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.9999999403953552)  # 2^-32, 1 - 2^-24
    small = u < 0.25
    exponential = tl.where(small, u * horner(u, MINUS_LOG1M, 8), -log(tl.where(small, 0.5, 1.0 - u)))
    return -log(exponential)


@triton.jit
def order_key(score, ids):
    """Distinct int64 keys that ascend with the score (float32, never NaN; -0 equals 0), then with descending id."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (bits.to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)


@triton.jit
def score_and_id(key):
    bits = (key >> 32).to(tl.int32)
    score = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return score, 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def between(low, high):
    """floor((low + high) / 2) of int64 numbers whose sum may overflow."""
    return (low >> 1) + (high >> 1) + (low & high & 1)


@triton.jit
def exponential(score):
    """e^score = mantissa * 2^exponent, both int32, the mantissa from 2^29 (stands for 1) to 2^30."""
    power = tl.minimum(tl.maximum(score * 1.4426950408889634, -1073741824.0), 1073741824.0)  # log2(e), 2^30
    whole = power.to(tl.int32)
    whole = whole - (whole.to(tl.float32) > power).to(tl.int32)  # tl.floor takes a subnormal number for 0
    return (horner(power - whole.to(tl.float32), EXP2, 7) * 536870912.0).to(tl.int32), whole


@triton.jit
def cut_shift(top, exponent):
    """min(top - exponent, 63), int64, of int32 numbers that may lie 2^31 apart."""
    return tl.minimum((top - exponent).to(tl.uint32, bitcast=True), 63).to(tl.int64)


@triton.jit
def mass(mantissa, exponent, top):
    """int64 masses in units of 2^(top - 37), 2^38 at most."""
    return (mantissa.to(tl.int64) << 8) >> cut_shift(top, exponent)


@triton.jit
def bound(keys, few, many):
    """The smallest bound, SENTINEL + 1, if no more than `many` of the distinct keys lie above SENTINEL; otherwise one
    that from `few` to `many` keys reach. 1 <= few <= many, 2 <= many."""
    low = SENTINEL + 1 + tl.zeros((), tl.int64)
    found = tl.sum((keys >= low).to(tl.int32), 0)
    result = low
    high = tl.max(keys, 0)
    if found > many:
        low = tl.min(tl.where(keys == SENTINEL, high, keys), 0)
    # More than `many` reach `low`, and fewer than `few` lie above `high`. A step moves the count by one key at least,
    # so that the two cannot become neighbours before the count fits.
    while (found > many) | ((found < few) & (result != SENTINEL + 1)):
        result = between(low, high)
        found = tl.sum((keys >= result).to(tl.int32), 0)
        low = tl.where(found > many, result, low)
        high = tl.where(found < few, result, high)
    return result


@triton.jit
def compact(keys, least, out):
    """Writes the keys from `least` > SENTINEL on to `out`, in the order of their places; returns their number."""
    taken = keys >= least
    one = taken.to(tl.int32)
    tl.store(out + tl.cumsum(one, 0) - 1, keys, mask=taken)
    return tl.sum(one, 0)
