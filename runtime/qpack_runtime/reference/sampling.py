"""The `sample` instruction in numpy: its meaning, which every other executor reproduces to the bit.

Order, on the float32 logits z of one row, whose ids end at the real vocabulary:

    1 grammar mask              2 + logit bias
    3 repetition penalty        z > 0 ? z / r : z * r for every id in the prompt or the output
    4 frequency and presence    - frequency * count - (count > 0 ? presence : 0), output only
    5 y = z / T                 or greedy: the largest z
    6 top-k                     the first k in the order (y descending, id ascending): exactly k
    7 top-p                     keep iff the probability mass before it, within what 6 left, is below p
    8 min-p                     keep iff y >= max y + ln(min_p)
    9 argmax of y + Gumbel noise: an exact draw from the softmax of what is left (Gumbel-max)

No summation order shows in the chosen id: scores are float32, rounded after every operation, and masses are integers.
"""

from types import SimpleNamespace

import numpy as np

from qpack_runtime.reference.philox import F32, gumbel, horner
from qpack_schemas.sampling import (
    BIAS,
    CHUNK_IDS,
    COUNT_MASK,
    EMPTY,
    FILTER,
    FLOATS,
    GRAMMAR,
    GREEDY,
    INTS,
    LOGPROBS,
    NONFINITE,
    PENALTY,
    TOP_LOGPROBS_LIMIT,
    TOP_P_ONE,
)

# 2^r on [0, 1]: minimax polynomial, constant term first, relative error 7.8e-9.
EXP2 = (
    1.0, 0.6931469440460205, 0.2402305006980896, 0.05548042804002762, 0.009684580378234386, 0.0012387821916490793,
    0.00021877505059819669,
)  # fmt: skip
EXPONENT_LIMIT = F32(2.0**30)  # beyond it every mass is 0 or all alike; keeps exponents within int32


