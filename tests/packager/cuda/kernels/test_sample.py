"""Both launches of `sample` against the reference: ids, status and top ids equal, log-probabilities within float32.

Kernels with few candidates (C = 16, K = 32) take the passes over the whole row that those of a bundle hardly ever take.
"""

import os
import re
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from triton.runtime.interpreter import InterpreterBuilder

from qpack_packager.cuda.kernels import sample_merge
from qpack_runtime.sampling_options import SamplingOptions
from qpack_schemas.sampling import BIAS, BIAS_LIMIT, EMPTY, FLOATS, INTS, NONFINITE
from sample_launch import SCRATCH, SLOTS, Sampler
from sampler_requests import COUNTS, KINDS, LARGEST, logits_of, random_logits, requests_of

SMALL, LARGE = (500, 512), (8990, 9024)  # one chunk; three chunks, the last of them short
FEW = {"C": 16, "K": 32}


def seated(size, *requests, rng=None, **constants) -> Sampler:
    sampler = Sampler(*size, **constants)
    for slot, options in enumerate(requests):
        sampler.seat(slot, options)
    if rng is not None:
        sampler.counts[:] = rng.choice(COUNTS, sampler.counts.shape)
    return sampler


@pytest.fixture
def passes(monkeypatch):
    """The names of the whole-row searches that kernels take, as they take them."""
    taken = []
    for name in ("walk", "mass_of_first"):
        original = getattr(sample_merge, name)
        monkeypatch.setattr(sample_merge, name, lambda *a, f=original, n=name: (taken.append(n), f(*a))[1])
    return taken


@settings(phases=(Phase.explicit, Phase.reuse, Phase.generate))  # shrinking would take minutes
@given(
    requests_of(SMALL[0]),
    st.sampled_from(KINDS),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**31 - 2),
    st.integers(0, 2**32 - 1),
)
def test_any_request_gets_the_token_of_the_reference(request_options, kind, few, restricted, position, seed):
    rng = np.random.default_rng(seed)
    sampler = seated(SMALL, request_options, rng=rng, **(FEW if few else {}))
    if restricted:
        sampler.seat(0, request_options, allowed=rng.random(SMALL[1]) < 0.3)
    sampler.check(logits_of(kind, SMALL, rng), [0], [position])


@pytest.mark.parametrize("few", [False, True])
def test_every_combination_of_filters_gets_the_token_of_the_reference(few):
    rng = np.random.default_rng(1)
    filters = list(product([0, 1, 40, 256], [1.0, 0.9, 0.4], [0.0, 0.05]))
    for start in range(0, len(filters), SCRATCH):
        requests = [SamplingOptions(1.2, k, p, m, seed=k + 1) for k, p, m in filters[start : start + SCRATCH]]
        sampler = seated(SMALL, *requests, **(FEW if few else {}))
        sampler.check(random_logits(len(requests), SMALL, rng), range(len(requests)), [5] * len(requests))


def test_rows_of_several_chunks_get_the_token_of_the_reference():
    rng = np.random.default_rng(2)
    requests = [
        SamplingOptions(logprobs=True),
        SamplingOptions(1.0, seed=3, logprobs=True),
        SamplingOptions(0.8, top_k=20, top_p=0.95, seed=4),
        SamplingOptions(1.0, top_p=0.9, seed=5),
        SamplingOptions(0.6, min_p=0.02, repetition_penalty=1.1, seed=6),
        SamplingOptions(1.0, frequency_penalty=0.3, logit_bias={8989: 9.0, 32: 5.0, 4096: -1.0}, logprobs=True),
        SamplingOptions(2.0, top_k=256, top_p=0.99, presence_penalty=1.0, seed=7),
    ]
    sampler = seated(LARGE, *requests, rng=rng)
    sampler.check(random_logits(7, LARGE, rng), range(7), range(7))
    sampler.seat(3, requests[3], allowed=np.arange(LARGE[1]) >= 8000)
    sampler.check(random_logits(2, LARGE, rng, 4.0), [3, 5], [2**31 - 2, 0])


