"""The promises about encodings, over a corpus: never silently wrong, and how much is recovered."""

import secrets
from collections import Counter

import pytest

from encoding_corpus import Sample, samples
from qpack_packager.textfix.fix import fix


def _outcome(sample: Sample) -> str:
    fixed = fix(sample.name, sample.data)
    if fixed.data is None:
        return "refused"
    return "right" if sample.text is not None and fixed.data == sample.text.encode("utf-8") else "wrong"


def _hold(seed: int) -> None:
    outcomes: dict[str, Counter[str]] = {}
    for sample in samples(seed):
        outcome = _outcome(sample)
        assert outcome != "wrong", (seed, sample)
        if sample.group in ("unicode", "iso-2022"):
            assert outcome == "right", (seed, sample)
        if sample.group in ("damaged", "single-byte"):
            assert outcome == "refused", (seed, sample)
        if sample.group == "cjk" and sample.distinct_cjk >= 8:
            outcomes.setdefault(sample.encoding, Counter())[outcome] += 1
    counts = sum(outcomes.values(), Counter())
    assert counts["right"] >= 0.9 * counts.total(), (seed, outcomes)


def test_nothing_is_silently_wrong_and_what_is_certain_is_recovered():
    _hold(20260101)


@pytest.mark.nightly
def test_nothing_is_silently_wrong_on_fresh_damage():
    for _ in range(20):
        _hold(secrets.randbits(32))


def test_a_refused_single_byte_file_is_told_which_flag_to_pass():
    for sample in samples(1):
        if sample.group == "single-byte":
            assert "--encoding GLOB=NAME" in fix(sample.name, sample.data).problems[0].message


def test_what_is_fixed_once_stays_as_it_is():
    for sample in samples(2):
        if (once := fix(sample.name, sample.data).data) is not None:
            assert fix(sample.name, once).data == once
