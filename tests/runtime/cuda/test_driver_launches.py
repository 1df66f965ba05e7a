"""Argument bytes against what C compilers make of the same struct, grids against hand-written numbers."""

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpack_runtime.cuda.kernels import SCRATCH_POINTERS, LoadedKernel, offsets_of
from qpack_runtime.cuda.launches import bind, pack
from qpack_schemas.launch_table import Launch, LaunchTable, Scalar

C_TYPES = {"*": ctypes.c_uint64, "i32": ctypes.c_int32}


def kernel(*types: str, block: int = 128, shared: int = 0) -> LoadedKernel:
    types = (*types, *SCRATCH_POINTERS)
    return LoadedKernel("norm_1", 7, (block, 1, 1), shared, types, offsets_of(types))


@given(
    values=st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["*bf16", "*fp32", "*i64"]), st.integers(0, 2**64 - 1)),
            st.tuples(st.just("i32"), st.integers(-(2**31), 2**31 - 1)),
        ),
        max_size=20,
    )
)
def test_arguments_lie_as_in_a_struct_of_c(values: list[tuple[str, int]]):
    fields = [(f"a{i}", C_TYPES["*" if kind[0] == "*" else kind]) for i, (kind, _) in enumerate(values)]
    scratch = [("global_scratch", ctypes.c_uint64), ("profile_scratch", ctypes.c_uint64)]
    struct = type("Arguments", (ctypes.Structure,), {"_fields_": [*fields, *scratch]})
    wanted = bytes(struct(*(value for _, value in values)))
    addresses = {f"b{i}": value for i, (_, value) in enumerate(values)}
    args = tuple(f"b{i}" if kind[0] == "*" else Scalar(value) for i, (kind, value) in enumerate(values))
    assert pack(kernel(*(kind for kind, _ in values)), args, 1, addresses.__getitem__) == wanted


def test_the_rows_of_the_bucket_are_a_number_in_the_arguments():
    packed = pack(kernel("*bf16", "i32", "i32"), ("x", Scalar("R"), Scalar(-1)), 6, {"x": 0x7F00}.__getitem__)
    assert packed.hex() == "007f000000000000" + "06000000" + "ffffffff" + "00" * 16


def test_one_argument_too_many_or_too_few_is_never_passed():
    for args in ((), ("x", "x")):
        with pytest.raises(ValueError, match="zip"):
            pack(kernel("*bf16"), args, 1, lambda name: 0)


@pytest.mark.parametrize(
    ("rows", "context", "grids"),
    [
        (1, 512, [(1, 16, 1), (1, 2, 7), (3, 1, 1)]),
        (8, 600, [(8, 16, 1), (1, 3, 7), (3, 1, 1)]),
        (9, 257, [(9, 16, 2), (1, 2, 7), (3, 1, 1)]),
    ],
)
def test_grids_follow_rows_and_context(rows: int, context: int, grids: list[tuple[int, int, int]]):
    launches = (
        Launch("norm_1", (0, 0), ("R", 16, "R/8"), ("x",), ()),
        Launch("norm_1", (0, 0), (1, "C/256", 7), ("x",), (0,)),
        Launch("norm_1", (1, 1), (3, 1, 1), ("x",), (1, 0)),
    )
    bound = bind(
        LaunchTable("decode", "cuda:sm_89", {}, launches),
        {"norm_1": kernel("*bf16", block=64, shared=96)},
        rows,
        context,
        {"x": 256}.__getitem__,
    )
    assert [one.grid for one in bound] == grids
    assert [one.after for one in bound] == [(), (0,), (0, 1)]
    assert {(one.function, one.block, one.shared_bytes) for one in bound} == {(7, (64, 1, 1), 96)}
