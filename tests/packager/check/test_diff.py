"""The diff of a repair, against `git apply`, which must be able to follow it wherever nothing had to be escaped."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from qpack_packager.check.diff import diff_lines

LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n"]), min_size=1, max_size=30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("patched")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(LINES, st.sets(st.integers(0, 29)), st.sampled_from(["cut", "", "\n", "\n\n\n\n\n"]))
@example(["a\n"] * 30, {8, 15, 29}, "cut")
@example(["a\n"], {0}, "\n\n\n\n\n")
def test_git_makes_the_new_file_of_the_old_one_and_the_diff(
    folder: Path, lines: list[str], changed: set[int], end: str
):
    old = "".join(lines)
    new = "".join("x\n" if place in changed else line for place, line in enumerate(lines))
    old = old.removesuffix("\n") if end == "cut" else old + end
    file = folder / "x.md"
    file.write_text(old, encoding="utf-8")
    diff = diff_lines("x.md", old.encode(), new.encode(), "utf-8")
    assert bool(diff) == (old != new)
    if diff:
        patch = "".join(f"{line}\n" for line in diff)
        subprocess.run(["git", "apply", "-p0", "-"], cwd=folder, input=patch, encoding="utf-8", check=True)
    assert file.read_text(encoding="utf-8") == new


@pytest.mark.parametrize(
    ("before", "encoding", "removed"),
    [
        (b"\xef\xbb\xbf{}\n", "utf-8", r"-\ufeff{}"),
        (b"{}\r\n", "utf-8", r"-{}\r"),
        (b"{}\r", "utf-8", r"-{}\r"),
        ("中{}\n".encode("gb18030"), "gb18030", r"-\xd6\xd0{}"),
        ("中{}\n".encode("utf-16-le"), "utf-16-le", "-中{}"),
        (b"\x1b[2J{}\n", "utf-8", r"-\x1b[2J{}"),
    ],
)
def test_what_a_terminal_would_not_show_is_escaped(before: bytes, encoding: str, removed: str):
    diff = diff_lines("x.json", before, b"[]\n", encoding)
    assert diff == [f"--- x.json\t{encoding}", "+++ x.json\tutf-8", "@@ -1,1 +1,1 @@", removed, "+[]"]


def test_every_other_line_of_a_large_vocabulary_ends_differently():
    """Quadratic work here would never end."""
    before = b"token\r\ntoken\n" * 200_000
    diff = diff_lines("tokenizer.json", before, before.replace(b"\r", b""), "utf-8")
    assert len(diff) == 2 + 1 + 600_000
