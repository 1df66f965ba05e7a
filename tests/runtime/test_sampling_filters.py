"""What the filters keep, and in which order, against transformers' logits processors (run in float64)."""

import numpy as np
import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from qpack_runtime.reference.sampling import exponential, keep, mass, read_parameters, scores, total_mass
from qpack_runtime.sampling_options import SamplingOptions, write_options
from qpack_schemas.sampling import BIAS_LIMIT, CHUNK_IDS, GRAMMAR, PROMPT_BIT


def scored(z, options, *, counts=None, allowed=None):
    """(parameters, allowed ids, their scores) of one row of logits; `allowed` bool [V] is the grammar."""
    vocab = z.size
    ints, floats = np.zeros((1, 6), np.int32), np.zeros((1, 6), np.float32)
    bias_ids, bias_values = np.zeros((1, BIAS_LIMIT), np.int32), np.zeros((1, BIAS_LIMIT), np.float32)
    write_options(options, 0, ints, floats, bias_ids, bias_values, vocab=vocab)
    words = np.zeros(-(-vocab // 32), np.int32)
    if allowed is not None:
        ints[0, 0] |= GRAMMAR
        words = np.packbits(np.resize(allowed, 32 * words.size), bitorder="little").view(np.int32)
    counts = np.zeros(vocab, np.int16) if counts is None else counts
    p = read_parameters(ints[0], floats[0])
    return p, *scores(z, p, bias_ids[0], bias_values[0], words, counts)


def kept_in_order(z, options, **row):
    p, ids, y = scored(z, options, **row)
    return ids[keep(ids, y, p, -(-z.size // CHUNK_IDS))]


def processed(z, processors, seen=()):
    """transformers' scores, float64 [V]; -inf is removed."""
    result = torch.from_numpy(z.astype(np.float64))[None]
    for processor in processors:
        result = processor(torch.tensor([list(seen)], dtype=torch.long), result)
    return result[0].numpy()


def random_case(rng, vocab):
    """A row of logits, options, the prompt's ids, and transformers' processors in the same order."""
    z = (rng.standard_normal(vocab) * rng.uniform(0.5, 4)).astype(np.float32)
    options = SamplingOptions(
        temperature=float(rng.uniform(0.3, 2)),
        top_k=int(rng.choice([0, 0, 1, 5, 20, 100, 256])),
        top_p=float(rng.choice([1.0, 0.99, 0.9, 0.5, 0.1])),
        min_p=float(rng.choice([0.0, 0.01, 0.2])),
        repetition_penalty=float(rng.choice([1.0, 1.3, 0.8])),
    )
    processors = [
        RepetitionPenaltyLogitsProcessor(options.repetition_penalty),
        TemperatureLogitsWarper(options.temperature),
    ]
    processors += [TopKLogitsWarper(options.top_k)] if options.top_k else []
    processors += [TopPLogitsWarper(options.top_p)] if options.top_p < 1 else []
    processors += [MinPLogitsWarper(options.min_p)] if options.min_p else []
    return z, options, rng.integers(0, vocab, 30), processors


@pytest.mark.parametrize(("vocab", "cases"), [(500, 400), (20_000, 40)])  # one chunk; five chunks
def test_filters_keep_what_transformers_keeps_in_the_order_of_its_scores(vocab, cases):
    rng = np.random.default_rng(0)
    for _ in range(cases):
        z, options, seen, processors = random_case(rng, vocab)
        counts = np.zeros(vocab, np.int16)
        counts[seen] = PROMPT_BIT
        expected = processed(z, processors, seen)
        kept = kept_in_order(z, options, counts=counts)
        order = np.argsort(-expected, kind="stable")[: np.isfinite(expected).sum()]
        assert np.array_equal(np.sort(kept), np.sort(order)), options
        assert np.all(np.diff(expected[kept]) <= 1e-6 * np.abs(expected[kept[1:]])), options  # float32 may tie two


def test_temperature_divides_as_in_transformers():
    z = np.random.default_rng(1).standard_normal(300).astype(np.float32)
    for temperature in (1e-5, 0.3, 1.0, 7.0):
        _, _, y = scored(z, SamplingOptions(temperature=temperature))
        np.testing.assert_allclose(y, processed(z, [TemperatureLogitsWarper(temperature)]), rtol=3e-7)


def test_logit_bias_is_added_as_in_transformers():
    z = np.random.default_rng(2).standard_normal(300).astype(np.float32)
    bias = {0: 5.5, 17: -100.0, 299: 0.25}
    _, _, y = scored(z, SamplingOptions(temperature=1.0, logit_bias=bias))
    expected = processed(z, [SequenceBiasLogitsProcessor([[[token], value] for token, value in bias.items()])], [1])
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_a_grammar_forbids_as_transformers_suppresses():
    rng = np.random.default_rng(3)
    z, allowed = rng.standard_normal(320).astype(np.float32), rng.random(320) < 0.3
    _, ids, y = scored(z, SamplingOptions(temperature=1.0), allowed=allowed)
    expected = processed(z, [SuppressTokensLogitsProcessor(np.flatnonzero(~allowed).tolist(), device="cpu")])
    assert np.array_equal(ids, np.flatnonzero(np.isfinite(expected)))
    assert np.array_equal(y, expected[ids])


def test_penalties_count_the_output_but_only_repetition_sees_the_prompt():
    """mu - c * frequency - (c > 0) * presence as in OpenAI's API reference; repetition as in CTRL, arXiv 1909.05858."""
    counts = np.array([0, PROMPT_BIT, 1, 3, PROMPT_BIT + 2, 32767, PROMPT_BIT], np.int16)
    z = np.array([2, 2, 2, 2, 2, 2, -2], np.float32)
    options = SamplingOptions(temperature=1.0, repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    _, _, y = scored(z, options, counts=counts)
    assert y.tolist() == [2, 1, 1 - 0.25 - 0.5, 1 - 0.75 - 0.5, 1 - 0.5 - 0.5, 1 - 32767 / 4 - 0.5, -4]


@pytest.mark.parametrize("k", [1, 3, 100, 256])
def test_top_k_keeps_exactly_k_and_of_equals_the_lowest_ids(k):
    z = np.zeros(1000, np.float32)
    z[::2] = -0.0  # equal to 0.0
    z[[999, 500]] = 1
    assert kept_in_order(z, SamplingOptions(temperature=1.0, top_k=k)).tolist() == [500, 999, *range(k - 2)][:k]


@pytest.mark.parametrize(("top_p", "kept"), [(0.5, 4), (0.5001, 5), (1e-9, 1), (0.99, 8)])
def test_top_p_keeps_a_token_iff_the_mass_before_it_is_below_p(top_p, kept):
    z = np.zeros(8, np.float32)
    assert kept_in_order(z, SamplingOptions(temperature=1.0, top_p=top_p)).tolist() == list(range(kept))


def test_min_p_keeps_all_that_equal_the_threshold():
    z = np.zeros(40, np.float32)
    z[[30, 4]] = 3
    assert kept_in_order(z, SamplingOptions(temperature=1.0, min_p=1.0)).tolist() == [4, 30]


def test_top_p_looks_at_the_mass_that_top_k_left():
    z = np.zeros(100, np.float32)
    assert kept_in_order(z, SamplingOptions(temperature=1.0, top_k=10, top_p=0.5)).tolist() == list(range(5))


def test_masses_are_those_of_the_exponential():
    y = np.random.default_rng(4).uniform(-80, 80, 100_000).astype(np.float32)
    mantissa, exponent = exponential(y)
    assert mantissa.min() >= 2**29
    assert mantissa.max() <= 2**30
    expected = y.astype(np.float64)
    error = np.log(mantissa.astype(np.float64)) + (exponent - 29) * np.log(2) - expected
    assert (np.abs(error) <= 1e-7 * (2 + np.abs(expected))).all()


def test_the_mass_of_a_vocabulary_does_not_overflow_and_hardly_depends_on_its_chunks():
    y = np.random.default_rng(5).standard_normal(248_320).astype(np.float32)
    y[:200_000] = 30
    ids = np.arange(y.size)
    mantissa, exponent = exponential(y)
    one = int(mass(mantissa, exponent, exponent.max()).astype(object).sum())  # Python integers: no overflow
    assert one - y.size < total_mass(ids, mantissa, exponent, 1) <= one
    assert abs(total_mass(ids, mantissa, exponent, 61) - one) <= y.size


def test_small_masses_of_a_chunk_are_added_before_they_are_cut():
    """Lines of 32 ids go to the chunks in turn. Each mass is 0.7 of a unit, nothing by itself; 32 of them make 22."""
    y = np.full(33, -37.5 * np.log(2), np.float32)
    y[0] = 0
    assert total_mass(np.array([0, *range(32, 64)]), *exponential(y), 2) == 2**37 + 22
    assert total_mass(np.array([0, *range(64, 96)]), *exponential(y), 2) == 2**37


@pytest.mark.parametrize("top_k", [0, 256])  # 256 is more than there are, so both cut the mass of all
def test_top_p_of_a_whole_vocabulary_cuts_the_total_of_its_chunks(top_k):
    """The second of two halves stays at p = 0.5 because the small masses, 22 units together, count in the total."""
    z = np.full(34, -37.5 * np.log(2), np.float32)
    z[[32, 33]] = 0
    p, ids, y = scored(z, SamplingOptions(temperature=1.0, top_k=top_k, top_p=0.5))
    assert ids[keep(ids, y, p, 2)].tolist() == [32, 33]
