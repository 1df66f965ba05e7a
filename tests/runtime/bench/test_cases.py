"""Which steps are measured, and which are refused before anything is."""

from typing import Any

import pytest

from qpack_runtime.bench.cases import Case, cases_of
from qpack_schemas.errors import FitError, UsageError

MANIFEST: Any = {
    "context": 128,
    "buckets": [
        {"program": program, "rows": rows, "context": context}
        for program, sizes in (("decode", (1, 4, 8)), ("prefill", (16, 256)))
        for rows in sizes
        for context in (64, 128)
    ],
}


def test_what_is_asked_for_is_measured_decode_by_context_and_batch_then_prefill():
    assert cases_of(MANIFEST, (4, 1, 4), (100, 7), (12, 3)) == [
        Case("decode", 1, 7), Case("decode", 4, 7), Case("decode", 1, 100), Case("decode", 4, 100),
        Case("prefill", 1, 3), Case("prefill", 1, 12),
    ]  # fmt: skip


def test_without_wishes_the_buckets_are_measured_halfway_through_their_contexts():
    assert cases_of(MANIFEST, (), (), ()) == [
        *(Case("decode", batch, context) for context in (32, 64) for batch in (1, 4, 8)),
        Case("prefill", 1, 16),
        Case("prefill", 1, 127),  # the bucket has 256 rows, the bundle has no room for as many
    ]


@pytest.mark.parametrize(
    ("batches", "contexts", "prefills", "said"),
    [
        ((1, 9), (), (), "batch of 9 .* 8 sequences"),
        ((1,), (1, 128), (), "128 tokens .* context is 128"),
        ((1,), (), (500,), "500 tokens .* context is 128"),
    ],
)
def test_what_the_bundle_has_no_room_for_is_refused(batches: Any, contexts: Any, prefills: Any, said: str):
    with pytest.raises(FitError, match=said) as refused:
        cases_of(MANIFEST, batches, contexts, prefills)
    assert refused.value.remedy


@pytest.mark.parametrize("wanted", [((0,), (), ()), ((), (-3,), ()), ((), (), (4, 0))])
def test_numbers_below_one_are_a_usage_error(wanted: Any):
    with pytest.raises(UsageError, match="from 1 on"):
        cases_of(MANIFEST, *wanted)