def test_greedy_takes_the_lowest_id_of_equals_across_chunks():
    logits = random_logits(3, LARGE, np.random.default_rng(3))
    logits[0, [64, 40, 3000]] = 50  # chunks 2, 1 and 0
    logits[1, [8989, 8960]] = 50
    logits[2, : LARGE[0]] = -0.0
    logits[2, 7777] = 0.0
    out = seated(LARGE, *[SamplingOptions(logprobs=True)] * 3).check(logits, [0, 1, 2], [0, 0, 0])
    assert out.ids.tolist() == [40, 8960, 0]


@pytest.mark.parametrize("p", [{"top_p": 0.9}, {"min_p": 0.01}, {"top_k": 60}, {"top_k": 60, "top_p": 0.7}])
def test_a_cut_beyond_the_candidates_is_exact(p, passes):
    """Flat rows, so that several hundred ids stay; the number of passes depends on the noise."""
    rng = np.random.default_rng(4)
    requests = [SamplingOptions(1.0, **p, seed=seed) for seed in range(SCRATCH)]
    sampler = seated(SMALL, *requests, rng=rng, **FEW)
    logits = random_logits(SCRATCH, SMALL, rng, 0.4)
    logits[3, : SMALL[0]] = 1
    sampler.check(logits, range(SCRATCH), [9] * SCRATCH)
    assert "walk" in passes
    assert ("mass_of_first" in passes) == (len(p) == 2)


def test_the_masses_of_several_chunks_cut_beyond_the_candidates(passes):
    rng = np.random.default_rng(5)
    requests = [SamplingOptions(1.0, top_p=0.6, seed=1), SamplingOptions(1.0, top_k=100, top_p=0.9, seed=2)]
    seated(LARGE, *requests, **FEW).check(random_logits(2, LARGE, rng, 0.3), [0, 1], [1, 2])
    assert {"walk", "mass_of_first"} <= set(passes)


def test_a_chunk_that_holds_all_of_the_best_has_more_of_them_than_candidates():
    requests = [SamplingOptions(1.0, top_k=40, seed=seed) for seed in range(4)]
    requests += [SamplingOptions(1.0, top_p=0.9, seed=seed) for seed in range(3)]
    logits = random_logits(7, LARGE, np.random.default_rng(17), 0.3)
    logits[:, :9024:96] += 9  # ids of chunk 0
    seated(LARGE, *requests, **FEW).check(logits, range(7), [2] * 7)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_bundles_constants_need_no_pass_over_the_row_for_top_k(size, passes):
    requests = [SamplingOptions(1.0, top_k=k, top_p=p, seed=k) for k in (1, 50, 200, 256) for p in (1.0, 0.95)][1:]
    sampler = seated(size, *requests, C=1024)
    sampler.check(random_logits(7, size, np.random.default_rng(6)), range(7), [0] * 7)
    assert passes == []


def test_ids_that_are_biased_repeatedly_add_up_in_their_order():
    values = np.array([1e8, 3.0, -1e8, 0.25, 5.0] * 100, np.float32)  # 1e8 + 3 rounds
    targets = np.array([7, 7, 7, 40, 499] * 100, np.int32)
    sampler = seated(SMALL, SamplingOptions(), SamplingOptions(1.0, seed=1))
    for slot in (0, 1):
        sampler.ints[slot, INTS.index("flags")] |= BIAS
        sampler.ints[slot, INTS.index("bias_count")] = values.size
        sampler.bias_ids[slot, : values.size], sampler.bias_values[slot, : values.size] = targets, values
    logits = random_logits(2, SMALL, np.random.default_rng(7))
    sampler.check(logits, [0, 1], [0, 0])
    sampler.ints[:2, INTS.index("bias_count")] = [4, 1]
    sampler.check(logits, [0, 1], [0, 0])


def test_as_many_biased_ids_as_there_may_be():
    rng = np.random.default_rng(8)
    ids, values = rng.permutation(LARGE[0])[:BIAS_LIMIT], rng.normal(0, 9, BIAS_LIMIT)
    bias = dict(zip(ids.tolist(), values.tolist(), strict=True))
    sampler = seated(LARGE, SamplingOptions(1.0, logit_bias=bias, top_p=0.9))
    sampler.check(random_logits(1, LARGE, rng), [0], [3])


