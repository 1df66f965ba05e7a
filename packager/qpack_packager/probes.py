"""Texts and chats whose ids and prompts are recorded at build, so that the runtime can tell at boot that its tokenizer
and templates do the same.

A probe chat that the template refuses is recorded as refused. `strftime_now` gives its format back, because a prompt
with today's date in it has no digest.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from qpack_schemas.manifest import ChatProbe, Message, TextProbe

TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "  two  spaces,\ttab,\n\nnewlines\r\nand a trailing space ",
    "1234567890 3.14159 -42 0xFF 10^6",
    "Größe, naïve, Ærøskøbing, Łódź",
    "你好，世界！通义千问",  # noqa: RUF001 (fullwidth on purpose)
    "こんにちは 안녕하세요 สวัสดี שלום مرحبا",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2014 \u201cquoted\u201d \u00a0 e\u0301",
    "def f(x):\n    return {'a': [x ** 2, None]}  # comment",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>",
)
CHATS: tuple[list[Message], ...] = (
    [{"role": "user", "content": "Hello."}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "\u4f60\u597d \U0001f600"},
        {"role": "assistant", "content": "Hello.\n"},
        {"role": "user", "content": "{{ braces }} & <tags>"},
    ],
)


def text_probes(tokenizer_json: str) -> list[TextProbe]:
    """The ids of every probe text. Raises ValueError if the tokenizers library does not read the tokenizer."""
    try:
        tokenizer = Tokenizer.from_str(tokenizer_json)
    except Exception as error:  # the library raises bare Exception
        raise ValueError(str(error)) from None
    return [{"text": text, "ids": tokenizer.encode(text).ids} for text in TEXTS]


def chat_probes(template: str) -> list[ChatProbe]:
    """The sha256 of the prompt that each probe chat renders to."""
    return [{"messages": messages, "sha256": _digest(template, messages)} for messages in CHATS]


def _digest(template: str, messages: Sequence[Message]) -> str | None:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: form}
    environment.filters["tojson"] = _to_json
    try:
        prompt = environment.from_string(template).render(
            messages=messages, tools=None, documents=None, add_generation_prompt=True
        )
    except Exception:  # a template can raise whatever Python's operators do
        return None
    return hashlib.sha256(prompt.encode("utf-8")).hexdigest()


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def same_ids(source: Path, probes: Sequence[TextProbe]) -> bool:
    """Whether the file `source` gives the probes' ids; true if the library does not read it as it is."""
    try:
        tokenizer = Tokenizer.from_file(str(source))
    except Exception:  # the library raises bare Exception; a file in another encoding is no tokenizer to it
        return True
    return all(tokenizer.encode(probe["text"]).ids == probe["ids"] for probe in probes)
