"""Decisions of textfix one by one, and what hostile files do."""

# ruff: noqa: RUF001  # letters of other scripts are what this is about

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpack_packager.textfix.canonical import ascii_json
from qpack_packager.textfix.fix import MAX_BYTES, fix

TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
NAMES = st.sampled_from(
    ["config.json", "tokenizer.json", "merges.txt", "a.jinja", "a.yaml", "README.md", "LICENSE", "x"]
)
ENCODINGS = st.sampled_from(
    ["utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-le", "gb18030", "cp932", "cp949", "latin-1"]
)


def rules(name: str, data: bytes, **options) -> list[str]:
    return [problem.rule for problem in fix(name, data, **options).problems]


@given(NAMES, TEXT, ENCODINGS)
def test_fixing_twice_is_fixing_once(name: str, text: str, encoding: str):
    once = fix(name, text.encode(encoding, errors="replace"))
    if once.data is not None:
        assert fix(name, once.data).data == once.data


@pytest.mark.parametrize("data", [b'{"a": 1,\r "b": 2}', b'{"a": 1,\r\n "b": 2}\r\r\n', b"{}\r ", b"{\r}\n\n"])
def test_places_are_those_of_the_file_whatever_its_newlines(data: bytes):
    """A lone carriage return ends a line of the clean text, and none of the file."""
    found = {problem.rule: problem.offset for problem in fix("generation_config.json", data).problems}
    assert found == {"QE011": data.index(b"\r"), "QE013": len(data) - 1}


@given(NAMES, st.binary(max_size=60))
def test_no_bytes_make_it_raise(name: str, data: bytes):
    fixed = fix(name, data)
    assert (fixed.data is None) == any(p.severity == "error" and not p.fixable for p in fixed.problems)


@given(st.recursive(st.none() | st.integers() | TEXT, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner)))
def test_a_clean_file_changes_no_byte_and_ascii_json_means_the_same(value: object):
    data = (json.dumps(value, indent=1, ensure_ascii=True) + "\n").encode("ascii")
    fixed = fix("config.json", data)
    assert (fixed.data, fixed.problems) == (data, [])
    text = json.dumps(value, ensure_ascii=False)
    assert ascii_json(text).isascii()
    assert json.loads(ascii_json(text)) == json.loads(text)


def test_a_declared_encoding_reads_what_would_be_refused_and_must_still_fit():
    data = "größer".encode("cp1252")
    assert rules("README.md", data) == ["QE003"]
    assert fix("README.md", data, declared="cp1252").data == "größer".encode()
    assert rules("README.md", data, declared="ascii") == ["QE008"]
    assert rules("README.md", data, declared="rot13") == ["QE008"]


def test_a_prior_settles_a_short_text_and_never_a_damaged_one():
    data = '{"a": "目标"}\n'.encode("gbk")
    assert rules("config.json", data) == ["QE003"]
    assert fix("config.json", data, legacy=["gb18030"]).data == '{"a": "目标"}\n'.encode()
    assert rules("README.md", "模型配置".encode()[:-1], legacy=["gb18030"]) == ["QE004"]


@pytest.mark.parametrize("text", ["目录", "未知", "谢谢", "64位"])
def test_hanzi_that_are_well_formed_utf8_are_ambiguous_until_declared(text: str):
    data = f'{{"a": "{text}"}}\n'.encode("gbk")
    assert rules("config.json", data) == ["QE006"]
    assert fix("config.json", data, declared="gb18030").data == data.decode("gbk").encode()


@pytest.mark.parametrize("text", ["café", "Größe", "Привет", "π", "© 2024", "Zażółć", "και", "â€™", "😀", "créée"])
def test_ordinary_utf8_is_left_alone_and_so_is_mojibake(text: str):
    data = f"# {text}\n".encode()
    assert fix("README.md", data).data == data


