# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
"""`sample`, second launch: the chunks of a row become its token, its log-probabilities and the advance of its slot."""

import triton
import triton.language as tl

from qpack_packager.cuda.kernels.sample_math import (
    FILTER,
    GREEDY,
    LOGPROBS,
    NO_EXPONENT,
    SENTINEL,
    TOP_P_ONE,
    bound,
    compact,
    cut_shift,
    exponential,
    gumbel,
    mass,
    order_key,
    philox,
    score_and_id,
)
from qpack_packager.cuda.kernels.sample_walk import mass_of_first, walk


@triton.jit
def gathered(candidates, tops, t, COLUMN: tl.constexpr, NC: tl.constexpr, NCP: tl.constexpr, C: tl.constexpr):
    """Keys of all chunks' candidates, int64 [NCP * C]; SENTINEL where a chunk has fewer than C."""
    i = tl.arange(0, NCP * C)
    size = tl.load(tops + (t * NC + i // C) * 4 + COLUMN, mask=i < NC * C, other=0)
    return tl.load(candidates + t * NC * C + i, mask=i % C < size, other=SENTINEL)


@triton.jit
def share(keys, top):
    """Scores, ids and masses of keys; the mass of SENTINEL is 0."""
    y, ids = score_and_id(keys)
    there = keys != SENTINEL
    mantissa, exponent = exponential(tl.where(there, y, float("-inf")))
    return y, ids, tl.where(there, mass(mantissa, tl.where(there, exponent, top), top), 0)


@triton.jit
def ranked(keys, first, n, top, K: tl.constexpr):
    """Of K keys, the n at `first`: how many of them come before each, and their mass. By pairs, 8 columns a turn."""
    rank = tl.zeros((K,), tl.int32)
    before = tl.zeros((K,), tl.int64)
    for start in range(0, K, 8):
        j = start + tl.arange(0, 8)
        others = tl.load(first + j, mask=j < n, other=SENTINEL)
        _, _, masses = share(others, top)
        ahead = others[None, :] > keys[:, None]
        rank += tl.sum(ahead.to(tl.int32), 1)
        before += tl.sum(tl.where(ahead, masses[None, :], 0), 1)
    return rank, before


@triton.jit
def filtered(
    logits, t, slot, position, tables, winner, plain, masses, tops, floors, candidates, first, VOCAB: tl.constexpr,
    WIDTH: tl.constexpr, NC: tl.constexpr, NCP: tl.constexpr, C: tl.constexpr, LIST: tl.constexpr, K: tl.constexpr,
):  # -> int64  # fmt: skip
    """Key of the winner among what top-k, top-p and min-p keep; winner and plain are those of the whole row."""
    ints, floats = tables[0], tables[1]
    chunk = tl.arange(0, NCP)
    there = chunk < NC
    at = t * NC + chunk
    k = tl.load(ints + slot * 6 + 1)
    top_p = tl.load(ints + slot * 6 + 2).to(tl.int64)
    exponents = tl.load(tops + at * 4, mask=there, other=NO_EXPONENT)
    top = tl.max(exponents, 0)
    whole = tl.sum(tl.load(masses + at, mask=there, other=0) >> cut_shift(top, exponents), 0)

    # The best K/2 to K candidates, k at least; of them, those above every chunk's floor are the best of all.
    keys = gathered(candidates, tops, t, 2, NC, NCP, C)
    least = bound(keys, tl.minimum(tl.maximum(k, K // 2), K), K)
    floor = tl.max(tl.load(floors + at, mask=there, other=SENTINEL), 0)
    complete = tl.maximum(floor, least) == SENTINEL + 1
    n = compact(keys, least, first)
    tl.debug_barrier()  # what one thread wrote, all read
    i = tl.arange(0, K)
    keys = tl.load(first + i, mask=i < n, other=SENTINEL)
    y, ids, weights = share(keys, top)
    known = (keys != SENTINEL) & (keys >= floor)
    n_known = tl.sum(known.to(tl.int32), 0)
    lowest_known = tl.min(tl.where(known, keys, 0x7FFFFFFFFFFFFFFF), 0)
    rank, before = ranked(keys, first, n, top, K)

    limited = k > 0
    k = tl.where(limited, k, 0x7FFFFFFF)
    if k <= n_known:
        whole = tl.sum(tl.where(rank < k, weights, 0), 0)
    elif limited & (complete == 0) & (top_p < TOP_P_ONE):
        whole = mass_of_first(logits, t, slot, tables, k, lowest_known, top, whole, VOCAB, WIDTH, LIST)
    low_bits = whole & (TOP_P_ONE - 1)  # whole * top_p would overflow
    limit = (whole // TOP_P_ONE) * top_p + low_bits * top_p // TOP_P_ONE
    limit = tl.where(top_p < TOP_P_ONE, limit, 0x7FFFFFFFFFFFFFFF)
    least_score = tl.max(tl.where(known, y, float("-inf")), 0) + tl.load(floats + slot * 6 + 1)
    kept = known & (((rank < k) & (before < limit) & (y >= least_score)) | (rank == 0))

    if (tl.sum(kept.to(tl.int32), 0) < n_known) | (k <= n_known) | complete:  # the cut lies within the known
        word0, word1, word2, word3 = philox(
            ids >> 2, position, tl.load(ints + slot * 6 + 3), tl.load(ints + slot * 6 + 4)
        )
        odd = (ids & 1) != 0
        words = tl.where((ids & 2) != 0, tl.where(odd, word3, word2), tl.where(odd, word1, word0))
        winner = tl.max(tl.where(kept, order_key(y + gumbel(words), ids), SENTINEL), 0)
    else:
        unknown = SENTINEL + tl.zeros((), tl.int64)
        winner = tl.where(limited, unknown, winner)  # the chunks left the noise out
        plain = tl.where(limited, unknown, plain)
        winner = walk(
            logits, t, slot, position, tables, winner, plain, lowest_known, k, limit, least_score, top, VOCAB, WIDTH,
            LIST,
        )  # fmt: skip
    return winner


@triton.jit
def log_probabilities(
    logit, t, tops, raw, raw_candidates, first, logprobs, top_ids, top_logprobs, NC: tl.constexpr, NCP: tl.constexpr,
    RC: tl.constexpr, TOP: tl.constexpr,
):  # fmt: skip
    """Writes row t's log-probabilities: of the token, whose logit is given, and of the TOP likeliest."""
    chunk = tl.arange(0, NCP)
    at = t * NC + chunk
    largest = tl.load(raw + at * 2, mask=chunk < NC, other=float("-inf"))
    shift = tl.max(largest, 0)
    log_sum = tl.log(tl.sum(tl.load(raw + at * 2 + 1, mask=chunk < NC, other=0.0) * tl.exp(largest - shift), 0))
    tl.store(logprobs + t, (logit - shift) - log_sum)

    keys = gathered(raw_candidates, tops, t, 3, NC, NCP, RC)
    tl.debug_barrier()  # `first` has had its readers
    n = compact(keys, bound(keys, TOP, RC), first)
    tl.debug_barrier()
    i = tl.arange(0, RC)
    keys = tl.load(first + i, mask=i < n, other=SENTINEL)
    rank = tl.sum((keys[None, :] > keys[:, None]).to(tl.int32), 1)
    z, ids = score_and_id(keys)
    there = i < n
    place = tl.where(there, rank, i)  # a vocabulary smaller than TOP leaves zeros behind its ids
    tl.store(top_ids + t * TOP + place, tl.where(there, ids, 0), mask=place < TOP)
    tl.store(top_logprobs + t * TOP + place, tl.where(there, (z - shift) - log_sum, 0.0), mask=place < TOP)


@triton.jit
def sample_merge(
    logits, slots, positions, last, ints, floats, bias_ids, bias_values, grammar, counts, slot_token, slot_position,
    best, masses, tops, raw, floors, candidates, raw_candidates, first, ids, status, logprobs, top_ids, top_logprobs,
    VOCAB: tl.constexpr, WIDTH: tl.constexpr, SCRATCH: tl.constexpr, NC: tl.constexpr, NCP: tl.constexpr,
    C: tl.constexpr, RC: tl.constexpr, LIST: tl.constexpr, K: tl.constexpr, TOP: tl.constexpr,
):  # fmt: skip
    """Chooses the token of row program_id(0) and writes all its outputs. Grid (T,).

    Inputs, outputs and meaning are those of the instruction `sample`; best to raw_candidates are what sample_chunks
    left, and first int64 [T, K] is scratch. NCP is the power of two from NC on, K a power of two, at least 8 and
    at least RC, and RC a power of two, at least TOP. K should reach the limit of top-k: then only top-p and min-p that
    keep more than K/2 ids, or chunks that hold more than 3/4 C of the best, take passes over the row.
    """
    t = tl.program_id(0)
    row = t
    if last is not None:
        row = tl.load(last + t)
    slot = tl.load(slots + row)
    chunk = tl.arange(0, NCP)
    at = t * NC + chunk
    winners = tl.load(best + at * 2, mask=chunk < NC, other=SENTINEL)
    winner = tl.max(winners, 0)
    broken = tl.max(tl.load(tops + at * 4 + 1, mask=chunk < NC, other=0), 0)
    problem = tl.where(slot == SCRATCH, 0, tl.where(broken != 0, 1, tl.where(winner == SENTINEL, 2, 0)))
    tl.store(status + t, problem)
    flags = 0
    token = 0
    if (slot != SCRATCH) & (problem == 0):
        flags = tl.load(ints + slot * 6)
        position = tl.load(positions + row)
        if ((flags & FILTER) != 0) & ((flags & GREEDY) == 0):
            plains = tl.load(best + at * 2 + 1, mask=chunk < NC, other=SENTINEL)
            plain = tl.max(tl.where(winners == winner, plains, SENTINEL), 0)
            tables = (ints, floats, bias_ids, bias_values, grammar, counts)
            winner = filtered(
                logits, t, slot, position, tables, winner, plain, masses, tops, floors, candidates, first + t * K,
                VOCAB, WIDTH, NC, NCP, C, LIST, K,
            )  # fmt: skip
        _, token = score_and_id(winner)
        tl.store(slot_token + slot, token)
        tl.store(slot_position + slot, position + 1)
    tl.store(ids + t, token)
    if (flags & LOGPROBS) != 0:
        logit = tl.load(logits + t.to(tl.int64) * WIDTH + token)
        log_probabilities(
            logit, t, tops, raw, raw_candidates, first + t * K, logprobs, top_ids, top_logprobs, NC, NCP, RC, TOP
        )
    else:
        tl.store(logprobs + t, 0.0)
        place = tl.arange(0, RC)
        tl.store(top_ids + t * TOP + place, 0, mask=place < TOP)
        tl.store(top_logprobs + t * TOP + place, 0.0, mask=place < TOP)
