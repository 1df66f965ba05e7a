"""The instructions around the mixers: rows, embedding, norms, activation. On every code path against the reference."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instruction import kernels, packed_int8, run_cpu
from qpack_packager.quantize import int8
from qpack_runtime.reference import instructions
from qpack_schemas.sampling import COUNT_MASK, PROMPT_BIT

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
STEP = {"float32": 2e-6, "bfloat16": 2.0**-7, "float16": 2.0**-10}  # relative: one step of the dtype
PATHS = st.sampled_from(kernels().paths)
ANY_DTYPE = st.sampled_from(sorted(DTYPES))


def assert_close(found: np.ndarray, wanted: np.ndarray) -> None:
    """Within one step of the dtype: float32 sums in another order may round to the neighbour."""
    step = STEP[wanted.dtype.name]
    wide = wanted.astype(np.float64)
    np.testing.assert_allclose(
        found.astype(np.float64), wide, rtol=step, atol=step * 1e-3 * np.abs(wide).max(initial=0)
    )


@settings(max_examples=100)
@given(
    path=PATHS, rows=st.integers(1, 9), width=st.integers(1, 300), dtype=ANY_DTYPE, weights=ANY_DTYPE,
    unit_offset=st.booleans(), with_delta=st.booleans(), threads=st.integers(1, 3), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_norms_are_the_reference_s(path, rows, width, dtype, weights, unit_offset, with_delta, threads, seed):
    rng = np.random.default_rng(seed)
    size = (rows, width)
    given = {
        "x": rng.standard_normal(size).astype(DTYPES[dtype]),
        "weight": rng.standard_normal(width).astype(DTYPES[weights]),
    }
    if with_delta:
        given["delta"] = rng.standard_normal(size).astype(DTYPES[dtype])
    names = ["y", "sum"] if with_delta else ["y"]
    found, wanted = ({name: np.zeros(size, DTYPES[dtype]) for name in names} for _ in range(2))
    attributes = {"eps": 1e-6, "unit_offset": unit_offset}
    run_cpu("rms_norm", {**given, **found}, attributes, path=path, threads=threads)
    instructions.rms_norm(**given, **wanted, **attributes)
    for name in names:
        assert_close(found[name], wanted[name])
    if with_delta:
        np.testing.assert_array_equal(found["sum"], wanted["sum"])


@settings(max_examples=60)
@given(
    path=PATHS, rows=st.integers(1, 5), width=st.integers(1, 1200), dtype=ANY_DTYPE, threads=st.integers(1, 3),
    scale=st.sampled_from([1.0, 30.0, 1e4]), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_silu_is_the_reference_s_and_never_overflows(path, rows, width, dtype, threads, scale, seed):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((rows, 2 * width)) * np.array([scale, 1]).repeat(width)).astype(DTYPES[dtype])
    found, wanted = (np.zeros((rows, width), DTYPES[dtype]) for _ in range(2))
    run_cpu("silu_mul", {"x": x, "y": found}, path=path, threads=threads)
    with np.errstate(over="ignore"):
        instructions.silu_mul(x, wanted)
    assert_close(found, wanted)


@settings(max_examples=60)
@given(
    path=PATHS, rows=st.integers(1, 6), width=st.integers(1, 300), dtype=ANY_DTYPE, table=ANY_DTYPE,
    vocab=st.integers(1, 200), threads=st.integers(1, 3), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_embeddings_are_the_table_s_lines(path, rows, width, dtype, table, vocab, threads, seed):
    rng = np.random.default_rng(seed)
    lines = rng.standard_normal((vocab, width)).astype(np.float32)
    tokens = rng.integers(0, vocab, rows).astype(np.int32)
    y = np.zeros((rows, width), DTYPES[dtype])
    dense = lines.astype(DTYPES[table])
    run_cpu("embed", {"tokens": tokens, "table": dense, "y": y}, path=path, threads=threads)
    np.testing.assert_array_equal(y, dense[tokens].astype(np.float32).astype(DTYPES[dtype]))

    made = int8.quantize(np.pad(lines, ((0, 0), (0, -width % 128))))
    packed = packed_int8(made.codes, made.scales, path)
    operands = {"tokens": tokens, "table": packed["q"], "scale": packed["scale"], "y": y}
    run_cpu("embed_int8", operands, path=path, threads=threads)
    wanted = np.zeros_like(y)
    instructions.embed_int8(tokens, made.codes, made.scales, wanted)
    np.testing.assert_array_equal(y, wanted)


@settings(max_examples=60)
@given(path=PATHS, seats=st.integers(1, 6), vocab=st.integers(2, 90), data=st.data())
def test_decode_rows_continue_their_slots_and_count_what_they_consume(path, seats, vocab, data):
    scratch = seats
    rows = data.draw(st.integers(1, seats + 2))
    order = data.draw(st.permutations(range(seats)))
    padding = data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
    live = iter(order)
    slots = np.array([scratch if pad else next(live, scratch) for pad in padding], np.int32)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    seat_token = rng.integers(0, vocab, seats + 1).astype(np.int32)
    seat_position = rng.integers(0, 3, seats + 1).astype(np.int32)
    counts = rng.choice(np.array([0, 1, COUNT_MASK, PROMPT_BIT, PROMPT_BIT | COUNT_MASK]), (seats + 1, vocab))
    counts = counts.astype(np.uint16).view(np.int16)
    made = []
    for run in (True, False):
        given = {"slots": slots, "slot_token": seat_token, "slot_position": seat_position, "counts": counts.copy()}
        outputs = {name: np.full(rows, 99, np.int32) for name in ("tokens", "positions")}
        if run:
            active = run_cpu("rows_decode", {**given, **outputs}, path=path, scratch_slot=scratch)
            assert active == max((row + 1 for row, slot in enumerate(slots) if slot != scratch), default=0)
        else:
            instructions.rows_decode(**given, **outputs)
        made.append({**outputs, "counts": given["counts"]})
    for name, found in made[0].items():
        np.testing.assert_array_equal(found, made[1][name], err_msg=name)


@settings(max_examples=60)
@given(
    path=PATHS, rows=st.integers(1, 20), start=st.sampled_from([0, 1, 7]), seed=st.integers(0, 2**31), data=st.data()
)
def test_prefill_rows_are_the_prompt_and_then_padding(path, rows, start, seed, data):
    length = data.draw(st.integers(1, rows))
    rng = np.random.default_rng(seed)
    counts = rng.integers(-(2**15), 2**15, (4, 50)).astype(np.int16)
    prompt = rng.integers(0, 50, rows).astype(np.int32)
    scalars = {"slot": 2, "start": start, "length": length}
    made = []
    for run in (True, False):
        given = {"prompt": prompt, "counts": counts.copy(), **{n: np.array([v], np.int32) for n, v in scalars.items()}}
        outputs = {name: np.full(rows, 99, np.int32) for name in ("tokens", "slots", "positions")}
        outputs["last"] = np.zeros(1, np.int32)
        if run:
            assert run_cpu("rows_prefill", {**given, **outputs}, path=path, scratch_slot=3) == length
        else:
            instructions.rows_prefill(**given, **outputs)
        made.append({**outputs, "counts": given["counts"]})
    for name, found in made[0].items():
        np.testing.assert_array_equal(found, made[1][name], err_msg=name)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("path", kernels().paths)
def test_the_last_row_is_taken_as_it_is(path: str, dtype: str):
    x = np.random.default_rng(0).standard_normal((5, 37)).astype(DTYPES[dtype])
    y = np.zeros((1, 37), DTYPES[dtype])
    run_cpu("take_rows", {"x": x, "rows": np.array([3], np.int32), "y": y}, path=path)
    np.testing.assert_array_equal(y, x[3:4])
