"""The gated delta rule, one token per row; Yang et al., "Gated Delta Networks". What a prompt needs beside is in
delta_prefill.py.

Columns of x are q | k | v | z: KEYS key heads of D for q and for k, N value heads of E for v and for z; the first C
pass through the convolution. Value head h works with key head h // (N / KEYS). The ring, [S, C, W], keeps position p in
column p % W and has the activation dtype; the memory is float32 [S, N, D, E].
"""

# pyright: basic, reportGeneralTypeIssues=false

import triton
import triton.language as tl

from qpack_packager.cuda.kernels import planes


@triton.jit
def delta_step(
    x, bias, hidden, conv, ba, a_log, dt_bias, slots, positions, ring, memory, out, R,
    X: tl.constexpr, C: tl.constexpr, W: tl.constexpr, H: tl.constexpr, N: tl.constexpr, KEYS: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, SCRATCH: tl.constexpr, PLANES: tl.constexpr, BLOCK_E: tl.constexpr,
    BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Convolution and delta rule of one token of each of R slots. Grid (N, E / BLOCK_E, R).

    x [R, X] as `planes.value` reads it, hidden [R, H], conv [C, W], ba [2N, H], a_log and dt_bias float32 [N] -> ring,
    memory, and out float32 [R, N * E] before its norm. Padding rows touch no state; their out is zero.
    """
    head, part, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    inner, lanes = tl.arange(0, D), part * BLOCK_E + tl.arange(0, BLOCK_E)
    written = out + (row * N + head) * E + lanes
    slot = tl.load(slots + row).to(tl.int64)
    if slot == SCRATCH:
        tl.store(written, tl.zeros((BLOCK_E,), tl.float32))
        return
    position = tl.load(positions + row)
    cells = memory + (slot * N + head) * (D * E) + inner[:, None] * E + lanes[None, :]
    # First of all, since it comes from afar. By a mask: nothing that an earlier sequence left reaches the arithmetic.
    state = tl.load(cells, mask=inner[:, None] < tl.where(position > 0, D, 0), other=0.0)

    SHARED: tl.constexpr = N // KEYS
    taps = ring + slot * (C * W)
    q = (head // SHARED) * D + inner
    k = KEYS * D + q
    v = 2 * KEYS * D + head * E + lanes
    query, query_now = _convolved(x, bias, conv, taps, position, row, q, R, X, C, W, PLANES)
    key, key_now = _convolved(x, bias, conv, taps, position, row, k, R, X, C, W, PLANES)
    value, value_now = _convolved(x, bias, conv, taps, position, row, v, R, X, C, W, PLANES)
    # Programs of one key head convolve the same columns. One stores them, and it disturbs none of the others: the
    # column that it writes is the only one that nobody reads.
    column = position % W
    tl.store(taps + v * W + column, value_now)
    if (part == 0) & (head % SHARED == 0):
        tl.store(taps + q * W + column, query_now)
        tl.store(taps + k * W + column, key_now)

    decay, beta = gates(hidden + row * H, ba, a_log, dt_bias, head, H, N, BLOCK_H)
    state, result = delta_rule(state, query, key, value, decay, beta, D)
    tl.store(cells, state)
    tl.store(written, result)


@triton.jit
def delta_norm(
    out, z, bias, norm, y, R,
    X: tl.constexpr, N: tl.constexpr, E: tl.constexpr, PLANES: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """y [R, N * E] = out / rms(out) * norm * silu(z), per value head. Grid (N, R).

    out float32 [R, N * E]; z the last N * E columns of [R, X] as `planes.value` reads it; norm [E].
    """
    head, row = tl.program_id(0), tl.program_id(1)
    lanes = tl.arange(0, E)
    at = (row * N + head) * E + lanes
    columns = X - N * E + head * E + lanes
    gate = planes.value(z, row * X + columns, R * X, columns < X, bias, columns, PLANES, y.dtype.element_ty)
    values = tl.load(out + at)
    scale = tl.rsqrt(tl.sum(values * values) / E + EPS)
    normed = values * scale * tl.load(norm + lanes).to(tl.float32)
    tl.store(y + at, (normed * gate * tl.sigmoid(gate)).to(y.dtype.element_ty))


@triton.jit
def delta_rule(state, query, key, value, decay, beta, D: tl.constexpr):  # -> state, float32 out [BLOCK_E]
    """One step on a state [D, BLOCK_E]: decay, correct what key recalls towards value by beta, ask with query. query
    and key [D] as the convolution left them. All float32."""
    # Unit length is given to what comes out of the products, which is less work than to query and key.
    key_scale, query_scale = _inverse_length(key), _inverse_length(query) * D**-0.5
    state *= decay
    change = (value - tl.sum(state * key[:, None], 0) * key_scale) * (beta * key_scale)
    state += key[:, None] * change[None, :]
    return state, tl.sum(state * query[:, None], 0) * query_scale


@triton.jit
def gates(hidden, ba, a_log, dt_bias, head, H: tl.constexpr, N: tl.constexpr, BLOCK_H: tl.constexpr):
    """-> decay, beta: float32 scalars of a value head from the row hidden [H]. Lines of ba [2N, H] are b, then a."""
    columns = tl.arange(0, BLOCK_H)
    b, a = tl.zeros((BLOCK_H,), tl.float32), tl.zeros((BLOCK_H,), tl.float32)
    for first in tl.static_range(0, H, BLOCK_H):
        at = first + columns
        x = tl.load(hidden + at, mask=at < H, other=0.0).to(tl.float32)
        b += x * tl.load(ba + head * H + at, mask=at < H, other=0.0).to(tl.float32)
        a += x * tl.load(ba + (N + head) * H + at, mask=at < H, other=0.0).to(tl.float32)
    rate = tl.exp(tl.load(a_log + head)) * _softplus(tl.sum(a) + tl.load(dt_bias + head))
    return tl.exp(-rate), tl.sigmoid(tl.sum(b))


@triton.jit
def _convolved(
    x, bias, conv, ring, position, row, columns, R,
    X: tl.constexpr, C: tl.constexpr, W: tl.constexpr, PLANES: tl.constexpr,
):  # fmt: skip
    """-> silu of the convolution at `columns` as its buffer would hold it, float32; x there, for the ring [C, W]."""
    dtype = ring.dtype.element_ty
    total = tl.zeros(columns.shape, tl.float32)
    for tap in tl.static_range(W - 1):
        # Positions before 0 count as zero, and what stands in their place belongs to an earlier sequence.
        live = columns < tl.where(position + tap >= W - 1, C, 0)
        past = tl.load(ring + columns * W + (position + tap + 1) % W, mask=live, other=0.0)
        total += tl.load(conv + columns * W + tap).to(tl.float32) * past.to(tl.float32)
    now = planes.value(x, row * X + columns, R * X, columns < C, bias, columns, PLANES, dtype)
    total += tl.load(conv + columns * W + W - 1).to(tl.float32) * now
    return silu_rounded(total, dtype), now.to(dtype)


@triton.jit
def silu_rounded(x, dtype):  # -> float32
    return (x * tl.sigmoid(x)).to(dtype).to(tl.float32)


@triton.jit
def _inverse_length(x):
    """1 / |x| of a vector; 1e-6 under the root as in flash-linear-attention's l2norm."""
    return tl.rsqrt(tl.sum(x * x) + 1e-6)


@triton.jit
def _softplus(x):
    """max(x, 0) + log(1 + e), e = exp(-|x|). The logarithm is 2 artanh(e / (2 + e)) by its series, whose argument is at
    most 1/3: seven terms are float32's precision for every e, which log(1 + e) is not for small ones."""
    e = tl.exp(-tl.abs(x))
    s = e / (2.0 + e)
    square = s * s
    series = 1.0 / 13.0
    for odd in tl.static_range(11, 0, -2):
        series = series * square + 1.0 / odd
    return tl.maximum(x, 0.0) + 2.0 * s * series
