"""Texts made under masks are judged by the json module and jsonschema, masks by what real tokenizers make of JSON."""

import json
import random
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executors import CPU_KINDS, REFERENCE, Kind
from grammar_walks import EOS, GRAMMARS, IDS, TINY, TINY_BYTES, VOCAB, WORDS, allowed, json_schema, random_text
from qpack_runtime.sampling_options import SamplingOptions
from qpack_runtime.serve.text import grammar as grammar_module
from qpack_runtime.serve.text.grammar import Grammars
from qpack_schemas.errors import UsageError
from qpack_schemas.sampling import GRAMMAR, INTS
from qwen_tokenizers import Family, qwen_tokenizer_file

OBJECT = {"type": "json_object"}
END: dict[Family, int] = {"qwen3": 151645, "qwen3_5": 248046}  # <|im_end|>
WHITESPACE = b" \t\r\n"
names = st.text(st.sampled_from('ab"\\/~<é東\n'), min_size=1, max_size=4).map(
    lambda text: unicodedata.normalize("NFC", text)
)
leaves = st.one_of(
    st.sampled_from(
        [{"type": "string"}, {"type": "number"}, {"type": "boolean"}, {"type": "null"}, {"type": "object"}]
    ),
    st.builds(
        lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size}, st.integers(), st.integers(0)
    ),
    st.builds(
        lambda low, size: {"type": "string", "minLength": low, "maxLength": low + size}, *[st.integers(0, 9)] * 2
    ),
    st.sampled_from([{"type": "string", "pattern": "^[a-c]+x?$"}, {"type": "integer", "multipleOf": 7}]),
    st.lists(st.one_of(names, st.integers(), st.booleans(), st.none()), min_size=1, max_size=4).map(
        lambda values: {"enum": values}
    ),
)


def objects(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(names, parts, max_size=3)
    return properties.flatmap(
        lambda parts: st.builds(
            lambda required, more: {
                "type": "object",
                "properties": parts,
                "required": required,
                "additionalProperties": more,
            },
            st.lists(st.sampled_from(sorted(parts)), unique=True) if parts else st.just([]),
            st.booleans(),
        )
    )


schemas = st.recursive(
    leaves,
    lambda parts: st.one_of(
        objects(parts),
        st.builds(lambda items, low: {"type": "array", "items": items, "minItems": low}, parts, st.integers(0, 3)),
        st.lists(parts, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
    ),
    max_leaves=6,
)
# Without lone surrogates, which are no UTF-8, and what NFC changes, which no canonical tokenization holds.
texts = st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=12).filter(
    lambda text: unicodedata.is_normalized("NFC", text) and "<" not in text and "\x7f" not in text
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts),
    lambda parts: st.one_of(st.lists(parts, max_size=4), st.dictionaries(texts, parts, max_size=4)),
    max_leaves=12,
)


@given(schema=schemas, seed=st.integers(0, 2**32), free=st.integers(0, 60))
def test_whatever_is_chosen_under_the_masks_fits_the_schema(schema: dict[str, Any], seed: int, free: int):
    text = random_text(GRAMMARS.compile(json_schema(schema)), random.Random(seed), free)
    jsonschema.validate(json.loads(text.decode("utf-8")), schema, jsonschema.Draft202012Validator)


@given(seed=st.integers(0, 2**32), free=st.integers(0, 200))
def test_whatever_is_chosen_for_a_json_object_is_one(seed: int, free: int):
    text = random_text(GRAMMARS.compile(OBJECT), random.Random(seed), free)
    assert isinstance(json.loads(text.decode("utf-8")), dict)


@pytest.fixture(scope="module", params=["qwen3", "qwen3_5"])
def family(request: pytest.FixtureRequest) -> Family:
    return request.param


@pytest.fixture(scope="module")
def real(family: Family) -> Grammars:
    tokenizer = qwen_tokenizer_file(family)
    return Grammars(tokenizer, tokenizer.get_vocab_size(), [END[family]])


