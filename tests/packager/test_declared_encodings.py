"""`--encoding GLOB=NAME`: which files a declaration is about, and which ones are refused."""

from pathlib import PurePath

import pytest

from qpack_packager.declared_encodings import DeclaredEncodings
from qpack_schemas.errors import UsageError


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("README*", "README.md", True),
        ("README*", "models/a/README.md", True),
        ("readme*", "README.md", False),
        ("README*", "README/x.md", False),
        ("docs/*.md", "a/docs/x.md", True),
        ("docs/*.md", "docs/a/x.md", False),
        ("a=b.md", "a=b.md", True),
        ("*", "x", True),
    ],
)
def test_a_glob_is_compared_with_as_many_last_parts_as_it_has(glob: str, path: str, matches: bool):
    assert (DeclaredEncodings.parse([f"{glob}=gb18030"]).of(PurePath(path)) == "gb18030") is matches


def test_the_last_matching_declaration_decides():
    declared = DeclaredEncodings.parse(["*.md=cp1252", "README*=GBK", "*.txt=big5"])
    assert [declared.of(PurePath(name)) for name in ("README.md", "a.md", "a.txt", "a.json")] == [
        "gbk",
        "cp1252",
        "big5",
        None,
    ]


@pytest.mark.parametrize("flag", ["gb18030", "=gb18030", "README*=", "", "*=gb-18031", "*=rot13", "*=hex", "*=a\0b"])
def test_a_declaration_that_names_no_glob_or_no_text_encoding_is_usage(flag: str):
    with pytest.raises(UsageError, match=r"GLOB=NAME|no text encoding") as raised:
        DeclaredEncodings.parse([flag])
    assert "--encoding" in str(raised.value)
    assert raised.value.remedy
