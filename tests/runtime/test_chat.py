"""Chat templates render as transformers renders them, and nothing in one can reach the host."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from bundles import ASSETS
from qpack_runtime.chat import TEMPLATE, check_messages, load_messages, render
from qpack_schemas.errors import InputError, UnsupportedError, UsageError

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": 'Ça va?\n"quoted" <b>& 你好'},
    {"role": "assistant", "content": "Fine."},
    {"role": "user", "content": [{"type": "text", "text": "And {{ you }}?"}]},
]
TEMPLATES = {
    "plain": "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "trimmed blocks and json": "{%- for m in messages %}\n    {%- if m.content is string %}\n  {{ m | tojson }}\n"
    "    {%- else %}\n{{ m.content | tojson(indent=2) }}\n    {%- endif %}\n{%- endfor %}\n",
    "loop controls and namespaces": "{%- set ns = namespace(n=0) %}{%- for m in messages %}{%- set ns.n = ns.n + 1 %}"
    "{%- if m.role == 'system' %}{% continue %}{% endif %}{{ loop.index0 }}:{{ m.role.upper() }};{%- endfor %}"
    "{{ ns.n }}",
}


def bundle_with(folder: Path, template: str) -> Path:
    (folder / TEMPLATE).parent.mkdir(parents=True)
    (folder / TEMPLATE).write_text(template, encoding="utf-8", newline="")
    return folder


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_renders_as_in_transformers(name: str, tmp_path: Path):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(ASSETS / "tiny-qwen3" / "tokenizer.json"))
    wanted = tokenizer.apply_chat_template(
        TALK, chat_template=TEMPLATES[name], tokenize=False, add_generation_prompt=True
    )
    assert render(bundle_with(tmp_path, TEMPLATES[name]), TALK) == wanted


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('only one system message') }}",
        "{{ messages.__class__.__mro__[-1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for m in messages %}",
        "{{ undefined_function() }}",
    ],
)
def test_a_template_that_fails_or_reaches_out_is_an_error_for_people(template: str, tmp_path: Path):
    with pytest.raises(UsageError, match="chat template"):
        render(bundle_with(tmp_path, template), TALK)


def test_a_bundle_without_a_template_says_what_to_use_instead(tmp_path: Path):
    with pytest.raises(InputError, match="no chat template"):
        render(tmp_path, TALK)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video"])
def test_content_that_is_no_text_is_refused_by_name(kind: str):
    messages = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, {"type": kind, kind: {}}]}]
    with pytest.raises(UnsupportedError, match=kind):
        check_messages(messages, "messages.json")


@pytest.mark.parametrize("messages", [[], {}, "hello", [1], [{"content": "x"}], [{"role": "user"}], [{"role": 1}]])
def test_malformed_messages_are_named_with_their_place(messages: Any):
    with pytest.raises(UsageError, match=r"messages\.json"):
        check_messages(messages, "messages.json")


def test_messages_come_from_a_json_file(tmp_path: Path):
    path = tmp_path / "messages.json"
    path.write_text(json.dumps(TALK), encoding="utf-8")
    assert load_messages(path) == TALK
