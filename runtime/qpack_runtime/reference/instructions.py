"""The instructions of rows, norms and matrix products. Arguments go by the operand names of the signature lines.

Outputs are filled and updated operands changed in place; R, T, S, ... are the letters of the signature lines.
"""

import numpy as np

from qpack_runtime.reference.int8 import dequantize
from qpack_schemas.sampling import COUNT_MASK, PROMPT_BIT


def f32(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def normalize(x: np.ndarray, weight: np.ndarray, eps: float, unit_offset: bool) -> np.ndarray:
    """float32 [..., H]: x / rms(x) * weight, or * (1 + weight). Zhang & Sennrich, "Root Mean Square Layer
    Normalization"."""
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    return x / np.sqrt(mean_square + np.float32(eps)) * (f32(weight) + np.float32(unit_offset))


def rows_decode(slots, slot_token, slot_position, counts, tokens, positions) -> None:
    """Each row continues its slot. A row on the scratch slot is padding: token 0 at position 0, whatever lies in its
    seat."""
    scratch = len(slot_token) - 1
    for row, slot in enumerate(slots):
        live = slot != scratch
        tokens[row], positions[row] = (slot_token[slot], slot_position[slot]) if live else (0, 0)
        if live:
            if positions[row] == 0:
                counts[slot] = 0
            if counts[slot, tokens[row]] & COUNT_MASK < COUNT_MASK:
                counts[slot, tokens[row]] += 1


def rows_prefill(prompt, slot, start, length, counts, tokens, slots, positions, last) -> None:
    """The first `length` rows are the prompt from position `start` on; the others are padding on the scratch slot."""
    live = np.arange(len(tokens)) < length[0]
    tokens[:] = np.where(live, prompt, 0)
    slots[:] = np.where(live, slot[0], len(counts) - 1)
    positions[:] = np.where(live, start[0] + np.arange(len(tokens)), 0)
    last[0] = length[0] - 1
    if start[0] == 0:
        counts[slot[0]] = 0
    counts[slot[0], tokens[live]] |= np.int16(PROMPT_BIT)


def embed(tokens, table, y) -> None:
    y[:] = table[tokens]


def embed_int8(tokens, table, scale, y) -> None:
    """y = table[token] * scale, padding left out."""
    for row, token in enumerate(tokens):
        y[row] = dequantize(table[token], scale[token])[: y.shape[1]]


def rms_norm(x, weight, y, *, eps, unit_offset, delta=None, sum=None) -> None:
    """y = norm(x), or with `delta`: sum = x + delta, rounded to the buffer's dtype, and y = norm(sum)."""
    for row in range(len(x)):
        if delta is not None and sum is not None:
            sum[row] = f32(x[row]) + f32(delta[row])
        y[row] = normalize(f32(x[row] if sum is None else sum[row]), weight, eps, unit_offset)


def linear_int4(x, q, scale, y, *, zero=None, bias=None) -> None:
    """y = x @ W (+ bias); q is bound as float32 [K, N], (codes - zeros) times scales. One product per row, so that no
    row sees the batch."""
    for row in range(len(x)):
        product = f32(x[row]) @ q
        y[row] = product if bias is None else product + f32(bias)


def linear_int8(x, q, scale, y, *, bias=None) -> None:
    """y = x @ q^T (+ bias); q is bound as float32 [N, K], codes times scales."""
    linear(x, q, y, bias=bias)


def linear(x, weight, y, *, bias=None) -> None:
    """y = x @ weight^T (+ bias); weight is bound as float32 [N, K]."""
    for row in range(len(x)):
        product = weight @ f32(x[row])
        y[row] = product if bias is None else product + f32(bias)


def silu_mul(x, y) -> None:
    """y = silu(gate) * up; columns gate | up. Shazeer, "GLU Variants Improve Transformer"."""
    for row in range(len(x)):
        gate, up = np.split(f32(x[row]), 2)
        y[row] = gate * sigmoid(gate) * up


def take_rows(x, rows, y) -> None:
    y[:] = x[rows]
