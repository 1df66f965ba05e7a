import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpack_schemas.errors import InputError
from qpack_schemas.strict_json import dump_canonical, dump_compact, load_strict, load_text, parse_strict

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
)


def refusal(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse_strict(text, "config.json")
    assert caught.value.where == "config.json"
    return caught.value.message


@given(VALUES)
def test_every_value_survives_both_spellings_and_any_json_reader(value: object):
    for spelling in (dump_canonical(value), dump_compact(value)):
        assert parse_strict(spelling.decode("ascii"), "here") == json.loads(spelling) == value


@given(st.dictionaries(TEXT, VALUES, max_size=5))
def test_equal_objects_have_one_spelling(value: dict[str, object]):
    assert dump_canonical(dict(reversed(value.items()))) == dump_canonical(value)


def test_the_canonical_spelling_is_fixed():
    assert dump_canonical({"b": [1, "ü"], "a": None}) == b'{\n "a": null,\n "b": [\n  1,\n  "\\u00fc"\n ]\n}\n'
    assert dump_compact({"b": [1, "ü"], "a": None}) == b'{"a":null,"b":[1,"\\u00fc"]}\n'


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_json_is_not_written(value: float):
    with pytest.raises(ValueError, match="JSON compliant"):
        dump_canonical({"x": value})


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999", "-2.5E+400"])
def test_a_number_that_is_not_finite_is_named_with_its_line(word: str):
    """dynamo#3043, transformers#42959; 1e999 is legal JSON that Python's reader turns into infinity."""
    message = refusal(f'{{"a": "{word}",\n "b \\" {word}": 1,\n "c": [2, {word}]}}')
    assert message.startswith("line 3: ")
    assert word in message


def test_words_inside_strings_are_text():
    text = '{"NaN": "Infinity", "{": "1e999 }"}'
    assert parse_strict(text, "here") == json.loads(text)


@pytest.mark.parametrize(
    ("text", "key", "lines"),
    [
        ('{"a": 1,\n"b": 2,\n"a": 3}', "a", (1, 3)),
        ('{"x": {"a": 1},\n"y": {"a": 1,\n\n"\\u0061": 3}}', "a", (2, 4)),
        ('{"x": {"ü": "ü"},\n"ü": "}",\n"ü": 3}', "ü", (2, 3)),
    ],
)
def test_a_key_that_stands_twice_in_one_object_is_named_with_both_lines(text: str, key: str, lines: tuple[int, int]):
    message = refusal(text)
    assert message.startswith(f"line {lines[1]}: key {key!r} ")
    assert f"first on line {lines[0]}" in message


@pytest.mark.parametrize("half", ["\\ud83d", "\\ude00", "\\ud83d\\ud83d"])
def test_half_a_surrogate_pair_is_named_with_its_line(half: str):
    assert refusal(f'{{"whole": "\\ud83d\\ude00",\n"half": "{half}"}}').startswith("line 2: ")


@pytest.mark.parametrize("text", ["", "{", '{"a": 1,}', '{"a": 1}\n}', "\x00", "nul", "{'a': 1}"])
def test_what_no_reader_takes_for_json_is_refused_with_line_and_column(text: str):
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)
    assert refusal(text).startswith("line ")


def test_depth_and_digits_without_bound_are_refused_and_do_not_crash():
    assert "deep" in refusal("[" * 100_000 + "]" * 100_000)
    assert refusal("[0,\n" + "9" * 5000 + "]") == "line 2: an integer of 5000 digits"


@pytest.mark.parametrize("codec", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_refused_by_name(tmp_path: Path, codec: str):
    path = tmp_path / "config.json"
    path.write_bytes('{"a": 1}'.encode(codec))
    with pytest.raises(InputError, match="byte order mark"):
        load_strict(path)


def test_another_encoding_is_refused_with_byte_offset_and_line(tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_bytes('{"a":\n "配置"}'.encode("gbk"))
    with pytest.raises(InputError, match=r"byte 0xc5 at offset 8, line 2") as caught:
        load_text(path)
    assert str(path) in str(caught.value)


def test_a_git_lfs_pointer_is_named_with_the_remedy(tmp_path: Path):
    path = tmp_path / "tokenizer.json"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 11\n", encoding="utf-8")
    with pytest.raises(InputError, match="git lfs pull"):
        load_strict(path)
