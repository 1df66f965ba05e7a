"""transformers and the tokenizers library are the oracles."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from checkpoints import TINY_QWEN3, TINY_QWEN3_5, TOKENIZER_FILES, read_config, write_json
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.checkpoint.tokenizer_facts import TokenizerFacts, read_chat_template, read_tokenizer
from qpack_schemas.errors import InputError, QpackError, UnsupportedError

CONFIG = read_config(TINY_QWEN3)
VOCAB = 512  # of the tiny models; the tokenizer fills it
END_OF_TEXT, IM_END = 509, 511
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The tokenizer files of the tiny Qwen3."""
    for name in TOKENIZER_FILES:
        shutil.copyfile(TINY_QWEN3 / name, tmp_path / name)
    return tmp_path


def edit(path: Path, **changes: Any) -> None:
    write_json(path, {**json.loads(path.read_text(encoding="utf-8")), **changes})


def refusal(directory: Path, kind: type[QpackError] = InputError, vocab_size: int = VOCAB) -> QpackError:
    with pytest.raises(kind) as caught:
        read_tokenizer(ModelText(directory), CONFIG, vocab_size)
    assert type(caught.value) is kind
    return caught.value


@pytest.mark.parametrize("source", [TINY_QWEN3, TINY_QWEN3_5])
def test_the_facts_are_those_of_the_libraries(source: Path):
    facts = read_tokenizer(ModelText(source), read_config(source), VOCAB)
    assert facts.real_vocab_size == Tokenizer.from_file(str(source / "tokenizer.json")).get_vocab_size()
    assert facts.eos_token_ids == (AutoTokenizer.from_pretrained(source).eos_token_id,)
    assert facts.files == ("generation_config.json", "tokenizer.json", "tokenizer_config.json")


def test_the_model_may_pad_its_vocabulary(directory: Path):
    """Qwen3 has 151669 tokens and 151936 rows."""
    assert read_tokenizer(ModelText(directory), CONFIG, VOCAB + 99) == read_tokenizer(
        ModelText(directory), CONFIG, VOCAB
    )


def test_added_tokens_count_as_well_as_the_vocabulary(directory: Path):
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|new|>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    assert read_tokenizer(ModelText(directory), CONFIG, VOCAB + 1).real_vocab_size == VOCAB + 1
    error = refusal(directory)
    assert "'<|new|>' has id 512" in error.message
    assert "vocab_size is 512" in error.message


ID_LISTS = st.lists(st.integers(0, VOCAB - 1), max_size=3)
SPELLINGS = st.one_of(st.none(), st.integers(0, VOCAB - 1), ID_LISTS)


def as_set(spelling: int | list[int] | None) -> set[int]:
    return {spelling} if isinstance(spelling, int) else set(spelling or ())


@given(top=SPELLINGS, nested=SPELLINGS, generation=SPELLINGS)
def test_eos_ids_are_united_from_wherever_they_stand(
    tmp_path_factory: pytest.TempPathFactory, top: Any, nested: Any, generation: Any
):
    directory = tmp_path_factory.mktemp("eos")
    for name in TOKENIZER_FILES:
        shutil.copyfile(TINY_QWEN3 / name, directory / name)
    edit(directory / "generation_config.json", eos_token_id=generation)
    facts = read_tokenizer(ModelText(directory), {"eos_token_id": top, "text_config": {"eos_token_id": nested}}, VOCAB)
    assert facts.eos_token_ids == tuple(sorted({IM_END} | as_set(top) | as_set(nested) | as_set(generation)))


@pytest.mark.parametrize(
    ("eos_token", "expected"),
    [("<|endoftext|>", (END_OF_TEXT,)), ({"content": "<|im_end|>", "lstrip": False}, (IM_END,)), (None, ())],
)
def test_the_tokenizer_names_its_eos_in_several_ways(directory: Path, eos_token: Any, expected: tuple[int, ...]):
    (directory / "generation_config.json").unlink()
    edit(directory / "tokenizer_config.json", eos_token=eos_token)
    assert read_tokenizer(ModelText(directory), {}, VOCAB).eos_token_ids == expected


def test_tokenizer_json_is_enough(directory: Path):
    for name in ("generation_config.json", "tokenizer_config.json"):
        (directory / name).unlink()
    assert read_tokenizer(ModelText(directory), CONFIG, VOCAB) == TokenizerFacts(VOCAB, (IM_END,), ("tokenizer.json",))


@pytest.mark.parametrize("spelling", [VOCAB, [IM_END, VOCAB + 50]])
def test_an_eos_id_beyond_the_vocabulary_is_named_with_its_place(directory: Path, spelling: Any):
    """Such an id is never sampled, so that no text would ever end."""
    edit(directory / "generation_config.json", eos_token_id=spelling)
    error = refusal(directory, vocab_size=VOCAB + 99)  # padded: the row exists, the token does not
    assert error.where == f"{directory / 'generation_config.json'}#/eos_token_id"
    assert str(spelling if isinstance(spelling, int) else spelling[1]) in error.message
    assert str(VOCAB) in error.message


