"""The kernels of rows, counts and embeddings against the reference instructions, to the bit but for the norm."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_launch import DTYPES, assert_rounded_once, launch, nans, normal
from qpack_packager.cuda.kernels.rows import begin_decode, counts_reset, embed_norm, rows_prefill, take_rows
from qpack_runtime.reference import instructions
from qpack_schemas.sampling import COUNT_MASK, PROMPT_BIT

EPS, VOCAB, SLOTS = 1e-6, 40, 4
SCRATCH = SLOTS
dtypes = st.sampled_from(sorted(DTYPES)).map(DTYPES.get)
forms = st.one_of(dtypes, st.just("int8"))  # of the embedding
widths = st.one_of(st.integers(1, 70), st.sampled_from([128, 130, 256]))
COUNTS = st.sampled_from([0, 1, COUNT_MASK - 1, COUNT_MASK, PROMPT_BIT, PROMPT_BIT + 1, -2, -1])
any_counts = st.lists(COUNTS, min_size=8, max_size=8)


def counts_of(pattern) -> np.ndarray:
    return np.resize(np.array(pattern, np.int16), (SLOTS + 1, VOCAB))


def some_table(rng: np.random.Generator, width: int, form: np.dtype | str):
    """Table and scale as the kernels take them, and the lines [V, width] that the reference reads."""
    if form != "int8":
        table = normal(rng, (VOCAB, width), form)
        return table, None, table
    groups = -(-width // 128)
    codes = rng.integers(-127, 128, (VOCAB, 128 * groups)).astype(np.int8)
    scale, lines = normal(rng, (VOCAB, groups), DTYPES["bfloat16"]), nans((VOCAB, width), np.float32)
    instructions.embed_int8(np.arange(VOCAB), codes, scale, lines)
    return codes, scale, lines


def norm_of(table_rows, weight, dtype, unit: bool):
    h, x = nans(table_rows.shape, dtype), nans(table_rows.shape, np.float32)
    h[:] = table_rows
    instructions.rms_norm(h, weight, x, eps=EPS, unit_offset=unit)
    return h, x


def decode(slots, slot_token, slot_position, counts, table, scale, weight, unit: bool, dtype):
    rows, width = len(slots), len(weight)
    h, x = nans((rows, width), dtype), nans((rows, width), dtype)
    positions = nans(rows, np.int32)
    launch(
        begin_decode, (rows,), slots, slot_token, slot_position, counts, table, scale, weight, positions, h, x,
        SCRATCH=SCRATCH, V=VOCAB, H=width, EPS=EPS, UNIT=unit, BLOCK=1 << (width - 1).bit_length(),
    )  # fmt: skip
    return SimpleNamespace(positions=positions, h=h, x=x)


@settings(max_examples=30)
@given(
    slots=st.lists(st.integers(0, SLOTS - 1), max_size=4, unique=True), padding=st.integers(0, 2),
    seats=st.lists(st.tuples(st.integers(0, VOCAB - 1), st.integers(0, 2)), min_size=SLOTS, max_size=SLOTS),
    pattern=any_counts, width=widths, unit=st.booleans(), dtype=dtypes, form=forms,
)  # fmt: skip
def test_decode_rows_continue_their_slots(slots, padding, seats, pattern, width, unit, dtype, form):
    rng = np.random.default_rng(width)
    slots = np.array([*slots, *[SCRATCH] * padding] or [SCRATCH], np.int32)[::-1].copy()
    slot_token, slot_position = (np.array([*part, 2**31 - 1], np.int32) for part in zip(*seats, strict=True))
    (table, scale, lines), weight = some_table(rng, width, form), normal(rng, width, dtype)
    counts, wanted_counts = counts_of(pattern), counts_of(pattern)
    out = decode(slots, slot_token, slot_position, counts, table, scale, weight, unit, dtype)
    tokens, positions = nans(len(slots), np.int32), nans(len(slots), np.int32)
    instructions.rows_decode(slots, slot_token, slot_position, wanted_counts, tokens, positions)
    h, x = norm_of(lines[tokens], weight, dtype, unit)
    assert np.array_equal(out.positions, positions)
    assert np.array_equal(counts, wanted_counts)
    assert out.h.tobytes() == h.tobytes()
    assert_rounded_once(out.x, x)


def test_a_decode_row_gives_the_same_bits_alone_and_last_of_many():
    rng = np.random.default_rng(0)
    table, weight = normal(rng, (VOCAB, 33), DTYPES["bfloat16"]), normal(rng, 33)
    seats = np.array([3, 9, 7, 1, 0], np.int32), np.array([5, 0, 2, 8, 0], np.int32)
    runs = [
        decode(np.array(slots, np.int32), *seats, counts_of([1]), table, None, weight, True, DTYPES["float32"])
        for slots in ([2], [SCRATCH, 0, 1, SCRATCH, 2])
    ]
    assert runs[0].x[-1].tobytes() == runs[1].x[-1].tobytes()


@settings(max_examples=20)
@given(
    rows=st.integers(1, 20), slot=st.integers(0, SLOTS - 1), start=st.sampled_from([0, 0, 1, 77]), pattern=any_counts,
    data=st.data(),
)  # fmt: skip
def test_prefill_rows_are_the_prompt_and_then_padding(rows, slot, start, pattern, data):
    length = data.draw(st.integers(1, rows))
    prompt = np.full(rows, -(2**31), np.int32)
    prompt[:length] = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=length, max_size=length))
    slot, start, length = (np.array([value], np.int32) for value in (slot, start, length))
    counts, wanted_counts = counts_of(pattern), counts_of(pattern)
    sizes = {"tokens": rows, "slots": rows, "positions": rows, "last": 1}
    out, wanted = ({name: nans(size, np.int32) for name, size in sizes.items()} for _ in range(2))
    launch(counts_reset, (-(-VOCAB // 16),), slot, start, counts, V=VOCAB, BLOCK=16)
    launch(
        rows_prefill, (-(-rows // 8),), prompt, slot, start, length, counts, *out.values(), rows, SCRATCH=SCRATCH,
        V=VOCAB, BLOCK=8,
    )  # fmt: skip
    instructions.rows_prefill(prompt, slot, start, length, wanted_counts, **wanted)
    assert np.array_equal(counts, wanted_counts)
    for name in sizes:
        assert np.array_equal(out[name], wanted[name]), name


@settings(max_examples=20)
@given(
    tokens=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4), width=widths, unit=st.booleans(), dtype=dtypes,
    form=forms,
)  # fmt: skip
def test_embeddings_are_lines_of_the_table_and_their_norms(tokens, width, unit, dtype, form):
    rng = np.random.default_rng(width)
    (table, scale, lines), weight = some_table(rng, width, form), normal(rng, width, dtype)
    h, x = (nans((len(tokens), width), dtype) for _ in "hx")
    launch(
        embed_norm, (len(tokens),), np.array(tokens, np.int32), table, scale, weight, h, x, H=width, EPS=EPS, UNIT=unit,
        BLOCK=1 << (width - 1).bit_length(),
    )  # fmt: skip
    wanted_h, wanted_x = norm_of(lines[tokens], weight, dtype, unit)
    assert h.tobytes() == wanted_h.tobytes()
    assert_rounded_once(x, wanted_x)


@settings(max_examples=10)
@given(rows=st.integers(1, 5), width=st.integers(1, 70), dtype=dtypes, data=st.data())
def test_the_chosen_row_is_copied(rows, width, dtype, data):
    x, y = normal(np.random.default_rng(width), (rows, width), dtype), nans((1, width), dtype)
    chosen = np.array([data.draw(st.integers(0, rows - 1))], np.int32)
    launch(take_rows, (1,), x, chosen, y, H=width, BLOCK=1 << (width - 1).bit_length())
    assert y.tobytes() == x[chosen].tobytes()
