"""Flags -> buckets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpack_packager.serving import LARGEST, Options, plan_serving
from qpack_schemas.errors import UsageError

NUMBERS = st.lists(st.integers(1, 300), min_size=1, max_size=4).map(tuple)


def test_the_defaults_serve_the_common_case():
    serving = plan_serving(32768, Options())
    names = {bucket["name"] for bucket in serving.buckets}
    assert names == {
        *(f"decode-b{rows}-c{context}" for rows in (1, 2, 4, 8) for context in (512, 2048)),
        *(f"prefill-t{rows}-c{context}" for rows in (16, 64, 256) for context in (512, 2048)),
    }
    assert (serving.slots, serving.context) == (8, 2048)


@given(batches=NUMBERS, contexts=NUMBERS, prefills=NUMBERS, spare=st.integers(0, 5))
def test_every_size_is_combined_with_every_context_once(
    batches: tuple[int, ...], contexts: tuple[int, ...], prefills: tuple[int, ...], spare: int
):
    serving = plan_serving(300, Options(batches, contexts, prefills, max(batches) + spare))
    shapes = [(bucket["program"], bucket["rows"], bucket["context"]) for bucket in serving.buckets]
    wanted = {("decode", rows, context) for rows in batches for context in contexts}
    wanted |= {("prefill", rows, context) for rows in prefills for context in contexts}
    assert sorted(shapes) == sorted(wanted)
    assert serving.context == max(contexts)


@pytest.mark.parametrize(
    ("longest", "contexts"), [(100, {100}), (512, {512}), (1000, {512, 1000}), (2048, {512, 2048})]
)
def test_default_contexts_never_go_beyond_the_model(longest: int, contexts: set[int]):
    assert {bucket["context"] for bucket in plan_serving(longest, Options()).buckets} == contexts


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        (Options(contexts=(513,)), "--context 513"),
        (Options(batches=(0,)), "--batch 0"),
        (Options(prefills=(16, -1)), "--prefill 16,-1"),
        (Options(batches=(4,), slots=3), "--slots 3"),
        (Options(slots=0), "--slots 0"),
        (Options(batches=(LARGEST + 1,)), "--batch"),
        (Options(slots=10**12), "--slots"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_flag(options: Options, flag: str):
    with pytest.raises(UsageError, match=flag):
        plan_serving(512, options)
