"""Launch tables as data: what is written is read back, and grids and bytes follow the rows."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from qpack_schemas.launch_table import Launch, LaunchTable, Scalar, TargetBuffer, grid_of, kernel_folder, table_path
from qpack_schemas.schema_check import check_schema

SIZES = st.integers(1, 2**31 - 1)
NAMES = st.from_regex(r"[a-z0-9_]{1,8}(\.[a-z0-9_]{1,8})?(~[a-z0-9_]{1,8})?", fullmatch=True)
DIMS = SIZES | st.just("R") | st.builds("{}/{}".format, st.sampled_from("RC"), st.integers(1, 4096))
SCALARS = st.builds(Scalar, st.just("R") | st.integers(-(2**31), 2**31 - 1))
BUFFERS = st.builds(
    lambda dtype, sizes, rows, offset: TargetBuffer(dtype, (*sizes[:rows], "R", *sizes[rows:]), 256 * offset),
    st.sampled_from(["float32", "bfloat16", "float16", "int32", "int16", "int64"]),
    st.lists(SIZES, max_size=3),
    st.integers(0, 3),
    st.integers(0, 2**30),
)
LAUNCHES = st.builds(
    Launch,
    st.from_regex(r"[a-z_][a-z0-9_]{0,20}", fullmatch=True),
    st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1)),
    st.tuples(DIMS, DIMS, DIMS),
    st.lists(NAMES | SCALARS, max_size=4).map(tuple),
    st.lists(st.integers(0, 2**31 - 1), max_size=2).map(tuple),
)
TABLES = st.builds(
    LaunchTable,
    st.sampled_from(["decode", "prefill"]),
    st.sampled_from(["cuda:sm_89", "cuda:ptx_120"]),
    st.dictionaries(NAMES, BUFFERS, max_size=3),
    st.lists(LAUNCHES, min_size=1, max_size=3).map(tuple),
)


@given(TABLES)
def test_a_table_that_is_written_follows_the_schema_and_is_read_back(table: LaunchTable):
    document = json.loads(json.dumps(table.to_json()))
    assert check_schema(document, "launch_table.v1.schema.json", "f") == []
    assert LaunchTable.from_json(document) == table


@given(rows=st.integers(1, 10**6), context=st.integers(1, 10**6), divisor=st.integers(1, 4096))
def test_grids_follow_rows_and_context_rounded_up(rows: int, context: int, divisor: int):
    launch = Launch("k", (0, 0), (f"R/{divisor}", f"C/{divisor}", "R"), (), ())
    assert grid_of(launch, rows, context) == (math.ceil(rows / divisor), math.ceil(context / divisor), rows)
    assert grid_of(Launch("k", (0, 0), (3, 5, 7), (), ()), rows, context) == (3, 5, 7)


def test_grids_by_hand():
    launch = Launch("k", (0, 0), ("R/8", "C/256", 2), (), ())
    assert [grid_of(launch, *bucket) for bucket in ((1, 256), (8, 257), (9, 512))] == [(1, 1, 2), (1, 2, 2), (2, 2, 2)]


def test_the_bytes_of_a_row_do_not_depend_on_where_the_rows_stand():
    """Planes [2, R, 100] of float32; 8-byte integers; and a shape without rows, which must fit into one."""
    planes = TargetBuffer("float32", (2, "R", 100), 256)
    assert (planes.extent(3), planes.bytes_per_row()) == ((2, 3, 100), 800)
    assert TargetBuffer("int64", ("R", 2, 100), 0).bytes_per_row() == 1600
    assert TargetBuffer("int16", (7,), 0).bytes_per_row() == 14
    table = LaunchTable("decode", "cuda:sm_89", {"a": planes, "b": TargetBuffer("int16", ("R", 1), 0)}, ())
    assert table.work_bytes_per_row() == 256 + 1024
    assert LaunchTable("decode", "cuda:sm_89", {}, ()).work_bytes_per_row() == 0


def test_a_scalar_is_a_constant_or_the_rows():
    assert (Scalar("R").of(5), Scalar(-7).of(5)) == (5, -7)


def test_where_tables_and_kernels_lie():
    assert table_path("cuda:sm_89", "decode") == "kernels/sm_89/decode.json"
    assert kernel_folder("cuda:ptx_120") == "kernels/ptx_120"