@pytest.mark.parametrize("spelling", ["511", True, 1.5, [511, None], -1, [[511]]])
def test_an_eos_id_of_a_wrong_type_is_named_with_its_place(directory: Path, spelling: Any):
    edit(directory / "generation_config.json", eos_token_id=spelling)
    assert refusal(directory).where == f"{directory / 'generation_config.json'}#/eos_token_id"


def test_an_eos_token_that_the_tokenizer_lacks_is_named(directory: Path):
    edit(directory / "tokenizer_config.json", eos_token="</s>")
    error = refusal(directory)
    assert "'</s>'" in error.message
    assert error.where == f"{directory / 'tokenizer_config.json'}#/eos_token"


def test_a_tokenizer_of_a_larger_model_is_refused_with_both_sizes(directory: Path):
    error = refusal(directory, vocab_size=500)
    assert "511" in error.message
    assert "500" in error.message


def test_an_absent_tokenizer_json_is_refused_with_the_remedy(directory: Path):
    (directory / "tokenizer.json").unlink()
    error = refusal(directory)
    assert error.where == str(directory / "tokenizer.json")
    assert "save a fast tokenizer" in error.remedy


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
        {"type": "WordPiece"},
        {"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "Strip", "content": " "}]},
        {"type": "Sequence", "decoders": []},
    ],
)
def test_a_decoder_that_is_not_byte_level_is_refused(directory: Path, decoder: Any):
    edit(directory / "tokenizer.json", decoder=decoder)
    error = refusal(directory, UnsupportedError)
    assert error.where == f"{directory / 'tokenizer.json'}#/decoder"


def test_a_sequence_of_byte_level_alone_is_byte_level(directory: Path):
    edit(directory / "tokenizer.json", decoder={"type": "Sequence", "decoders": [{"type": "ByteLevel"}]})
    assert read_tokenizer(ModelText(directory), CONFIG, VOCAB).real_vocab_size == VOCAB


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {}},
        {"model": None},
        {"model": {"vocab": {"a": "0"}}},
        {"model": {"vocab": {"a": -1}}},
        {"added_tokens": [{}]},
    ],
)
def test_a_malformed_vocabulary_is_refused(directory: Path, changes: dict[str, Any]):
    edit(directory / "tokenizer.json", **changes)
    assert "tokenizer.json" in refusal(directory).where


# The chat template.


def templates(directory: Path, in_file: str | None, in_config: Any) -> tuple[str | None, list[str]]:
    (directory / "chat_template.jinja").unlink()
    if in_file is not None:
        (directory / "chat_template.jinja").write_bytes(in_file.encode())
    edit(directory / "tokenizer_config.json", chat_template=in_config)
    return read_chat_template(ModelText(directory))


@pytest.mark.parametrize(
    ("in_file", "in_config"),
    [
        (TEMPLATE, None),
        (None, TEMPLATE),
        (TEMPLATE, "other"),
        (None, [{"name": "tool_use", "template": "other"}, {"name": "default", "template": TEMPLATE}]),
        (None, None),
    ],
)
def test_the_template_is_the_one_that_transformers_uses(directory: Path, in_file: str | None, in_config: Any):
    """TGI#3247, onnxsim#978: in chat_template.jinja alone, in tokenizer_config.json alone, in both."""
    text, _ = templates(directory, in_file, in_config)
    used = AutoTokenizer.from_pretrained(directory).chat_template
    assert text == (used["default"] if isinstance(used, dict) else used)


@pytest.mark.parametrize("in_config", ["other", [{"name": "default", "template": "other"}]])
def test_a_template_that_is_overruled_is_reported(directory: Path, in_config: Any):
    text, notes = templates(directory, TEMPLATE, in_config)
    assert text == TEMPLATE
    assert len(notes) == 1
    assert "chat_template.jinja" in notes[0]
    assert "tokenizer_config.json" in notes[0]


@pytest.mark.parametrize("in_file", [TEMPLATE, TEMPLATE + "\n", None])
def test_equal_templates_are_no_news(directory: Path, in_file: str | None):
    """Jinja drops one newline at the end."""
    assert templates(directory, in_file, TEMPLATE) == (in_file or TEMPLATE, [])


def test_crlf_is_no_difference(directory: Path):
    assert templates(directory, "a\r\nb", "a\nb") == ("a\nb", [])


@pytest.mark.parametrize("value", [7, {"default": "x"}, [{"name": "default"}], [{"name": "rag", "template": "x"}]])
def test_a_template_that_cannot_be_used_is_refused_with_its_place(directory: Path, value: Any):
    with pytest.raises(InputError) as caught:
        templates(directory, None, value)
    assert caught.value.where.startswith(f"{directory / 'tokenizer_config.json'}#/chat_template")


def test_a_template_in_another_encoding_is_refused(directory: Path):
    (directory / "chat_template.jinja").write_bytes("{# 配置 #}".encode("gbk"))
    with pytest.raises(InputError, match="not UTF-8"):
        read_chat_template(ModelText(directory))