# A score may leave float32's range: inf stays, NaN is dropped, and inf - inf in min-p keeps the first token alone.
@np.errstate(over="ignore", invalid="ignore")
def sample(
    logits, slots, positions, ints, floats, bias_ids, bias_values, grammar, counts,
    slot_token, slot_position, ids, status, logprobs, top_ids, top_logprobs, *, vocab: int, last=None,
) -> None:  # fmt: skip
    """Chooses one token per row of logits, fills the outputs and advances the slots that got one.

    logits float32 [T, V]; slots, positions int32 [R]; last int32 [T] is the row whose logits each are (None: T == R and
    row t is row t). Per slot, S - 1 being the scratch slot: ints int32 [S, 6] and floats float32 [S, 6] (columns
    INTS and FLOATS), bias_ids int32 and bias_values float32 [S, BIAS_LIMIT], grammar int32 [S, V / 32] (bit set:
    allowed), counts int16 [S, V]. Updated: slot_token and slot_position int32 [S]. Outputs: ids, status int32 [T],
    logprobs float32 [T], top_ids int32 and top_logprobs float32 [T, TOP_LOGPROBS_LIMIT], best first.

    A row with a status gets id 0, no log-probabilities, and its slot does not advance. A row on the scratch slot yields
    zeros and reads nothing, since its logits and parameters may be garbage.
    """
    scratch = len(ints) - 1
    chunks = -(-logits.shape[1] // CHUNK_IDS)
    for output in (ids, status, logprobs, top_ids, top_logprobs):
        output[...] = 0
    for t in range(len(logits)):
        row = t if last is None else last[t]
        slot, position = slots[row], positions[row]
        if slot == scratch:
            continue
        z = logits[t, :vocab]
        p = read_parameters(ints[slot], floats[slot])
        if not (z < np.inf).all():  # NaN compares false
            status[t] = NONFINITE
            continue
        allowed, y = scores(z, p, bias_ids[slot], bias_values[slot], grammar[slot], counts[slot])
        if not allowed.size:
            status[t] = EMPTY
            continue
        ids[t] = draw(allowed, y, p, int(position), chunks)
        slot_token[slot], slot_position[slot] = ids[t], position + 1
        if p.flags & LOGPROBS:
            logp = log_softmax(z)
            best = ranked(z, TOP_LOGPROBS_LIMIT)
            logprobs[t] = logp[ids[t]]
            top_ids[t, : best.size], top_logprobs[t, : best.size] = best, logp[best]


def read_parameters(ints: np.ndarray, floats: np.ndarray) -> SimpleNamespace:
    """One slot's row of `ints` and `floats` by column name: Python ints and numpy float32 scalars."""
    return SimpleNamespace(**dict(zip(INTS, ints.tolist(), strict=True)), **dict(zip(FLOATS, floats, strict=True)))


def scores(
    z: np.ndarray, p: SimpleNamespace, bias_ids: np.ndarray, bias_values: np.ndarray, grammar: np.ndarray,
    counts: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Steps 1 to 5: the ids that may be chosen, int64 [n] ascending, and their scores y, float32 [n].

    A logit of -inf forbids its id, as the grammar does; a score that only the division by T drives to -inf does not.
    """
    ids = np.arange(z.size)
    y = z.copy()
    if p.flags & BIAS:
        np.add.at(y, bias_ids[: p.bias_count], bias_values[: p.bias_count])
    if p.flags & PENALTY:
        seen = counts[: z.size]
        consumed = seen & COUNT_MASK
        y = np.where(seen != 0, np.where(y > 0, y * p.inverse_repetition, y * p.repetition), y)
        y = y - consumed.astype(F32) * p.frequency
        y = y - np.where(consumed > 0, p.presence, F32(0))
    allowed = y > -np.inf
    if p.flags & GRAMMAR:
        allowed &= (grammar[ids >> 5] >> (ids & 31)) & 1 == 1
    return ids[allowed], y[allowed] * p.inverse_temperature  # 1 where greedy


def draw(ids: np.ndarray, y: np.ndarray, p: SimpleNamespace, position: int, chunks: int) -> int:
    """The chosen one of `ids`, which ascend: argmax takes the first of equal scores, so ties go to the lowest id."""
    if p.flags & GREEDY:
        return int(ids[np.argmax(y)])
    if p.flags & FILTER:
        kept = np.sort(keep(ids, y, p, chunks))
        ids, y = ids[kept], y[kept]
    noise = gumbel(ids, position, (p.seed_low & 0xFFFFFFFF, p.seed_high & 0xFFFFFFFF))
    return int(ids[np.argmax(y + noise)])


def keep(ids: np.ndarray, y: np.ndarray, p: SimpleNamespace, chunks: int) -> np.ndarray:
    """Steps 6 to 8: the places within `ids` that survive, best first. Never empty: the first always stays.

    Each filter keeps a prefix of the order (y descending, id ascending), so together they are one cut.
    """
    order = ranked(y, p.top_k or y.size)
    best_first = y[order]
    kept = best_first >= best_first[0] + p.ln_min_p
    if p.top_p24 < TOP_P_ONE:
        mantissa, exponent = exponential(best_first)
        share = mass(mantissa, exponent, exponent[0])
        whole = int(share.sum()) if 0 < p.top_k <= ids.size else total_mass(ids[order], mantissa, exponent, chunks)
        kept &= np.cumsum(share) - share < whole * p.top_p24 // TOP_P_ONE
    kept[0] = True
    return order[kept]


def ranked(y: np.ndarray, count: int) -> np.ndarray:
    """Places of the first `count` of y [n] in the order (y descending, place ascending), at most n."""
    places = np.arange(y.size)
    if count < y.size:  # a selection first: sorting a whole vocabulary takes longer than all the rest
        places = np.flatnonzero(y >= np.partition(y, -count)[-count])
    return places[np.argsort(-y[places], kind="stable")[:count]]


def exponential(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """e^y as mantissa * 2^exponent: an int32 mantissa from 2^29 (stands for 1) to 2^30, and an int32 exponent."""
    power = np.clip(y * F32(1.4426950408889634), -EXPONENT_LIMIT, EXPONENT_LIMIT)  # log2(e)
    whole = np.floor(power)
    return (horner(power - whole, EXP2) * F32(2.0**29)).astype(np.int32), whole.astype(np.int32)


def mass(mantissa: np.ndarray, exponent: np.ndarray, top: np.ndarray) -> np.ndarray:
    """int64 masses in units of 2^(top - 37): 2^38 at most, so that a vocabulary's sum stays below 2^63."""
    return (mantissa.astype(np.int64) << 8) >> np.minimum(np.int64(top) - exponent, 63)


def total_mass(ids: np.ndarray, mantissa: np.ndarray, exponent: np.ndarray, chunks: int) -> int:
    """Mass of all `ids`, in units of the largest exponent, as one pass over the logits gets it: chunks, then shifts."""
    chunk = (ids >> 5) % chunks
    tops = np.full(chunks, exponent.min())
    np.maximum.at(tops, chunk, exponent)
    sums = np.zeros(chunks, np.int64)
    np.add.at(sums, chunk, mass(mantissa, exponent, tops[chunk]))
    return int((sums >> np.minimum(np.int64(tops.max()) - tops, 63)).sum())


def log_softmax(z: np.ndarray) -> np.ndarray:
    """Raw log-probabilities, float64 [n], of logits [n]: before any filter, bias, penalty or temperature."""
    shifted = z.astype(np.float64) - z.max()
    return shifted - np.log(np.exp(shifted).sum())
