"""The `sample` instruction on whole buffers: what it writes, what it leaves alone, how its tokens are distributed."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qpack_runtime.reference.sampling import sample
from qpack_runtime.sampling_options import SamplingOptions, write_options
from qpack_schemas.sampling import BIAS_LIMIT, EMPTY, GRAMMAR, INTS, NONFINITE, PROMPT_BIT, TOP_LOGPROBS_LIMIT

VOCAB, WIDTH, SLOTS = 50, 64, 5  # 14 padded ids; the last slot is scratch
SCRATCH = SLOTS - 1
ANYTHING = st.builds(
    SamplingOptions,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 30.0]),
    top_k=st.sampled_from([0, 1, 3, 256]),
    top_p=st.sampled_from([1.0, 0.9, 0.2]),
    min_p=st.sampled_from([0.0, 0.05]),
    repetition_penalty=st.sampled_from([1.0, 1.5]),
    seed=st.integers(0, 2**64 - 1),
    logprobs=st.booleans(),
)


class Buffers:
    """The buffers of `sample` as an executor binds them, full of garbage where nobody has written."""

    def __init__(self, *seats: SamplingOptions):
        self.ints = np.full((SLOTS, 6), -1, np.int32)
        self.floats = np.full((SLOTS, 6), np.nan, np.float32)
        self.bias_ids = np.full((SLOTS, BIAS_LIMIT), 2**31 - 1, np.int32)
        self.bias_values = np.full((SLOTS, BIAS_LIMIT), np.nan, np.float32)
        self.grammar = np.full((SLOTS, WIDTH // 32), 0x5A5A5A5A, np.int32)
        self.counts = np.zeros((SLOTS, WIDTH), np.int16)
        self.slot_token, self.slot_position = np.full(SLOTS, -7, np.int32), np.full(SLOTS, -8, np.int32)
        for slot, options in enumerate(seats):
            self.seat(slot, options)

    def seat(self, slot, options, allowed=None):
        write_options(options, slot, self.ints, self.floats, self.bias_ids, self.bias_values, vocab=VOCAB)
        if allowed is not None:
            self.ints[slot, INTS.index("flags")] |= GRAMMAR
            self.grammar[slot] = np.packbits(np.isin(np.arange(WIDTH), allowed), bitorder="little").view(np.int32)

    def run(self, logits, slots, positions, last=None):
        rows = len(logits)
        outputs = {
            "ids": np.full(rows, -1, np.int32),
            "status": np.full(rows, -1, np.int32),
            "logprobs": np.full(rows, np.nan, np.float32),
            "top_ids": np.full((rows, TOP_LOGPROBS_LIMIT), -1, np.int32),
            "top_logprobs": np.full((rows, TOP_LOGPROBS_LIMIT), np.nan, np.float32),
        }
        sample(
            logits, np.array(slots, np.int32), np.array(positions, np.int32), self.ints, self.floats, self.bias_ids,
            self.bias_values, self.grammar, self.counts, self.slot_token, self.slot_position, **outputs, vocab=VOCAB,
            last=None if last is None else np.array(last, np.int32),
        )  # fmt: skip
        return SimpleNamespace(**outputs)


def random_logits(rows, seed=0, scale=2.0):
    """Rows of logits whose padded ids would win every comparison."""
    logits = (np.random.default_rng(seed).standard_normal((rows, WIDTH)) * scale).astype(np.float32)
    logits[:, VOCAB:] = [1e30, np.inf, *[np.nan] * (WIDTH - VOCAB - 2)]
    return logits


def draws(options, logits, count=4000):
    """How often each id was chosen at positions 0..count - 1."""
    out = Buffers(options).run(np.repeat(logits, count, axis=0), [0] * count, range(count))
    assert not out.status.any()
    return np.bincount(out.ids, minlength=VOCAB)


def assert_distributed(counts, probabilities):
    """Chi-squared at four standard deviations above its mean; ids of probability 0 must not occur."""
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    expected = counts.sum() * probabilities[possible]
    freedom = possible.sum() - 1
    assert ((counts[possible] - expected) ** 2 / expected).sum() < freedom + 4 * np.sqrt(2 * freedom)


def softmax(z):
    weights = np.exp(z.astype(np.float64) - z.max())
    return weights / weights.sum()


@pytest.mark.parametrize("seed", [7, 2**63 + 5])
def test_sampled_ids_follow_the_softmax(seed):
    logits = random_logits(1, scale=0.7)
    for temperature in (1.0, 2.0):
        counts = draws(SamplingOptions(temperature=temperature, seed=seed), logits)
        assert_distributed(counts, softmax(logits[0, :VOCAB] / temperature))


def test_filtered_ids_follow_the_renormalised_softmax_of_what_is_left():
    logits = random_logits(1, seed=1, scale=1.0)
    probabilities = softmax(logits[0, :VOCAB])
    probabilities[np.argsort(-probabilities)[8:]] = 0
    assert_distributed(draws(SamplingOptions(temperature=1.0, top_k=8), logits), probabilities / probabilities.sum())
    least = probabilities[probabilities > 0].min()
    probabilities[probabilities < 1.001 * least] = 0
    options = SamplingOptions(temperature=1.0, top_k=8, min_p=float(1.001 * least / probabilities.max()))
    assert_distributed(draws(options, logits), probabilities / probabilities.sum())


def test_draws_of_many_seeds_follow_the_softmax():
    logits = random_logits(1, seed=2, scale=0.7)
    rng, counts, buffers = np.random.default_rng(0), np.zeros(VOCAB, int), Buffers()
    for seed in rng.integers(0, 2**64, 3000, dtype=np.uint64):
        buffers.seat(0, SamplingOptions(temperature=1.0, seed=int(seed)))
        counts[buffers.run(logits, [0], [5]).ids[0]] += 1
    assert_distributed(counts, softmax(logits[0, :VOCAB]))


def test_equal_logits_under_top_k_reach_exactly_the_k_lowest_ids():
    counts = draws(SamplingOptions(temperature=1.0, top_k=5, seed=3), np.zeros((1, WIDTH), np.float32), 500)
    assert np.flatnonzero(counts).tolist() == [0, 1, 2, 3, 4]


@given(ANYTHING, st.integers(0, 1000))
def test_ids_beyond_the_real_vocabulary_are_never_chosen_or_reported(options, position):
    logits = random_logits(1, seed=position)
    out = Buffers(options).run(logits, [0], [position])
    assert out.status[0] == 0
    assert out.ids[0] < VOCAB
    assert out.top_ids.max() < VOCAB


def test_greedy_takes_the_largest_and_of_equals_the_lowest_id():
    logits = random_logits(2, seed=4)
    logits[0, [41, 3, 49]] = 9.0
    logits[1, :VOCAB] = -0.0
    logits[1, 20] = 0.0
    greedy = SamplingOptions(temperature=9.9e-6, top_k=7, top_p=0.5, min_p=0.1, seed=1)
    assert Buffers(greedy, greedy).run(logits, [0, 1], [0, 0]).ids.tolist() == [3, 0]


@given(st.lists(ANYTHING, min_size=3, max_size=3), st.permutations(range(SCRATCH)), st.permutations(range(3)))
def test_a_row_gets_the_same_whatever_its_slot_its_row_and_its_neighbours(seats, slots, order):
    logits, positions = random_logits(3, seed=5), np.array([0, 17, 900])
    buffers = Buffers()
    for options, slot in zip(seats, slots, strict=False):
        buffers.seat(slot, options)
    slots, order = np.array(slots[:3]), np.array(order)
    together = buffers.run(logits[order], slots[order], positions[order])
    for row, options in enumerate(seats):
        alone = Buffers(options).run(logits[row : row + 1], [0], positions[row : row + 1])
        at = int(np.flatnonzero(order == row)[0])
        for name, value in vars(alone).items():
            assert np.array_equal(value[0], vars(together)[name][at]), name


def test_another_position_or_seed_draws_anew():
    logits = np.zeros((1, WIDTH), np.float32)
    tokens = {
        (seed, position): int(Buffers(SamplingOptions(1.0, seed=seed)).run(logits, [0], [position]).ids[0])
        for seed in (1, 2, 1 + 2**32)
        for position in range(10)
    }
    by_seed = [[tokens[seed, position] for position in range(10)] for seed in (1, 2, 1 + 2**32)]
    assert len({tuple(row) for row in by_seed}) == 3
    assert min(len(set(row)) for row in by_seed) > 5


def test_a_sampled_row_advances_its_slot_and_nothing_else():
    buffers = Buffers(*[SamplingOptions(temperature=1.0, seed=9)] * SCRATCH)
    constant = [array.copy() for array in (buffers.ints, buffers.floats, buffers.grammar, buffers.counts)]
    logits = random_logits(2, seed=6)
    before = logits.copy()
    out = buffers.run(logits, [2, 0], [11, 4])
    assert buffers.slot_token.tolist() == [out.ids[1], -7, out.ids[0], -7, -7]
    assert buffers.slot_position.tolist() == [5, -8, 12, -8, -8]
    assert np.array_equal(logits, before, equal_nan=True)
    for array, old in zip((buffers.ints, buffers.floats, buffers.grammar, buffers.counts), constant, strict=True):
        assert np.array_equal(array, old, equal_nan=True)


def test_prefill_samples_for_the_slot_and_position_of_the_named_row():
    options, logits = SamplingOptions(temperature=1.0, seed=12), random_logits(1, seed=7)
    prefill, decode = Buffers(options, options), Buffers(options, options)
    ids = prefill.run(logits, [1, 1, 1, SCRATCH], [30, 31, 32, 0], last=[2]).ids
    assert ids.tolist() == decode.run(logits, [1], [32]).ids.tolist()
    assert prefill.slot_position.tolist() == [-8, 33, -8, -8, -8]
    assert prefill.slot_token[1] == ids[0]


def test_scratch_rows_read_nothing_and_yield_zeros():
    """Their slot's flags are all set, its bias count negative, its numbers NaN; see Buffers."""
    buffers = Buffers(SamplingOptions(logprobs=True))
    logits = np.full((3, WIDTH), np.nan, np.float32)
    logits[1] = random_logits(1)
    out = buffers.run(logits, [SCRATCH, 0, SCRATCH], [0, 3, 0])
    for name, value in vars(out).items():
        assert not value[[0, 2]].any(), name
    assert out.ids[1] == logits[1, :VOCAB].argmax()
    assert buffers.slot_token[SCRATCH] == -7
    assert buffers.slot_position[SCRATCH] == -8


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_nonfinite_logit_sets_the_status_and_the_slot_stays(bad, temperature):
    options = SamplingOptions(temperature=temperature, logprobs=True)
    buffers, logits = Buffers(options, options), random_logits(2, seed=8)
    logits[0, 33] = bad
    buffers.grammar[:] = 0  # not asked for: the flag is unset
    out = buffers.run(logits, [0, 1], [6, 6])
    assert out.status.tolist() == [NONFINITE, 0]
    assert (out.ids[0], out.logprobs[0], out.top_ids[0].any(), out.top_logprobs[0].any()) == (0, 0, False, False)
    assert buffers.slot_position.tolist() == [-8, 7, -8, -8, -8]
    assert buffers.slot_token[0] == -7


