"""How the tokens of `sample` are distributed, and that its draws depend on seed, position and logits alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpack_runtime.sampling_options import SamplingOptions
from sampler_buffers import SCRATCH, VOCAB, WIDTH, SamplerBuffers, random_logits

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


def draws(options, logits, count=4000):
    """How often each id was chosen at positions 0..count - 1."""
    out = SamplerBuffers(options).run(np.repeat(logits, count, axis=0), [0] * count, range(count))
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
    rng, counts, buffers = np.random.default_rng(0), np.zeros(VOCAB, int), SamplerBuffers()
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
    out = SamplerBuffers(options).run(logits, [0], [position])
    assert out.status[0] == 0
    assert out.ids[0] < VOCAB
    assert out.top_ids.max() < VOCAB


@given(st.lists(ANYTHING, min_size=3, max_size=3), st.permutations(range(SCRATCH)), st.permutations(range(3)))
def test_a_row_gets_the_same_whatever_its_slot_its_row_and_its_neighbours(seats, slots, order):
    logits, positions = random_logits(3, seed=5), np.array([0, 17, 900])
    buffers = SamplerBuffers()
    for options, slot in zip(seats, slots, strict=False):
        buffers.seat(slot, options)
    slots, order = np.array(slots[:3]), np.array(order)
    together = buffers.run(logits[order], slots[order], positions[order])
    for row, options in enumerate(seats):
        alone = SamplerBuffers(options).run(logits[row : row + 1], [0], positions[row : row + 1])
        at = int(np.flatnonzero(order == row)[0])
        for name, value in vars(alone).items():
            assert np.array_equal(value[0], vars(together)[name][at]), name


def test_another_position_or_seed_draws_anew():
    logits = np.zeros((1, WIDTH), np.float32)
    tokens = {
        (seed, position): int(SamplerBuffers(SamplingOptions(1.0, seed=seed)).run(logits, [0], [position]).ids[0])
        for seed in (1, 2, 1 + 2**32)
        for position in range(10)
    }
    by_seed = [[tokens[seed, position] for position in range(10)] for seed in (1, 2, 1 + 2**32)]
    assert len({tuple(row) for row in by_seed}) == 3
    assert min(len(set(row)) for row in by_seed) > 5


def test_a_filter_that_removes_nothing_changes_no_token():
    """At 2^24 float32 rounds the noise to whole numbers, so scores tie; the tie goes to the lowest id either way."""
    logits = np.full((300, WIDTH), -np.inf, np.float32)
    logits[:, 40], logits[:, 7], logits[:, 21] = 2**24, 2**24 - 1, 2**24 - 2
    plain, filtered = SamplingOptions(1.0, seed=4), SamplingOptions(1.0, top_k=3, seed=4)
    ids = SamplerBuffers(plain).run(logits, [0] * 300, range(300)).ids
    assert set(ids.tolist()) == {7, 21, 40}
    assert np.array_equal(SamplerBuffers(filtered).run(logits, [0] * 300, range(300)).ids, ids)


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
        assert SamplerBuffers(options).run(logits, [0] * 8, range(8)).ids.tolist() == tokens