def test_rows_without_a_token_say_why_and_do_not_advance():
    rng = np.random.default_rng(9)
    sampler = seated(SMALL, *[SamplingOptions(1.0, top_p=0.9, logprobs=True)] * 6)
    sampler.seat(4, SamplingOptions(logprobs=True), allowed=np.arange(512) >= 500)  # padded ids only
    sampler.seat(5, SamplingOptions(1.0, logprobs=True), allowed=np.zeros(512, bool))
    logits = random_logits(6, SMALL, rng)
    logits[0, 499], logits[1, 0] = np.nan, np.inf
    logits[2, :500] = -np.inf
    logits[5, 7] = np.nan  # broken and forbidden: broken
    out = sampler.check(logits, range(6), [4] * 6)
    assert out.status.tolist() == [NONFINITE, NONFINITE, EMPTY, 0, EMPTY, NONFINITE]


def test_scores_that_leave_float32_keep_their_meaning():
    """A score that only 1/T drives to -inf stays allowed, infinite scores tie, and inf - inf keeps the first alone."""
    requests = [
        SamplingOptions(1e-5, seed=1, logit_bias={3: 9.0}),
        SamplingOptions(1e-5, seed=2, top_p=0.5),
        SamplingOptions(1e-5, seed=3, min_p=0.1),
        SamplingOptions(1e-5, seed=4, min_p=0.1, top_p=0.5),
        SamplingOptions(1e-5, seed=5, top_k=3, top_p=0.999),
        SamplingOptions(1e-5, seed=6, top_k=40),
    ]
    low, high, spread = np.full(500, -3e38), np.full(500, 3e38), np.linspace(-3e38, 3e38, 500)
    high[::3] = 1e38
    for constants in ({}, FEW):
        sampler = seated(SMALL, *requests, **constants)
        for real in (low, high, spread, spread * 1e-25, np.where(np.arange(500) % 7, -np.inf, -3e38)):
            logits = random_logits(6, SMALL, np.random.default_rng(10))
            logits[:, :500] = real
            sampler.check(logits, range(6), [11] * 6)


def test_the_threshold_of_min_p_may_be_minus_infinity_or_nan():
    rng = np.random.default_rng(11)
    sampler = seated(SMALL, *[SamplingOptions(1.0, top_k=10, seed=seed) for seed in range(4)])
    sampler.floats[:4, FLOATS.index("ln_min_p")] = [-np.inf, np.nan, -LARGEST, 0]
    sampler.check(random_logits(4, SMALL, rng), range(4), [0] * 4)


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 50, 1e4, 1e9, 1e37])
def test_log_probabilities_are_those_of_the_raw_logits_at_any_scale(scale):
    rng = np.random.default_rng(12)
    requests = [SamplingOptions(temperature, logprobs=True, logit_bias={5: LARGEST}) for temperature in (0.0, 1.0, 9.0)]
    logits = random_logits(3, SMALL, rng, scale)
    logits[2, 30:500] = -np.inf
    seated(SMALL, *requests).check(logits, range(3), [0] * 3)


@pytest.mark.parametrize("vocab", [1, 7, 20, 33])
def test_a_vocabulary_smaller_than_the_log_probabilities_leaves_zeros(vocab):
    rng = np.random.default_rng(13)
    requests = [SamplingOptions(logprobs=True), SamplingOptions(1.0, top_k=256, top_p=0.9, logprobs=True)]
    out = seated((vocab, 64), *requests).check(random_logits(2, (vocab, 64), rng), [0, 1], [0, 0])
    assert not out.top_logprobs[:, vocab:].any()


def test_prefill_takes_slot_and_position_of_the_last_row():
    sampler = seated(SMALL, SamplingOptions(1.0, seed=12), SamplingOptions(1.0, seed=13, top_p=0.9))
    logits = random_logits(1, SMALL, np.random.default_rng(14))
    out = sampler.check(logits, [1, 1, 1, SCRATCH], [30, 31, 32, 0], last=[2])
    assert out.slot_position.tolist() == [-8, 33, *[-8] * (SLOTS - 2)]
    nobody = sampler.check(logits, [SCRATCH] * 3, [0] * 3, last=[2])
    assert (nobody.ids[0], nobody.slot_position.max()) == (0, -8)