@pytest.mark.parametrize(
    "options", [SamplingOptions(), SamplingOptions(temperature=1.0, top_k=4), SamplingOptions(0.7)]
)
def test_minus_infinity_forbids_an_id_and_a_row_of_it_is_empty(options):
    logits = np.full((2, WIDTH), -np.inf, np.float32)
    logits[1, 13] = -3e38
    buffers = Buffers(options, options)
    out = buffers.run(logits, [0, 1], [2, 2])
    assert out.status.tolist() == [EMPTY, 0]
    assert out.ids.tolist() == [0, 13]
    assert buffers.slot_position.tolist() == [-8, 3, -8, -8, -8]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_restricts_the_choice_and_an_empty_one_sets_the_status(temperature):
    options = SamplingOptions(temperature=temperature, logprobs=True)
    buffers, logits = Buffers(), random_logits(2, seed=9)
    buffers.seat(0, options, allowed=[31, 32, 49])
    buffers.seat(1, options, allowed=[50, 63])  # padded ids only
    out = buffers.run(logits, [0, 1], [0, 0])
    assert out.ids[0] in (31, 32, 49)
    assert out.status.tolist() == [0, EMPTY]
    assert (out.ids[1], out.logprobs[1], buffers.slot_token[1]) == (0, 0, -7)


