"""`sample` on every code path against the reference: ids, status, advance and likeliest ids are equal to the bit,
log-probabilities within 1e-5."""

import re
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instruction import kernels, run_cpu
from qpack_runtime.cpu.native import LIBRARY
from qpack_runtime.reference import philox, sampling
from qpack_runtime.reference.sampling import sample
from qpack_runtime.sampling_options import SamplingOptions, write_options
from qpack_schemas import sampling as schema
from qpack_schemas.sampling import (
    BIAS,
    BIAS_LIMIT,
    EMPTY,
    FLOATS,
    GRAMMAR,
    INTS,
    NONFINITE,
    TOP_LOGPROBS_LIMIT,
)
from sampler_requests import COUNTS, KINDS, LARGEST, logits_of, random_logits, requests_of

PATHS = kernels().paths
SLOTS = 9  # the last is scratch
SCRATCH = SLOTS - 1
# One chunk of masses and one block of ids; two chunks and three blocks.
SMALL, LARGE = (500, 512), (4990, 5024)
QWEN = (151_669, 151_936)
OUTPUTS = ("ids", "status", "logprobs", "top_ids", "top_logprobs", "slot_token", "slot_position")


class Sampler:
    """The buffers of `sample`, garbage where nobody has written. `counts` stays 0 without `rng`."""

    def __init__(self, size, *requests, rng=None):
        self.vocab, self.width = size
        self.ints = np.full((SLOTS, 6), -1, np.int32)
        self.floats = np.full((SLOTS, 6), np.nan, np.float32)
        self.bias_ids = np.full((SLOTS, BIAS_LIMIT), 2**31 - 1, np.int32)
        self.bias_values = np.full((SLOTS, BIAS_LIMIT), np.nan, np.float32)
        self.grammar = np.full((SLOTS, self.width // 32), 0x5A5A5A5A, np.int32)
        self.counts = np.zeros((SLOTS, self.width), np.int16)
        if rng is not None:
            self.counts[:] = rng.choice(COUNTS, self.counts.shape)
        for slot, options in enumerate(requests):
            self.seat(slot, options)

    def seat(self, slot, options, allowed=None):
        write_options(options, slot, self.ints, self.floats, self.bias_ids, self.bias_values, vocab=self.vocab)
        if allowed is not None:
            self.ints[slot, INTS.index("flags")] |= GRAMMAR
            self.grammar[slot] = np.packbits(allowed, bitorder="little").view(np.int32)

    def operands(self, logits, slots, positions, last=None):
        rows = len(logits)
        given = {"last": np.array(last, np.int32)} if last is not None else {}
        return {
            "logits": logits,
            "slots": np.array(slots, np.int32),
            "positions": np.array(positions, np.int32),
            **given,
            **{name: vars(self)[name] for name in ("ints", "floats", "bias_ids", "bias_values", "grammar", "counts")},
            "slot_token": np.full(SLOTS, -7, np.int32),
            "slot_position": np.full(SLOTS, -8, np.int32),
            "ids": np.full(rows, -1, np.int32),
            "status": np.full(rows, -1, np.int32),
            "logprobs": np.full(rows, np.nan, np.float32),
            "top_ids": np.full((rows, TOP_LOGPROBS_LIMIT), -1, np.int32),
            "top_logprobs": np.full((rows, TOP_LOGPROBS_LIMIT), np.nan, np.float32),
        }

    def run(self, *rows, path, threads=2, active=None, last=None):
        """What the kernels write, for rows (logits, slots, positions). Whatever they only read stays as it was."""
        operands = self.operands(*rows, last=last)
        before = {name: array.copy() for name, array in operands.items() if name not in OUTPUTS}
        run_cpu(
            "sample", operands, {"vocab": self.vocab}, path=path, threads=threads, active=active, scratch_slot=SCRATCH
        )
        for name, array in before.items():
            assert array.tobytes() == operands[name].tobytes(), name
        return SimpleNamespace(**{name: operands[name] for name in OUTPUTS})

    def check(self, *rows, path, threads=2, last=None):
        """Runs, compares with the reference, and returns what the kernels wrote."""
        expected = self.operands(*rows, last=last)
        sample(**expected, vocab=self.vocab)
        actual = self.run(*rows, path=path, threads=threads, last=last)
        for name in OUTPUTS:
            rtol, atol = (1e-6, 1e-5) if "logprobs" in name else (0, 0)
            np.testing.assert_allclose(getattr(actual, name), expected[name], rtol=rtol, atol=atol, err_msg=name)
        return actual


SIZES = [(1, 32), (32, 32), (33, 64), SMALL, (2048, 2048), (2049, 2080), (4096, 4128), LARGE]


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=150)
@given(st.data())
def test_any_request_gets_the_token_of_the_reference(path, data):
    size = data.draw(st.sampled_from(SIZES))
    request = data.draw(requests_of(size[0]))
    kind, restricted = data.draw(st.sampled_from(KINDS)), data.draw(st.sampled_from([False, False, True]))
    position, threads = data.draw(st.integers(0, 2**31 - 2)), data.draw(st.integers(1, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    sampler = Sampler(size, request, rng=rng)
    if restricted:
        sampler.seat(0, request, allowed=rng.random(size[1]) < 0.3)
    sampler.check(logits_of(kind, size, rng), [0], [position], path=path, threads=threads)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("scale", [0.3, 1, 4])
def test_every_combination_of_filters_gets_the_token_of_the_reference(path, scale):
    rng = np.random.default_rng(1)
    filters = list(product([0, 1, 40, 256], [1.0, 0.9, 0.4], [0.0, 0.05]))
    for start in range(0, len(filters), SCRATCH):
        rows = filters[start : start + SCRATCH]
        sampler = Sampler(LARGE, *[SamplingOptions(1.2, k, p, m, seed=k + 1) for k, p, m in rows])
        sampler.check(random_logits(len(rows), LARGE, rng, scale), range(len(rows)), [5] * len(rows), path=path)


@pytest.mark.parametrize("path", PATHS)
def test_rows_as_wide_as_qwen_get_the_token_of_the_reference(path):
    rng = np.random.default_rng(2)
    requests = [
        SamplingOptions(logprobs=True),
        SamplingOptions(1.0, seed=3, logprobs=True),
        SamplingOptions(0.8, top_k=20, top_p=0.95, seed=4),
        SamplingOptions(1.0, top_p=0.9, seed=5),
        SamplingOptions(0.6, min_p=0.02, repetition_penalty=1.1, seed=6),
        SamplingOptions(1.0, frequency_penalty=0.3, logit_bias={151_668: 9.0, 32: 5.0, 4096: -1.0}, logprobs=True),
        SamplingOptions(2.0, top_k=256, top_p=0.99, presence_penalty=1.0, seed=7),
        SamplingOptions(9.0, top_p=0.9999999, seed=8),
    ]
    sampler = Sampler(QWEN, *requests, rng=rng)
    sampler.check(random_logits(8, QWEN, rng), range(8), range(8), path=path)
    sampler.seat(3, requests[3], allowed=np.arange(QWEN[1]) >= 140_000)
    sampler.check(random_logits(2, QWEN, rng, 4.0), [3, 6], [2**31 - 2, 0], path=path)


@pytest.mark.parametrize("path", PATHS)
def test_greedy_takes_the_lowest_id_of_equals_across_blocks(path):
    logits = random_logits(3, LARGE, np.random.default_rng(3))
    logits[0, [4200, 2040, 2064]] = 50
    logits[1, [4989, 4976]] = 50
    logits[2, : LARGE[0]] = -0.0
    logits[2, 3777] = 0.0
    sampler = Sampler(LARGE, *[SamplingOptions(logprobs=True)] * 3)
    out = sampler.check(logits, [0, 1, 2], [0, 0, 0], path=path)
    assert out.ids.tolist() == [2040, 4976, 0]
    assert out.top_ids[2].tolist() == list(range(TOP_LOGPROBS_LIMIT))


@pytest.mark.parametrize("path", PATHS)
def test_equal_scores_are_drawn_from_and_cut_at_the_lowest_ids(path):
    """Rows of few values: every cut lies within hundreds of equals."""
    rng = np.random.default_rng(4)
    cuts: tuple[dict[str, Any], ...] = (
        {"top_k": 7},
        {"top_k": 256, "top_p": 0.8},
        {"top_p": 0.37},
        {"top_p": 0.9},
        {"min_p": 0.5},
        {"min_p": 1.0},
        {"min_p": 1.0, "top_k": 7},
        {"min_p": 1.0, "top_p": 0.4},
    )
    sampler = Sampler(LARGE, *[SamplingOptions(1.0, seed=seed, **cut) for seed, cut in enumerate(cuts)])
    for values in ([2.0], [0.0, -0.0], [0.0, -0.5, 3.0], [-900.0, -900.5]):
        logits = random_logits(len(cuts), LARGE, rng)
        logits[:, : LARGE[0]] = rng.choice(np.array(values, np.float32), LARGE[0])
        for position in range(4):
            sampler.check(logits, range(len(cuts)), [position] * len(cuts), path=path)


@pytest.mark.parametrize("path", PATHS)
def test_small_masses_of_a_chunk_are_added_before_they_are_cut(path):
    """Lines of 32 ids go to the two chunks in turn. Two halves are at the top, in chunk 0. Each mass of another line is
    0.7 of a unit: 22 units in all if the line is of chunk 1, nothing if it is of chunk 0. With them p = 0.5 keeps the
    second half, too; but not if top-k leaves exactly as many ids as there are."""
    for line, weight, top_k, kept in (
        (1, 37.5, 0, 2),
        (2, 37.5, 0, 1),
        (1, 37.5, 256, 2),
        (1, 37.5, 34, 1),
        (2, 70, 0, 1),
    ):
        z = np.full((1, LARGE[1]), -np.inf, np.float32)
        z[0, 32 * line : 32 * line + 32] = -weight * np.log(2)
        z[0, [130, 150]] = 0
        sampler = Sampler(LARGE, SamplingOptions(1.0, top_p=0.5, top_k=top_k, seed=1))
        ids = {int(sampler.check(z, [0], [position], path=path).ids[0]) for position in range(9)}
        assert ids == {130, 150} if kept == 2 else ids == {130}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("top_k", "offset"), [(0, 0), (0, -80.3), (0, 80.3), (200, 0), (30, 0), (30, -80.3)])
def test_top_p_cuts_where_the_exact_masses_do(path, top_k, offset):
    """A p that keeps an id and one 2^-23 below that does not, at a position whose noise chooses that id if it may."""
    rng = np.random.default_rng(6)
    z = np.full(LARGE[1], -np.inf, np.float32)
    ids = np.sort(rng.permutation(LARGE[0])[:40])
    z[ids] = (rng.normal(0, 0.8, 40) + offset).astype(np.float32)
    order = ids[np.argsort(-z[ids], kind="stable")][: top_k or None]
    mantissa, exponent = sampling.exponential(z[order])
    shares = sampling.mass(mantissa, exponent, exponent[0])
    whole = int(shares.sum()) if top_k == 30 else sampling.total_mass(order, mantissa, exponent, 2)
    before = np.cumsum(shares) - shares
    sampler = Sampler(LARGE, *[SamplingOptions(1.0, top_p=0.5, top_k=top_k, seed=9)] * 2)
    for place in range(3, 30, 3):
        least = int(before[place]) * schema.TOP_P_ONE // whole + 1  # in units of 2^-24
        sampler.ints[:2, INTS.index("top_p24")] = [least - 1, least + 1]
        first = order[: place + 1]
        position = next(p for p in range(9999) if np.argmax(z[first] + philox.gumbel(first, p, (9, 0))) == place)
        out = sampler.check(np.stack([z, z]), [0, 1], [position] * 2, path=path)
        assert out.ids[0] != order[place]
        assert out.ids[1] == order[place] or out.ids[1] not in first


@pytest.mark.parametrize("path", PATHS)
def test_ids_that_are_biased_repeatedly_add_up_in_their_order(path):
    values = np.array([1e9, -1e9, 9.0, 0.01, 0.005] * 100, np.float32)  # 9 in this order for id 7, 0 in the other
    targets = np.array([7, 7, 7, 40, 499] * 100, np.int32)
    sampler = Sampler(SMALL, SamplingOptions(), SamplingOptions(1.0, seed=1))
    for slot in (0, 1):
        sampler.ints[slot, INTS.index("flags")] |= BIAS
        sampler.ints[slot, INTS.index("bias_count")] = values.size
        sampler.bias_ids[slot, : values.size], sampler.bias_values[slot, : values.size] = targets, values
    logits = random_logits(2, SMALL, np.random.default_rng(7))
    assert sampler.check(logits, [0, 1], [0, 0], path=path).ids[0] == 7
    sampler.ints[:2, INTS.index("bias_count")] = [4, 1]
    sampler.check(logits, [0, 1], [0, 0], path=path)


@pytest.mark.parametrize("path", PATHS)
def test_as_many_biased_ids_as_there_may_be(path):
    rng = np.random.default_rng(8)
    ids, values = rng.permutation(LARGE[0])[:BIAS_LIMIT], rng.normal(0, 9, BIAS_LIMIT)
    bias = dict(zip(ids.tolist(), values.tolist(), strict=True))
    sampler = Sampler(LARGE, SamplingOptions(1.0, logit_bias=bias, top_p=0.9))
    sampler.check(random_logits(1, LARGE, rng), [0], [3], path=path)


@pytest.mark.parametrize("path", PATHS)
def test_rows_without_a_token_say_why_and_do_not_advance(path):
    rng = np.random.default_rng(9)
    sampler = Sampler(SMALL, *[SamplingOptions(1.0, top_p=0.9, logprobs=True)] * 6)
    sampler.seat(4, SamplingOptions(logprobs=True), allowed=np.arange(512) >= 500)  # padded ids only
    sampler.seat(5, SamplingOptions(1.0, logprobs=True), allowed=np.zeros(512, bool))
    logits = random_logits(6, SMALL, rng)
    logits[0, 499], logits[1, 0] = np.nan, np.inf
    logits[2, :500] = -np.inf
    logits[5, 7] = np.nan  # broken and forbidden: broken
    out = sampler.check(logits, range(6), [4] * 6, path=path)
    assert out.status.tolist() == [NONFINITE, NONFINITE, EMPTY, 0, EMPTY, NONFINITE]


@pytest.mark.parametrize("path", PATHS)
def test_scores_that_leave_float32_keep_their_meaning(path):
    """A score that only 1/T drives to -inf stays allowed, infinite scores tie, and inf - inf keeps the first alone."""
    requests = [
        SamplingOptions(1e-5, seed=1, logit_bias={3: 9.0}),
        SamplingOptions(1e-5, seed=2, top_p=0.5),
        SamplingOptions(1e-5, seed=3, min_p=0.1),
        SamplingOptions(1e-5, seed=4, min_p=0.1, top_p=0.5),
        SamplingOptions(1e-5, seed=5, top_k=3, top_p=0.999),
        SamplingOptions(1e-5, seed=6, top_k=40),
        SamplingOptions(1e-5, seed=7, top_k=256, top_p=0.7),
    ]
    sampler, (vocab, _) = Sampler(LARGE, *requests), LARGE
    low, high, spread = np.full(vocab, -3e38), np.full(vocab, 3e38), np.linspace(-3e38, 3e38, vocab)
    high[::3] = 1e38
    holes = np.where(np.arange(vocab) % 7, -np.inf, -3e38)
    for real in (low, high, spread, spread * 1e-25, spread * 1e-29, holes):
        logits = random_logits(7, LARGE, np.random.default_rng(10))
        logits[:, :vocab] = real
        sampler.check(logits, range(7), [11] * 7, path=path)


@pytest.mark.parametrize("path", PATHS)
def test_the_threshold_of_min_p_may_be_minus_infinity_or_nan(path):
    cuts: tuple[dict[str, Any], ...] = ({"top_k": 10}, {"top_p": 0.9}, {"min_p": 0.5})
    for options in cuts:
        sampler = Sampler(SMALL, *[SamplingOptions(1.0, seed=seed, **options) for seed in range(4)])
        sampler.floats[:4, FLOATS.index("ln_min_p")] = [-np.inf, np.nan, -LARGEST, 0]
        sampler.check(random_logits(4, SMALL, np.random.default_rng(11)), range(4), [0] * 4, path=path)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("position", "token", "word"), [(11579, 624, 12), (7070, 1134, 2**32 - 4)])
def test_noise_from_the_ends_of_its_range_decides_to_the_bit(path, position, token, word):
    """Two tokens that are equal with their noise, and up to four steps of float32 apart."""
    key = (7, 0)
    assert philox.philox4x32((token // 4, position, 0, 0), key)[token % 4] == word
    noise = philox.gumbel(np.arange(LARGE[0]), position, key)
    rival = int(noise.argsort()[1])  # the token may have the least
    logits = np.full((SCRATCH, LARGE[1]), -np.inf, np.float32)
    logits[:, rival] = 1
    logits[:, token] = np.float32(1) + noise[rival] - noise[token]
    logits[:, token] += np.spacing(logits[:, token]) * np.arange(-4, SCRATCH - 4)
    out = Sampler(LARGE, *[SamplingOptions(1.0, seed=7)] * SCRATCH).check(
        logits, range(SCRATCH), [position] * SCRATCH, path=path
    )
    assert {*out.ids.tolist()} == {token, rival}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 50, 1e4, 1e9, 1e37])
def test_log_probabilities_are_those_of_the_raw_logits_at_any_scale(path, scale):
    requests = [SamplingOptions(temperature, logprobs=True, logit_bias={5: LARGEST}) for temperature in (0.0, 1.0, 9.0)]
    logits = random_logits(3, LARGE, np.random.default_rng(12), scale)
    logits[2, 30 : LARGE[0]] = -np.inf
    Sampler(LARGE, *requests).check(logits, range(3), [0] * 3, path=path)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("vocab", [1, 7, 20, 33])
def test_a_vocabulary_smaller_than_the_log_probabilities_leaves_zeros(path, vocab):
    requests = [SamplingOptions(logprobs=True), SamplingOptions(1.0, top_k=256, top_p=0.9, logprobs=True)]
    logits = random_logits(2, (vocab, 64), np.random.default_rng(13))
    out = Sampler((vocab, 64), *requests).check(logits, [0, 1], [0, 0], path=path)
    assert not out.top_logprobs[:, vocab:].any()


@pytest.mark.parametrize("path", PATHS)
def test_prefill_takes_slot_and_position_of_the_last_row(path):
    sampler = Sampler(SMALL, SamplingOptions(1.0, seed=12), SamplingOptions(1.0, seed=13, top_p=0.9))
    logits = random_logits(1, SMALL, np.random.default_rng(14))
    out = sampler.check(logits, [1, 1, 1, SCRATCH], [30, 31, 32, 0], last=[2], path=path)
    assert out.slot_position.tolist() == [-8, 33, *[-8] * (SLOTS - 2)]
    nobody = sampler.check(logits, [SCRATCH] * 3, [0] * 3, last=[2], path=path)
    assert (nobody.ids[0], nobody.slot_position.max()) == (0, -8)


MANY = [
    SamplingOptions(1.0, top_p=0.9, seed=1, logprobs=True),
    SamplingOptions(0.9, top_k=40, seed=2, frequency_penalty=0.1),
    SamplingOptions(logprobs=True),
    SamplingOptions(1.0, seed=3, logprobs=True),
    SamplingOptions(1.0, min_p=0.01, seed=4, repetition_penalty=1.2),
]


@pytest.mark.parametrize("path", PATHS)
def test_padding_yields_zeros_and_reads_nothing(path):
    logits = random_logits(4, LARGE, np.random.default_rng(15))
    logits[[0, 2]] = np.nan
    out = Sampler(LARGE, *MANY).check(logits, [SCRATCH, 2, SCRATCH, 0], [0, 3, 0, 8], path=path)
    for name in OUTPUTS[:5]:
        assert not getattr(out, name)[[0, 2]].any(), name
    assert out.slot_position.tolist() == [9, -8, 4, *[-8] * 6]


@pytest.mark.parametrize("path", PATHS)
def test_rows_see_neither_each_other_nor_the_number_of_threads(path):
    rng = np.random.default_rng(16)
    sampler = Sampler(LARGE, *MANY, rng=rng)
    logits, slots = random_logits(len(MANY), LARGE, rng, 3.0), np.array([3, 1, 4, 0, 2])
    positions = np.array([7, 0, 3, 1000, 5])
    together = sampler.run(logits, slots, positions, path=path, threads=1)
    for threads, order in ((2, [4, 2, 0, 1, 3]), (3, [1, 0, 3, 2, 4])):
        out = sampler.run(logits[order], slots[order], positions[order], path=path, threads=threads)
        for name in OUTPUTS[:5]:
            assert getattr(out, name).tobytes() == getattr(together, name)[order].tobytes(), name
        assert out.slot_token.tobytes() == together.slot_token.tobytes()
    for row in range(len(MANY)):
        alone = sampler.run(logits[[row]], slots[[row]], positions[[row]], path=path, threads=2)
        for name in OUTPUTS[:5]:
            assert getattr(alone, name).tobytes() == getattr(together, name)[[row]].tobytes(), name


@pytest.mark.parametrize("path", PATHS)
def test_rows_behind_the_active_ones_are_left_alone(path):
    sampler, logits = Sampler(SMALL, *MANY), random_logits(3, SMALL, np.random.default_rng(17))
    out = sampler.run(logits, [0, 1, 2], [1, 1, 1], path=path, active=2)
    assert out.ids.tolist() == [*sampler.run(logits[:2], [0, 1], [1, 1], path=path).ids, -1]
    assert (out.status[2], out.slot_token[2], out.slot_position[2]) == (-1, -7, -8)
    assert np.isnan(out.logprobs[2])


@pytest.mark.parametrize("path", PATHS)
def test_what_a_request_does_not_ask_for_is_not_read(path):
    logits = random_logits(2, SMALL, np.random.default_rng(18))
    sampler = Sampler(SMALL, SamplingOptions(1.0, seed=8), SamplingOptions())
    expected = sampler.check(logits, [0, 1], [0, 0], path=path).ids
    for name in ("top_k", "top_p24", "bias_count"):
        sampler.ints[:2, INTS.index(name)] = 1
    for name in ("ln_min_p", "repetition", "inverse_repetition", "presence", "frequency"):
        sampler.floats[:2, FLOATS.index(name)] = np.nan
    sampler.bias_ids[:2], sampler.bias_values[:2] = expected[:, None], np.nan
    sampler.counts[:2], sampler.grammar[:2] = 5, 0
    assert sampler.check(logits, [0, 1], [0, 0], path=path).ids.tolist() == expected.tolist()


def test_constants_are_those_of_the_schema_and_the_reference():
    names = ("philox", "masses", "sample_scores", "rows")
    text = "".join((LIBRARY.parent / "kernels" / f"{name}.h").read_text(encoding="utf-8") for name in names)
    found = re.findall(r"\b([A-Z][A-Z_0-9]+) = (\w+)(?: << (\d+))?[,;]", text)
    numbers = {name: int(value, 0) << int(shift or 0) for name, value, shift in found if value[0].isdigit()}
    for name in ("GREEDY", "PENALTY", "BIAS", "GRAMMAR", "LOGPROBS", "FILTER", "NONFINITE", "EMPTY"):
        assert numbers[name] == getattr(schema, name), name
    for name in ("TOP_P_ONE", "TOP_LOGPROBS_LIMIT", "CHUNK_IDS", "COUNT_MASK"):
        assert numbers[name] == getattr(schema, name), name
    for kind, columns in (("int32_t", INTS), ("float", FLOATS)):
        assert f"{{ {kind} {', '.join(columns)}; }};" in text
    for name, owner in (("LOG1P", philox), ("MINUS_LOG1M", philox), ("EXP2", sampling)):
        terms = re.findall(r"(-?[\d.]+)f", text.split(f"{name}[] = ")[1].split("}")[0])
        assert tuple(map(float, terms)) == getattr(owner, name), name
