"""The `sample` instruction on whole buffers: what it writes, what it leaves alone, and rows that get no token."""

import numpy as np
import pytest
import torch

from qpack_runtime.sampling_options import SamplingOptions
from qpack_schemas.sampling import EMPTY, FLOATS, INTS, NONFINITE, PROMPT_BIT, TOP_LOGPROBS_LIMIT
from sampler_buffers import SCRATCH, VOCAB, WIDTH, SamplerBuffers, random_logits


def test_greedy_takes_the_largest_and_of_equals_the_lowest_id():
    logits = random_logits(2, seed=4)
    logits[0, [41, 3, 49]] = 9.0
    logits[1, :VOCAB] = -0.0
    logits[1, 20] = 0.0
    greedy = SamplingOptions(temperature=9.9e-6, top_k=7, top_p=0.5, min_p=0.1, seed=1)
    assert SamplerBuffers(greedy, greedy).run(logits, [0, 1], [0, 0]).ids.tolist() == [3, 0]


def test_a_sampled_row_advances_its_slot_and_nothing_else():
    buffers = SamplerBuffers(*[SamplingOptions(temperature=1.0, seed=9)] * SCRATCH)
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
    prefill, decode = SamplerBuffers(options, options), SamplerBuffers(options, options)
    ids = prefill.run(logits, [1, 1, 1, SCRATCH], [30, 31, 32, 0], last=[2]).ids
    assert ids.tolist() == decode.run(logits, [1], [32]).ids.tolist()
    assert prefill.slot_position.tolist() == [-8, 33, -8, -8, -8]
    assert prefill.slot_token[1] == ids[0]


def test_scratch_rows_read_nothing_and_yield_zeros():
    """Their slot's flags are all set, its bias count negative, its numbers NaN; see SamplerBuffers."""
    buffers = SamplerBuffers(SamplingOptions(logprobs=True))
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
    buffers, logits = SamplerBuffers(options, options), random_logits(2, seed=8)
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
    buffers = SamplerBuffers(options, options)
    out = buffers.run(logits, [0, 1], [2, 2])
    assert out.status.tolist() == [EMPTY, 0]
    assert out.ids.tolist() == [0, 13]
    assert buffers.slot_position.tolist() == [-8, 3, -8, -8, -8]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_restricts_the_choice_and_an_empty_one_sets_the_status(temperature):
    options = SamplingOptions(temperature=temperature, logprobs=True)
    buffers, logits = SamplerBuffers(), random_logits(2, seed=9)
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
    buffers = SamplerBuffers(biased, penal, SamplingOptions())
    buffers.counts[:, 0], buffers.counts[:, 1] = 3, PROMPT_BIT
    assert buffers.run(logits, [0, 1, 2], [0, 0, 0]).ids.tolist() == [40, 1, 0]


def test_what_a_request_does_not_ask_for_is_not_read():
    buffers, logits = SamplerBuffers(SamplingOptions(temperature=1.0, seed=8)), random_logits(1, seed=11)
    expected = buffers.run(logits, [0], [0]).ids
    for name in ("top_k", "top_p24", "bias_count"):
        buffers.ints[0, INTS.index(name)] = 1
    for name in ("ln_min_p", "repetition", "inverse_repetition", "presence", "frequency"):
        buffers.floats[0, FLOATS.index(name)] = np.nan
    buffers.bias_ids[0], buffers.bias_values[0] = expected, np.nan
    buffers.counts[0], buffers.grammar[0] = 5, 0
    assert buffers.run(logits, [0], [0]).ids == expected


def test_logprobs_are_the_raw_log_softmax_and_the_best_are_in_order():
    options = SamplingOptions(
        temperature=0.3, top_k=2, logit_bias={4: 50.0}, frequency_penalty=1.0, seed=5, logprobs=True
    )
    logits = random_logits(1, seed=10)
    logits[0, [45, 8, 30]] = logits[0, :VOCAB].max()
    buffers = SamplerBuffers(options)
    buffers.counts[0] = 1
    out = buffers.run(logits, [0], [0])
    assert out.ids[0] == 4
    expected = torch.log_softmax(torch.from_numpy(logits[0, :VOCAB]).double(), 0).numpy()
    best = np.lexsort((np.arange(VOCAB), -expected))[:TOP_LOGPROBS_LIMIT]
    assert out.top_ids[0].tolist() == best.tolist()
    np.testing.assert_allclose(out.top_logprobs[0], expected[best], rtol=1e-6)
    np.testing.assert_allclose(out.logprobs[0], expected[4], rtol=1e-6)


def test_logprobs_not_asked_for_are_zero():
    out = SamplerBuffers(SamplingOptions(temperature=1.0)).run(random_logits(1), [0], [0])
    assert not out.logprobs.any()
    assert not out.top_ids.any()
    assert not out.top_logprobs.any()


def test_a_score_beyond_float32_still_yields_a_token():
    logits = np.zeros((1, WIDTH), np.float32)
    logits[0, :VOCAB] = np.linspace(-3e38, 3e38, VOCAB, dtype=np.float32)
    for options in (SamplingOptions(1e-5), SamplingOptions(1e-5, top_p=0.5), SamplingOptions(1e-5, min_p=0.1)):
        out = SamplerBuffers(options).run(logits, [0], [0])
        assert out.status[0] == 0
        assert logits[0, out.ids[0]] > 0