def test_bias_and_penalties_change_the_choice_of_their_own_slot_only():
    logits = np.zeros((3, WIDTH), np.float32)
    logits[:, :VOCAB] = np.arange(VOCAB, 0, -1) / 8
    biased, penal = SamplingOptions(logit_bias={40: 50.0, 0: -50.0}), SamplingOptions(frequency_penalty=1.0)
    buffers = Buffers(biased, penal, SamplingOptions())
    buffers.counts[:, 0], buffers.counts[:, 1] = 3, PROMPT_BIT
    assert buffers.run(logits, [0, 1, 2], [0, 0, 0]).ids.tolist() == [40, 1, 0]


def test_logprobs_are_the_raw_log_softmax_and_the_best_are_in_order():
    options = SamplingOptions(
        temperature=0.3, top_k=2, logit_bias={4: 50.0}, frequency_penalty=1.0, seed=5, logprobs=True
    )
    logits = random_logits(1, seed=10)
    logits[0, [45, 8, 30]] = logits[0, :VOCAB].max()
    buffers = Buffers(options)
    buffers.counts[0] = 1
    out = buffers.run(logits, [0], [0])
    assert out.ids[0] == 4
    expected = torch.log_softmax(torch.from_numpy(logits[0, :VOCAB]).double(), 0).numpy()
    best = np.lexsort((np.arange(VOCAB), -expected))[:TOP_LOGPROBS_LIMIT]
    assert out.top_ids[0].tolist() == best.tolist()
    np.testing.assert_allclose(out.top_logprobs[0], expected[best], rtol=1e-6)
    np.testing.assert_allclose(out.logprobs[0], expected[4], rtol=1e-6)


