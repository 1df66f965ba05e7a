"""The instructions that read and write the state of a slot: attention with its cache, convolution and gated delta rule.

Rows are walked in order, because a row of a prompt reads what the row before it wrote.
"""

import numpy as np

from qpack_runtime.reference.instructions import f32, normalize, sigmoid


def rotate(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Rotary embedding of the leading 2 * F values of each head [heads, D]; table [2, F] holds cosines and sines.
    Su et al., "RoFormer", with the halves paired as in GPT-NeoX."""
    half = table.shape[1]
    a, b, rest = x[:, :half], x[:, half : 2 * half], x[:, 2 * half :]
    return np.concatenate([a * table[0] - b * table[1], b * table[0] + a * table[1], rest], axis=1)


def rope_kv_write(x, rope, slots, positions, k, v, q, *, context, eps, unit_offset, q_norm=None, k_norm=None) -> None:
    """Columns q | k | v of x: normed per head (if the model does), rotated, k and v written at line slot * context +
    position of the cache. The scratch slot has one line, the last, since its position is always 0."""
    _, heads, dim = q.shape
    groups = k.shape[1]
    for row, (slot, position) in enumerate(zip(slots, positions, strict=True)):
        values = f32(x[row, : (heads + 2 * groups) * dim]).reshape(-1, dim)
        query, key, value = np.split(values, [heads, heads + groups])
        if q_norm is not None and k_norm is not None:
            query, key = normalize(query, q_norm, eps, unit_offset), normalize(key, k_norm, eps, unit_offset)
        line = int(slot) * context + int(position)
        q[row], k[line], v[line] = rotate(query, rope[position]), rotate(key, rope[position]), value


def attention(q, slots, positions, k, v, y, *, context, gate=None) -> None:
    """softmax(q k^T / sqrt(D)) v over the positions 0 .. position of the row's slot, heads sharing keys in groups;
    times sigmoid(gate), the last A * D columns, if there is one."""
    _, heads, dim = q.shape
    groups = k.shape[1]
    for row, (slot, position) in enumerate(zip(slots, positions, strict=True)):
        first = int(slot) * context
        query = f32(q[row]).reshape(groups, heads // groups, dim)
        keys = f32(k[first : first + position + 1]).transpose(1, 2, 0)
        values = f32(v[first : first + position + 1]).transpose(1, 0, 2)
        scores = query @ keys * np.float32(dim**-0.5)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out = (weights @ values / weights.sum(-1, keepdims=True)).reshape(-1)
        y[row] = out if gate is None else out * sigmoid(f32(gate[row, -heads * dim :]))


def causal_conv1d(x, weight, slots, positions, ring, y) -> None:
    """silu of a depthwise convolution over the last W positions of the slot. `ring` keeps position p in column p % W;
    positions before 0 count as zero, so a slot needs no reset."""
    channels, taps = weight.shape
    for row, (slot, position) in enumerate(zip(slots, positions, strict=True)):
        ring[slot, :, position % taps] = x[row, :channels]
        total = np.zeros(channels, np.float32)
        for tap in range(taps):
            at = int(position) - taps + 1 + tap
            if at >= 0:
                total += f32(weight[:, tap]) * f32(ring[slot, :, at % taps])
        y[row] = total * sigmoid(total)


def gated_delta(u, x, z, ba, a_log, dt_bias, norm, slots, positions, memory, y, *, eps) -> None:
    """One step of the gated delta rule per row; Yang et al., "Gated Delta Networks". u holds q | k | v, key head j
    serving value heads j*r .. j*r + r-1; ba, bound as float32 [2N, H], gives beta and the decay; z gates the normed
    output. The memory [D, E] of each head starts from zero at position 0, by choice and not by product: 0 * NaN is
    NaN."""
    _, heads, key_dim, value_dim = memory.shape
    key_heads = (u.shape[1] - heads * value_dim) // (2 * key_dim)
    for row, (slot, position) in enumerate(zip(slots, positions, strict=True)):
        query, key, value = np.split(f32(u[row]), [key_heads * key_dim, 2 * key_heads * key_dim])
        query, key = (unit(part.reshape(key_heads, key_dim)) for part in (query, key))
        query = query * np.float32(key_dim**-0.5)
        query, key = (np.repeat(part, heads // key_heads, axis=0) for part in (query, key))
        beta, a = np.split(ba @ f32(x[row]), 2)
        decay = np.exp(-np.exp(a_log) * np.logaddexp(np.float32(0), a + dt_bias))
        old = np.zeros_like(memory[slot]) if position == 0 else memory[slot] * decay[:, None, None]
        recalled = (old * key[:, :, None]).sum(axis=1)
        change = (value.reshape(heads, value_dim) - recalled) * sigmoid(beta)[:, None]
        memory[slot] = new = old + key[:, :, None] * change[:, None, :]
        out = normalize((new * query[:, :, None]).sum(axis=1), norm, eps, False)
        gate = f32(z[row, -heads * value_dim :]).reshape(heads, value_dim)
        y[row] = (out * gate * sigmoid(gate)).reshape(-1)


def unit(x: np.ndarray) -> np.ndarray:
    """Rows of Euclidean length 1; 1e-6 under the root as in flash-linear-attention's l2norm."""
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + np.float32(1e-6))
