"""The gated delta rule over a prompt, in four launches and delta.delta_norm: conv_prefill, ring_write, delta_gates,
delta_scan. Layouts as in delta.py.

The live rows of a bucket come first and are consecutive positions of one slot; the others are padding. Every row is
worked out as it would be alone, so it does not matter where a prompt was cut.
"""

# pyright: basic, reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl

from qpack_packager.cuda.kernels import delta


@triton.jit
def conv_prefill(
    x, conv, slots, positions, ring, u,
    X: tl.constexpr, C: tl.constexpr, W: tl.constexpr, SCRATCH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """u [R, C] = silu of the causal convolution of x [R, X], conv [C, W]. Grid (ceil(C / BLOCK), R).

    Positions before the first row are read from the ring, which `ring_write` changes in a later launch. The u of
    padding rows is zero.
    """
    row = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    written = u + row * C + columns
    dtype = u.dtype.element_ty
    slot = tl.load(slots + row).to(tl.int64)
    if slot == SCRATCH:
        tl.store(written, tl.zeros((BLOCK,), dtype), mask=columns < C)
        return
    position = tl.load(positions + row)
    taps = ring + slot * (C * W) + columns * W
    total = tl.zeros((BLOCK,), tl.float32)
    for tap in tl.static_range(W):
        back = W - 1 - tap
        if row >= back:
            past = tl.load(x + (row - back) * X + columns, mask=columns < C, other=0.0)
        else:
            in_ring = columns < tl.where(position >= back, C, 0)
            past = tl.load(taps + (position + tap + 1) % W, mask=in_ring, other=0.0)
        total += tl.load(conv + columns * W + tap, mask=columns < C, other=0.0).to(tl.float32) * past.to(tl.float32)
    tl.store(written, delta.silu_rounded(total, dtype).to(dtype), mask=columns < C)


@triton.jit
def ring_write(
    x, slots, positions, ring, R,
    X: tl.constexpr, C: tl.constexpr, W: tl.constexpr, SCRATCH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Keeps the last W live rows of x [R, X] in the ring. Grid (ceil(C / BLOCK), R)."""
    row = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots + row).to(tl.int64)
    # Were an earlier row to write as well, two would meet in one column.
    follower = tl.load(slots + row + W, mask=row + W < R, other=SCRATCH)
    if (slot != SCRATCH) & (follower == SCRATCH):
        values = tl.load(x + row * X + columns, mask=columns < C, other=0.0)
        column = tl.load(positions + row) % W
        tl.store(ring + slot * (C * W) + columns * W + column, values, mask=columns < C)


@triton.jit
def delta_gates(
    hidden, ba, a_log, dt_bias, gates, H: tl.constexpr, N: tl.constexpr, BLOCK_H: tl.constexpr
):  # fmt: skip
    """gates float32 [R, 2N], decay | beta, of hidden [R, H] by ba [2N, H] (b | a), a_log and dt_bias float32 [N].
    Grid (N, R)."""
    head, row = tl.program_id(0), tl.program_id(1)
    decay, beta = delta.gates(hidden + row * H, ba, a_log, dt_bias, head, H, N, BLOCK_H)
    tl.store(gates + row * 2 * N + head, decay)
    tl.store(gates + row * 2 * N + N + head, beta)


@triton.jit
def delta_scan(
    u, gates, slots, positions, memory, out, R,
    C: tl.constexpr, N: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr, E: tl.constexpr, SCRATCH: tl.constexpr,
    BLOCK_E: tl.constexpr,
):  # fmt: skip
    """The delta rule over the live rows in order, the state staying in registers. Grid (N, E / BLOCK_E).

    u [R, C], gates float32 [R, 2N] -> memory, and out float32 [R, N * E] before its norm, zero for padding rows.
    """
    head = tl.program_id(0)
    inner, lanes = tl.arange(0, D), tl.program_id(1) * BLOCK_E + tl.arange(0, BLOCK_E)
    written = out + head * E + lanes
    slot = tl.load(slots).to(tl.int64)
    cells = memory + (slot * N + head) * (D * E) + inner[:, None] * E + lanes[None, :]
    state = tl.load(cells, mask=inner[:, None] < tl.where(tl.load(positions) > 0, D, 0), other=0.0)

    q = u + (head // (N // KEYS)) * D + inner
    k = q + KEYS * D
    v = u + 2 * KEYS * D + head * E + lanes
    g = gates + head
    live = 0
    for first in range(0, R, 128):
        rows = first + tl.arange(0, 128)
        live += tl.sum((tl.load(slots + rows, mask=rows < R, other=SCRATCH) != SCRATCH).to(tl.int32))
    # A row is fetched while the one before it is worked on: the chain through the state waits for nothing else.
    query, key, value, decay, beta = tl.load(q), tl.load(k), tl.load(v), tl.load(g), tl.load(g + N)
    for row in range(live):
        ahead = tl.minimum(row + 1, live - 1)
        next_query, next_key, next_value = tl.load(q + ahead * C), tl.load(k + ahead * C), tl.load(v + ahead * C)
        next_decay, next_beta = tl.load(g + ahead * 2 * N), tl.load(g + ahead * 2 * N + N)
        state, result = delta.delta_rule(
            state, query.to(tl.float32), key.to(tl.float32), value.to(tl.float32), decay, beta, D
        )
        tl.store(written + row * (N * E), result)
        query, key, value, decay, beta = next_query, next_key, next_value, next_decay, next_beta
    tl.store(cells, state)
    for row in range(live, R):
        tl.store(written + row * (N * E), tl.zeros((BLOCK_E,), tl.float32))