def test_logprobs_not_asked_for_are_zero():
    out = Buffers(SamplingOptions(temperature=1.0)).run(random_logits(1), [0], [0])
    assert not out.logprobs.any()
    assert not out.top_ids.any()
    assert not out.top_logprobs.any()


def test_a_score_beyond_float32_still_yields_a_token():
    logits = np.zeros((1, WIDTH), np.float32)
    logits[0, :VOCAB] = np.linspace(-3e38, 3e38, VOCAB, dtype=np.float32)
    for options in (SamplingOptions(1e-5), SamplingOptions(1e-5, top_p=0.5), SamplingOptions(1e-5, min_p=0.1)):
        out = Buffers(options).run(logits, [0], [0])
        assert out.status[0] == 0
        assert logits[0, out.ids[0]] > 0


def test_the_same_tokens_are_drawn_on_every_host():
    """Pinned: a released seed must keep its tokens. The logits are quotients of small integers, exact in float32."""
    logits = np.zeros((8, WIDTH), np.float32)
    logits[:] = (np.arange(WIDTH) * 7919 % 1009) / np.float32(256)
    pinned = [
        (SamplingOptions(1.0, seed=1), [15, 47, 2, 7, 27, 20, 40, 34]),
        (SamplingOptions(1.0, top_p=0.7, seed=2**64 - 1), [34, 20, 27, 40, 20, 14, 1, 15]),
        (SamplingOptions(1.7, top_k=20, min_p=0.05, seed=1), [15, 47, 2, 7, 27, 20, 40, 2]),
    ]
    for options, tokens in pinned:
        assert Buffers(options).run(logits, [0] * 8, range(8)).ids.tolist() == tokens