@given(value=st.dictionaries(texts, values, max_size=4), indent=st.sampled_from([None, 2, 4, "\t"]))
@settings(max_examples=30)
def test_json_as_the_model_writes_it_is_never_forbidden(
    family: Family, real: Grammars, value: dict[str, Any], indent: int | str | None
):
    tokenizer, grammar = qwen_tokenizer_file(family), real.compile(OBJECT)
    bits = np.zeros(-(-tokenizer.get_vocab_size() // 32), np.int32)
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    for token in [*tokenizer.encode(text).ids, END[family]]:
        grammar.mask(bits)
        assert bits[token // 32] >> token % 32 & 1, tokenizer.id_to_token(token)
        grammar.accept(token)


def test_a_complete_text_allows_the_end_tokens_and_nothing_else():
    grammar = GRAMMARS.compile(OBJECT)
    for token in TINY.encode('{"a": 1}').ids:
        assert not set(EOS) & set(allowed(grammar))
        grammar.accept(token)
    assert set(allowed(grammar)) == set(EOS)
    for end in EOS:
        ended = grammar.copy()
        ended.accept(end)
        assert set(allowed(ended)) == set(EOS)


def test_a_text_that_may_go_on_allows_the_end_tokens_as_well():
    grammar = GRAMMARS.compile(json_schema({"type": "integer"}))
    grammar.accept(IDS["1"])
    assert set(EOS) < set(allowed(grammar))


def test_added_tokens_and_padding_are_never_allowed(family: Family, real: Grammars):
    """Within a string nearly every token is."""
    tokenizer, grammar = qwen_tokenizer_file(family), real.compile(OBJECT)
    for token in tokenizer.encode('{"a').ids:
        grammar.accept(token)
    padded = {"qwen3": 151936, "qwen3_5": 248320}[family]
    ids = allowed(grammar, padded // 32)
    assert ids.size > 0.9 * padded
    assert not set(ids) & set(tokenizer.get_added_tokens_decoder())
    assert ids.max() < tokenizer.get_vocab_size()


@pytest.mark.parametrize("vocab", [VOCAB, VOCAB + 1, VOCAB + 31, VOCAB + 32, VOCAB + 33])
def test_ids_that_the_tokenizer_lacks_are_never_allowed(vocab: int):
    grammar = Grammars(TINY, vocab, EOS).compile(json_schema({}))
    assert allowed(grammar, -(-vocab // 32) + 1).max() < VOCAB
    with pytest.raises(ValueError, match="Invalid buffer size"):
        grammar.mask(np.zeros(-(-vocab // 32) - 1, np.int32))


@pytest.mark.parametrize("name", ["<|im_start|>", "<think>", "e\u0301", "a b"])
def test_text_that_is_forced_is_forced_to_the_byte(name: str):
    """Though a tokenizer would compose the accent and read the added token."""
    schema = {
        "type": "object",
        "properties": {name: {"const": name}},
        "required": [name],
        "additionalProperties": False,
    }
    text = random_text(GRAMMARS.compile(json_schema(schema)), random.Random(0), 0)
    assert json.loads(text) == {name: name}


@pytest.mark.parametrize("text", ["", "{", '{"a"', '{"a":', '{"a": 1', '{"a": 1,', '{"a": [', '{"a": [1,', '{"a": 1}'])
def test_white_space_ends(text: str):
    grammar = GRAMMARS.compile(OBJECT)
    for byte in text.encode():
        grammar.accept(IDS[chr(byte).replace(" ", "Ġ")])
    spaces, most = b"", 66  # a break of two characters, then an indentation
    while blank := [id for id in allowed(grammar) if TINY_BYTES[id] and not TINY_BYTES[id].strip(WHITESPACE)]:
        spaces += TINY_BYTES[blank[-1]]
        assert len(spaces) <= most
        grammar.accept(blank[-1])
    assert bool(spaces) == (text not in ("", '{"a": 1}'))


def test_a_copy_goes_its_own_way():
    grammar = GRAMMARS.compile(json_schema({"enum": ["ab", "ac"]}))
    for token in TINY.encode('"a').ids:
        grammar.accept(token)
    copy = grammar.copy()
    copy.accept(IDS["b"])
    assert set(allowed(copy)) == {IDS['"']}
    assert set(allowed(grammar)) == {IDS[letter] for letter in "bc"}


def test_a_token_that_was_not_allowed_fails_its_sequence_only():
    grammar = GRAMMARS.compile(OBJECT)
    copy = grammar.copy()
    with pytest.raises(UsageError, match="structured output ended early, token"):
        grammar.accept(IDS["x"])
    bits = np.full(WORDS, -1, np.int32)
    with pytest.raises(UsageError, match="structured output ended early"):
        grammar.mask(bits)
    assert not bits.any()
    assert IDS["{"] in allowed(copy)


def test_a_pattern_that_needs_too_many_states_fails_its_sequence_only():
    grammar = GRAMMARS.compile(json_schema({"type": "string", "pattern": "^.*a.{500}$"}))
    rng = random.Random(1)
    with pytest.raises(UsageError, match="too many"):
        random_text(grammar, rng, 100_000)
    assert json.loads(random_text(GRAMMARS.compile(OBJECT), rng, 0)) == {"": ""}


def test_the_trie_is_made_once_and_when_first_asked_for(monkeypatch: pytest.MonkeyPatch):
    made = []
    tokenizer_class = grammar_module.LLTokenizer
    monkeypatch.setattr(
        grammar_module, "LLTokenizer", lambda *args, **named: made.append(1) or tokenizer_class(*args, **named)
    )
    grammars = Grammars(TINY, VOCAB, EOS)
    assert not made
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(grammars.compile, [OBJECT] * 8))
    assert len(made) == 1


def test_a_model_without_an_end_token_has_no_structured_output():
    with pytest.raises(UsageError, match="no end token"):
        Grammars(TINY, VOCAB, []).compile(OBJECT)


@pytest.mark.parametrize("kind", [REFERENCE, *CPU_KINDS], ids=str)
def test_a_model_under_masks_writes_what_the_schema_says(tiny_bundle: Callable[[str], Path], kind: Kind):
    """The row of the sampling tables is written by hand before each step."""
    schema = {
        "type": "object",
        "properties": {"verse": {"type": "integer", "minimum": 1, "maximum": 99}, "said": {"enum": ["yes", "no"]}},
        "required": ["verse", "said"],
        "additionalProperties": False,
    }
    booted = kind.boot(tiny_bundle("tiny-qwen3_5"))
    engine, model = booted.engine, booted.bundle.manifest["model"]
    ends = model["eos_token_ids"]
    grammars = Grammars(booted.tokenizer, model["real_vocab_size"], ends)
    io = booted.executor.io("prefill-t16-c64")  # the tables are shared by all buckets
    ended = 0
    for seed in range(8):
        grammar, text, slot = grammars.compile(json_schema(schema)), b"", seed % engine.slots
        engine.admit(slot, SamplingOptions(temperature=2.0, seed=seed))
        io["sampling.ints"][slot, INTS.index("flags")] |= GRAMMAR
        grammar.mask(io["sampling.grammar"][slot])
        booted.executor.seat_written(slot)
        choice = engine.prefill_chunk(slot, 0, booted.tokenizer.encode("And the LORD said").ids)
        for _ in range(100):  # a small model may fill the room with blanks, which the schema allows
            if choice.token in ends:
                jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
                ended += 1
                break
            assert choice.status == 0
            text += booted.token_bytes[choice.token]
            grammar.accept(choice.token)
            grammar.mask(io["sampling.grammar"][slot])
            booted.executor.seat_written(slot)
            (choice,) = engine.decode([slot])
    assert ended >= 2
