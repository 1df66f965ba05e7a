"""`sample` where a filter cuts beyond the ids known to be the best: exact all the same, by passes over the whole row.

What filters keep is a prefix of the order of keys. So if the winner among a superset of it is kept, it is the winner of
the kept; if not, the kept lie above it, and the winner among those above it is next. A step throws out many at once.
"""

import triton
import triton.language as tl

from qpack_packager.cuda.kernels.sample import noise, scores
from qpack_packager.cuda.kernels.sample_math import SENTINEL, between, exponential, mass, order_key, score_and_id

BLOCK = tl.constexpr(2048)  # ids at a time; the sums are of integers, so any cut into blocks gives the same


@triton.jit
def above(
    logits, t, slot, tables, least, top, VOCAB: tl.constexpr, WIDTH: tl.constexpr, LIST: tl.constexpr
):  # -> int32, int64
    """Number and mass, in units of exponent `top`, of the allowed ids of row t whose key is above `least`."""
    PARTS: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    count = tl.zeros((BLOCK,), tl.int32)
    total = tl.zeros((BLOCK,), tl.int64)
    for part in range(PARTS):
        ids, allowed, y, _, _ = scores(logits, t, slot, part, tables, VOCAB, WIDTH, PARTS, BLOCK, LIST)
        allowed = allowed & (order_key(y, ids) > least)
        mantissa, exponent = exponential(y)
        count += allowed.to(tl.int32)
        total += tl.where(allowed, mass(mantissa, exponent, top), 0)
    return tl.sum(count, 0), tl.sum(total, 0)


@triton.jit
def winner_above(
    logits, t, slot, position, tables, least, VOCAB: tl.constexpr, WIDTH: tl.constexpr, LIST: tl.constexpr
):  # -> int64, int64
    """Among the allowed ids of row t whose key is above `least`: the largest key of score + noise, and the key of the
    same id's score."""
    PARTS: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    winners = tl.full((BLOCK,), SENTINEL, tl.int64)
    plains = tl.full((BLOCK,), SENTINEL, tl.int64)
    for part in range(PARTS):
        ids, allowed, y, _, _ = scores(logits, t, slot, part, tables, VOCAB, WIDTH, PARTS, BLOCK, LIST)
        keys = order_key(y, ids)
        noisy = y + noise(tables[0], slot, position, part, PARTS, BLOCK)
        noisy_keys = tl.where(allowed & (keys > least), order_key(noisy, ids), SENTINEL)
        plains = tl.where(noisy_keys > winners, keys, plains)
        winners = tl.maximum(winners, noisy_keys)
    winner = tl.max(winners, 0)
    return winner, tl.max(tl.where(winners == winner, plains, SENTINEL), 0)


@triton.jit
def mass_of_first(
    logits, t, slot, tables, k, high, top, whole, VOCAB: tl.constexpr, WIDTH: tl.constexpr, LIST: tl.constexpr
):  # -> int64
    """Mass of the first k allowed ids; `whole` if there are fewer. Fewer than k keys lie above `high`."""
    low = SENTINEL + tl.zeros((), tl.int64)
    middle = low  # first all of them: there may be fewer than k, or k
    total = whole
    searching = k > 0
    while searching:  # more than k lie above `low`, fewer above `high`
        found, weight = above(logits, t, slot, tables, middle, top, VOCAB, WIDTH, LIST)
        total = tl.where(found == k, weight, total)
        searching = (found > k) | ((found < k) & (middle != SENTINEL))
        low = tl.where(found > k, middle, low)
        high = tl.where(found < k, middle, high)
        middle = between(low, high)
    return total


@triton.jit
def walk(
    logits, t, slot, position, tables, winner, plain, known, k, limit, least_score, top, VOCAB: tl.constexpr,
    WIDTH: tl.constexpr, LIST: tl.constexpr,
):  # -> int64  # fmt: skip
    """Largest key of score + noise among the kept: an id is kept if fewer than k ids and less mass than `limit` come
    before it, and its score is at least `least_score`; ids with keys from `known` on are kept. winner and plain are
    those of winner_above for all ids, or SENTINEL."""
    kept = plain >= known
    while kept == 0:
        if plain != SENTINEL:
            before, mass_before = above(logits, t, slot, tables, plain, top, VOCAB, WIDTH, LIST)
            score, _ = score_and_id(plain)
            kept = (before < k) & (mass_before < limit) & (score >= least_score)
        if kept == 0:
            winner, plain = winner_above(logits, t, slot, position, tables, plain, VOCAB, WIDTH, LIST)
            kept = plain >= known
    return winner
