"""References: the grammar of the distribution specification, and what is said of those that break it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpack_delivery.oci.reference import Reference, is_loopback
from qpack_schemas.errors import UsageError

DIGEST = "sha256:" + "0a" * 32
# The regular expressions as the specification 1.1 has them.
NAME = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(\/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*"
TAG = r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}"
HOSTS = st.sampled_from(["localhost", "localhost:5000", "registry.example.com", "10.0.0.7:443", "[::1]:5000", "r:1"])


@given(HOSTS, st.from_regex(NAME, fullmatch=True), st.from_regex(TAG, fullmatch=True), st.booleans())
def test_what_the_specification_allows_is_read_and_written_alike(host: str, name: str, tag: str, fixed: bool):
    if len(host) + 1 + len(name) > 255:
        return
    text = f"{host}/{name}:{tag}" + (f"@{DIGEST}" if fixed else "")
    reference = Reference.parse("oci://" + text)
    assert (reference.registry, reference.repository, reference.tag) == (host, name, tag)
    assert reference.target == (DIGEST if fixed else tag)
    assert str(reference) == text
    assert Reference.parse(text) == reference


@given(
    st.text(max_size=300) | st.from_regex(r"[a-z]{1,5}(\.[a-z])?(:[0-9]{1,6})?/[A-Za-z/_.:@-]{0,30}", fullmatch=True)
)
def test_anything_else_is_refused_by_a_message(text: str):
    try:
        reference = Reference.parse(text)
    except UsageError as error:
        said = str(error)
    else:
        said = f"{reference}\n  remedy:"
        assert re.fullmatch(NAME, reference.repository)
        assert re.fullmatch(TAG, reference.tag or "x")
    assert "\n  remedy:" in said
    assert said.isascii()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("https://registry.example.com/a", "no such scheme"),
        ("qwen3:1.0", "no host"),
        ("team/qwen3", "names no registry"),
        ("registry.example.com", "names no registry, or no repository"),
        ("registry.example.com:70000/a", "no host"),
        ("registry.example.com/Team/qwen3", "no name of a repository"),
        ("registry.example.com/a:-1", "no tag"),
        ("registry.example.com/a:", "no tag"),
        ("registry.example.com/a@sha256:12", "no digest"),
        ("registry.example.com/a:1@", "no digest"),
        ("registry.example.com/" + "a" * 250, "more than 255"),
    ],
)
def test_a_wrong_reference_is_told_what_is_wrong_with_it(text: str, problem: str):
    with pytest.raises(UsageError, match=problem):
        Reference.parse(text)


def test_without_tag_and_digest_it_is_latest_and_a_digest_needs_no_tag():
    assert Reference.parse("r.example/a").target == "latest"
    assert Reference.parse(f"r.example/a@{DIGEST}").tag is None


@pytest.mark.parametrize(
    ("registry", "loopback"),
    [
        ("localhost:5000", True),
        ("127.1.2.3", True),
        ("[::1]:5000", True),
        ("10.0.0.1", False),
        ("localhost.org", False),
    ],
)
def test_only_this_machine_is_loopback(registry: str, loopback: bool):
    assert is_loopback(Reference.parse(f"{registry}/a").host) == loopback
