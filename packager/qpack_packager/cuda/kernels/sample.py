# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
"""`sample`, first launch: one pass over the logits, in chunks; sample_merge makes the tokens of what the chunks found.

Ids come in lines of 32, and part p of P parts owns the lines p, p + P, p + 2P...: loads stay wide, and frequent ids,
which are neighbours, spread over all parts. What a row does not ask for is neither read nor computed.
"""

import triton
import triton.language as tl

from qpack_packager.cuda.kernels.sample_math import (
    BIAS,
    FILTER,
    GRAMMAR,
    GREEDY,
    LOGPROBS,
    NO_EXPONENT,
    PENALTY,
    SENTINEL,
    bound,
    compact,
    exponential,
    gumbel,
    mass,
    order_key,
    philox,
)


@triton.jit
def scores(
    logits, t, slot, part, tables, VOCAB: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, SIZE: tl.constexpr,
    LIST: tl.constexpr,
):  # fmt: skip
    """Part `part` of row t: ids, whether each may be chosen, its score y (-inf where it may not), its logit z (-inf
    where there is none, or where it is broken), and whether that logit is broken: NaN or +inf. Blocks of SIZE."""
    ints, floats, bias_ids, bias_values, grammar, counts = tables
    parameters = floats + slot * 6
    flags = tl.load(ints + slot * 6)
    place = tl.arange(0, SIZE)
    ids = ((place >> 5) * PARTS + part) * 32 + (place & 31)
    ids = tl.max_contiguous(tl.multiple_of(ids, 4), 4)  # 16-byte loads; a wider run would part the layouts of loads
    inside = ids < WIDTH
    z = tl.load(logits + t.to(tl.int64) * WIDTH + ids, mask=inside, other=float("-inf"))
    below = z < float("inf")
    broken = (ids < VOCAB) & (below == 0)
    z = tl.where((ids < VOCAB) & below, z, float("-inf"))
    y = z
    if (flags & BIAS) != 0:
        entry = tl.arange(0, LIST)
        given = entry < tl.load(ints + slot * 6 + 5)
        entry_ids = tl.load(bias_ids + slot * LIST + entry, mask=given, other=0)
        values = tl.load(bias_values + slot * LIST + entry, mask=given, other=0.0)
        mine = (given & ((entry_ids >> 5) % PARTS == part)).to(tl.int32)
        turn = tl.cumsum(mine, 0) * mine  # entries of this part are added in their order, as ids may repeat
        for i in range(1, tl.sum(mine, 0) + 1):
            target = tl.sum(tl.where(turn == i, entry_ids, 0), 0)
            y = tl.where(ids == target, y + tl.sum(tl.where(turn == i, values, 0.0), 0), y)
    if (flags & PENALTY) != 0:
        seen = tl.load(counts + slot.to(tl.int64) * WIDTH + ids, mask=inside, other=0).to(tl.int32)
        consumed = seen & 0x7FFF
        penal = tl.where(y > 0, y * tl.load(parameters + 3), y * tl.load(parameters + 2))
        y = tl.where(seen != 0, penal, y) - consumed.to(tl.float32) * tl.load(parameters + 5)
        y = y - tl.where(consumed > 0, tl.load(parameters + 4), 0.0)
    allowed = y > float("-inf")
    if (flags & GRAMMAR) != 0:
        word = tl.load(grammar + slot * (WIDTH // 32) + (ids >> 5), mask=inside, other=0)
        allowed = allowed & (((word >> (ids & 31)) & 1) != 0)
    return ids, allowed, tl.where(allowed, y * tl.load(parameters), float("-inf")), z, broken


@triton.jit
def noise(ints, slot, position, part, PARTS: tl.constexpr, SIZE: tl.constexpr):
    """Gumbel noise of the ids of a part, float32 [SIZE]: one Philox block for four neighbours."""
    place = tl.arange(0, SIZE // 4)
    block = ((place >> 3) * PARTS + part) * 8 + (place & 7)
    word0, word1, word2, word3 = philox(block, position, tl.load(ints + slot * 6 + 3), tl.load(ints + slot * 6 + 4))
    words = tl.join(tl.join(word0, word2), tl.join(word1, word3))
    return gumbel(tl.reshape(words, (SIZE,)))


@triton.jit
def sample_chunks(
    logits, slots, positions, last, ints, floats, bias_ids, bias_values, grammar, counts, best, masses, tops, raw,
    floors, candidates, raw_candidates, VOCAB: tl.constexpr, WIDTH: tl.constexpr, SCRATCH: tl.constexpr,
    NC: tl.constexpr, CHUNK: tl.constexpr, C: tl.constexpr, RC: tl.constexpr, LIST: tl.constexpr, TOP: tl.constexpr,
):  # fmt: skip
    """What chunk program_id(1) of row program_id(0) adds to the choice of a token. Grid (T, NC), where NC is
    ceil(WIDTH / CHUNK).

    Inputs as the instruction `sample` has them, logits float32 [T, WIDTH], `last` None in decode; WIDTH is a multiple
    of 32, LIST the width of bias_ids. Per row and chunk, where c of NC chunks holds ids with (id >> 5) % NC == c:
    best           int64 [T, NC, 2]    largest key of score + noise, and the key of the same id's score; where no noise
                                       is due, both are the largest key of a score
    tops           int32 [T, NC, 4]    largest exponent, whether a logit is broken, number of candidates, of raw ones
    masses         int64 [T, NC]       mass of all allowed ids, in units of the largest exponent  (rows with filters)
    floors         int64 [T, NC]       all keys from here on are candidates                       (rows with filters)
    candidates     int64 [T, NC, C]    keys of scores, unsorted: all of them, or the best 3/4 C to C     (same)
    raw            float32 [T, NC, 2]  largest logit m, sum of exp(logit - m)            (rows with log-probabilities)
    raw_candidates int64 [T, NC, RC]   keys of logits, unsorted: all, or the best TOP to RC              (same)
    """
    t = tl.program_id(0)
    chunk = tl.program_id(1)
    row = t
    if last is not None:
        row = tl.load(last + t)
    slot = tl.load(slots + row)
    if slot == SCRATCH:
        return
    flags = tl.load(ints + slot * 6)
    tables = (ints, floats, bias_ids, bias_values, grammar, counts)
    ids, allowed, y, z, broken = scores(logits, t, slot, chunk, tables, VOCAB, WIDTH, NC, CHUNK, LIST)
    at = t * NC + chunk
    tl.store(tops + at * 4 + 1, tl.max(broken.to(tl.int32), 0))

    keys = tl.where(allowed, order_key(y, ids), SENTINEL)
    winner = tl.max(keys, 0)
    plain = winner
    # Under top-k the few best are drawn among themselves, so nobody asks for the noise of all.
    if ((flags & GREEDY) == 0) & (((flags & FILTER) == 0) | (tl.load(ints + slot * 6 + 1) == 0)):
        noisy = y + noise(ints, slot, tl.load(positions + row), chunk, NC, CHUNK)
        noisy_keys = tl.where(allowed, order_key(noisy, ids), SENTINEL)
        winner = tl.max(noisy_keys, 0)
        plain = tl.max(tl.where(noisy_keys == winner, keys, SENTINEL), 0)
    tl.store(best + at * 2, winner)
    tl.store(best + at * 2 + 1, plain)

    if (flags & FILTER) != 0:
        mantissa, exponent = exponential(y)
        exponent = tl.where(allowed, exponent, NO_EXPONENT)
        top = tl.max(exponent, 0)
        tl.store(tops + at * 4, top)
        tl.store(masses + at, tl.sum(tl.where(allowed, mass(mantissa, exponent, top), 0), 0))
        floor = bound(keys, C * 3 // 4, C)
        tl.store(floors + at, floor)
        tl.store(tops + at * 4 + 2, compact(keys, floor, candidates + at * C))

    if (flags & LOGPROBS) != 0:
        largest = tl.max(z, 0)
        tl.store(raw + at * 2, largest)
        tl.store(raw + at * 2 + 1, tl.sum(tl.exp(z - tl.where(largest == float("-inf"), 0.0, largest)), 0))
        raw_keys = tl.where(ids < VOCAB, order_key(z, ids), SENTINEL)
        tl.store(tops + at * 4 + 3, compact(raw_keys, bound(raw_keys, TOP, RC), raw_candidates + at * RC))