def test_padding_yields_zeros_and_rows_see_neither_each_other_nor_the_order_of_programs(monkeypatch):
    rng = np.random.default_rng(15)
    requests = [
        SamplingOptions(1.0, top_p=0.9, seed=1, logprobs=True),
        SamplingOptions(0.9, top_k=40, seed=2, frequency_penalty=0.1),
        SamplingOptions(logprobs=True),
    ]
    sampler = seated(LARGE, *requests, rng=rng, **FEW)
    logits = random_logits(6, LARGE, rng)
    logits[[1, 4, 5]] = np.nan
    slots, positions = [2, SCRATCH, 0, 1, SCRATCH, SCRATCH], [3, 0, 8, 1, 0, 0]
    together = sampler.check(logits, slots, positions, guard=2)

    def reversed_index(builder, x, y, z):
        builder.grid_idx = tuple(n - 1 - i for n, i in zip(builder.grid_dim, (x, y, z), strict=True))

    monkeypatch.setattr(InterpreterBuilder, "set_grid_idx", reversed_index)
    launched = sampler.launch(logits, np.array(slots, np.int32), np.array(positions, np.int32))
    for row in range(6):
        alone = sampler.launch(
            logits[row : row + 1], np.array([slots[row]], np.int32), np.array([positions[row]], np.int32)
        )
        for name in ("ids", "status", "logprobs", "top_ids", "top_logprobs"):
            expected = getattr(launched, name)[row]
            assert np.array_equal(getattr(alone, name)[0], expected), name
            assert slots[row] != SCRATCH or not expected.any()
    assert np.array_equal(launched.ids, together.ids)


def test_what_a_request_does_not_ask_for_is_not_read():
    rng = np.random.default_rng(16)
    logits = random_logits(2, SMALL, rng)
    sampler = seated(SMALL, SamplingOptions(1.0, seed=8), SamplingOptions())
    expected = sampler.check(logits, [0, 1], [0, 0]).ids
    for name in ("top_k", "top_p24", "bias_count"):
        sampler.ints[:2, INTS.index(name)] = 1
    for name in ("ln_min_p", "repetition", "inverse_repetition", "presence", "frequency"):
        sampler.floats[:2, FLOATS.index(name)] = np.nan
    sampler.bias_ids[:2], sampler.bias_values[:2] = expected[:, None], np.nan
    sampler.counts[:2], sampler.grammar[:2] = 5, 0
    assert sampler.check(logits, [0, 1], [0, 0]).ids.tolist() == expected.tolist()


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from qpack_packager.cuda.kernels.sample import sample_chunks as kernel
constants = dict(last=None, VOCAB=8990, WIDTH=9024, SCRATCH=7, NC=3, CHUNK=4096, C=64, RC=32, LIST=512, TOP=20)
wide, ints = {"best", "masses", "floors", "candidates", "raw_candidates"}, {"logits", "floats", "bias_values", "raw"}
types = {n: "*i64" if n in wide else "*fp32" if n in ints else "*i16" if n == "counts" else "*i32"
         for n in kernel.arg_names if n not in constants}
source = ASTSource(kernel, types | dict.fromkeys(constants, "constexpr"),
                   constexprs={(kernel.arg_names.index(n),): v for n, v in constants.items()})
target = GPUTarget("cuda", 80, 32)
print(triton.compile(source, target=target, options=dict(num_warps=16, enable_fp_fusion=False)).asm["ptx"])
"""


def test_compiled_arithmetic_is_neither_fused_nor_flushed(tmp_path):
    """Each product and sum rounded on its own, subnormal numbers kept: nothing the interpreter could tell. Only the
    exponentials of log-probabilities are approximate."""
    # Triton opens files and names no encoding.
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("TRITON_", "PYTHONWARN"))}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_DISABLE_LINE_INFO": "1"}
    run = subprocess.run(
        [sys.executable, "-c", COMPILE], env=environment, capture_output=True, encoding="utf-8", check=False
    )
    assert run.returncode == 0, run.stderr
    assert "mul.rn.f32" in run.stdout
    inexact = set(re.findall(r"\b(?:fma|mad|div|\w+\.approx|[\w.]*ftz)[\w.]*f32\b", run.stdout))
    assert inexact <= {"ex2.approx.f32", "ex2.approx.ftz.f32"}