@pytest.mark.parametrize(
    "text", ["値段は100〜200円です。ありがとうございました。", "値段は¥100です。ありがとうございました。"]
)
def test_bytes_that_shift_jis_and_cp932_read_differently_are_not_guessed(text: str):
    assert fix("README.md", text.encode("shift_jis")).data is None


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('{"a": 1, // x\n"b": 2}', "QE021"), ('{"a": 1,}', "QE022"), ('{"a": NaN}', "QE023"),
        ('{"a": 1, "a": 2}', "QE024"), ('{"a": "\\ud800"}', "QE025"), ("[" * 100_000, "QE026"), ('{"a" 1}', "QE020"),
    ],
)  # fmt: skip
def test_each_fault_of_json_has_its_rule(text: str, rule: str):
    assert rule in rules("config.json", text.encode())


def test_merges_lose_carriage_returns_only_where_none_can_be_part_of_a_token():
    assert fix("merges.txt", b"a b\r\nc d\r\n").data == b"a b\nc d\n"
    assert rules("merges.txt", b"a b\r\nc d\n") == ["QE012"]
    assert rules("merges.txt", b"a b\r\n", vocabulary=["x\r"]) == ["QE012"]


def test_each_kind_keeps_what_its_canonical_form_keeps():
    assert fix("chat_template.jinja", b"\xef\xbb\xbfa\r\n\r\n").data == b"a\n\n"
    assert fix("LICENSE", b"a\r\n").data == b"a\r\n"
    assert fix("config.json", b"{}\n\n").data == b"{}\n"
    assert fix("tokenizer.json", b"{}").data == b"{}"
    assert fix("NOTICE", b"gr\xf6\xdfer").data == b"gr\xf6\xdfer"


def test_a_problem_names_line_column_and_byte_of_the_source():
    problem = fix("config.json", '\ufeff{"é": 1,\n "é": 2}\n'.encode()).problems[-1]
    assert (problem.rule, problem.line, problem.column, problem.offset) == (
        "QE024",
        2,
        2,
        3 + len('{"é": 1,\n '.encode()),
    )


def test_a_bad_tail_behind_a_long_ascii_head_is_caught():
    head = b"{\n" + b"".join(b' "k%d": "plain ascii",\n' % index for index in range(15_000))
    assert len(head) > 300_000
    fixed = fix("config.json", head + ' "z": "通义千问助手是一个语言模型，请勿编辑"\n}\n'.encode("gbk"))
    assert fixed.facts is not None
    assert fixed.facts.known_by == "inferred"
    assert "QE003" in rules("config.json", head + b' "z": "\xe9"\n}\n')


@pytest.mark.parametrize(
    "data", [b"\x80\x02}q\x00(X\x05\x00\x00\x00model", b"\x93NUMPY\x01\x00v\x00{'descr': '<f4'}", b"\x00\x01\x02"]
)
def test_a_binary_is_called_binary(data: bytes):
    assert rules("config.json", data) == ["QE005"]


LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(12)
)


@pytest.mark.parametrize(
    ("name", "data", "rule"),
    [
        ("a.yaml", LAUGHS.encode(), "QE032"), ("a.yaml", b"&a [*a]\n", "QE032"), ("a.yaml", b"[" * 50_000, "QE026"),
        ("a.yaml", b"a: 1\na: 2\n", "QE031"), ("a.yaml", b"a: [\n", "QE030"), ("a.yaml", b" " * 200_000, "QE009"),
        ("c.jinja", b"{{ " + b"(" * 90_000, "QE026"), ("c.jinja", b"{{ " + b"9" * 90_000 + b" }}", "QE040"),
        ("c.jinja", b"{% if %}", "QE040"), ("config.json", b"x" * (MAX_BYTES // 4 + 1), "QE009"),
    ],
)  # fmt: skip
def test_hostile_files_end_with_an_error(name: str, data: bytes, rule: str):
    assert rule in rules(name, data)


def test_a_template_is_parsed_and_never_rendered():
    bomb = b"{% for i in range(10**9) %}{{ 9**9**9 }}{% endfor %}{% generation %}x{% endgeneration %}"
    assert fix("chat_template.jinja", bomb).data == bomb
