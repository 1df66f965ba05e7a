"""Versions in the order of semver.org, and of Python's packaging where both know the form."""

from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from qpack_delivery.signing.semver import LONGEST, is_version, precedence

# Item 11 of semver.org, as it stands there.
PUBLISHED = [
    "1.0.0-alpha",
    "1.0.0-alpha.1",
    "1.0.0-alpha.beta",
    "1.0.0-beta",
    "1.0.0-beta.2",
    "1.0.0-beta.11",
    "1.0.0-rc.1",
    "1.0.0",
]
NUMBERS = st.lists(st.integers(0, 20), min_size=1, max_size=4).map(lambda numbers: ".".join(map(str, numbers)))
# In these words packaging orders as SemVer does: a < b < rc, then by number.
PRE = st.one_of(st.just(("", "")), st.tuples(st.sampled_from(["a", "b", "rc"]), st.integers(0, 20).map(str)))
VERSIONS = st.tuples(NUMBERS, PRE)


def test_the_published_order_is_kept():
    backwards = list(reversed(PUBLISHED))
    assert sorted(backwards, key=precedence) == PUBLISHED
    assert precedence("1.0.0") < precedence("2.0.0") < precedence("2.1.0") < precedence("2.1.1")


@given(VERSIONS, VERSIONS)
def test_versions_are_ordered_as_packaging_orders_them(a, b):
    (ours, theirs), (ours_b, theirs_b) = (
        (f"{numbers}-{word}.{count}" if word else numbers, Version(f"{numbers}{word}{count}"))
        for numbers, (word, count) in (a, b)
    )
    assert (precedence(ours) < precedence(ours_b)) == (theirs < theirs_b)
    assert (precedence(ours) == precedence(ours_b)) == (theirs == theirs_b)


def test_build_metadata_and_numbers_left_out_make_no_difference():
    assert precedence("1.4") == precedence("1.4.0") == precedence("1.4.0+build.7") == precedence("1.4.0.0")
    assert precedence("1.4-rc.1") == precedence("1.4.0-rc.1+x") < precedence("1.4")


def test_what_is_no_version_is_none():
    for text in ("v1.4.0", "1.", ".1", "1..2", "01.2", "1.4.0-", "1.4.0-01", "1.4.0+", "\u0661.2", "-1", "latest"):
        assert not is_version(text), text
    assert not any(map(is_version, ("", "1.4 ", "1.4\n", " 1.4")))
    assert is_version("1." * (LONGEST // 2 - 1) + "1")
    assert not is_version("1." * (LONGEST // 2) + "1")
    assert is_version("9" * 18)
    assert not is_version("9" * 19)


@given(st.text(alphabet="0123456789.-+abA", max_size=12))
def test_every_version_has_its_place(text: str):
    if is_version(text):
        assert precedence(text) == precedence(text)
        assert precedence(text) < precedence("9" * 18) or text.startswith("9" * 18)
