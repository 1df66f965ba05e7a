"""Messages -> prompt, by the bundle's own chat template in Jinja's immutable sandbox.

Block trimming, `raise_exception`, `tojson` and `strftime_now` are what transformers gives a template.
"""

import json
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from qpack_schemas.errors import InputError, UnsupportedError, UsageError
from qpack_schemas.strict_json import load_strict, parse_strict

Message = dict[str, Any]
TEMPLATE = "model/chat_template.jinja"


def _today(form: str) -> str:
    return datetime.now().strftime(form)


def render(bundle: Path, messages: Sequence[Message], *, now: Callable[[str], str] = _today) -> str:
    """The prompt of a conversation, ready for the assistant's answer. `now` is the template's strftime_now.

    Raises UsageError for messages the template refuses, UnsupportedError for images and the like, InputError for a
    template that can't be read or a bundle without one."""
    path = bundle / TEMPLATE
    if not path.is_file():
        raise InputError("the bundle has no chat template", where=str(path), remedy="use --prompt")
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], keep_trailing_newline=False
    )
    environment.globals |= {"raise_exception": _refuse, "strftime_now": now}
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        template = environment.from_string(path.read_text(encoding="utf-8"))
        return template.render(messages=messages, add_generation_prompt=True)
    except Exception as error:  # a template can raise whatever Python's operators do
        raise UsageError(f"the chat template refuses the messages: {error}", where=str(path)) from None


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def load_messages(path: Path) -> list[Message]:
    """The messages in a JSON file, or on stdin for `-`. Raises InputError or UsageError, naming the place."""
    if str(path) == "-":
        return check_messages(parse_strict(sys.stdin.read(), "stdin"), "stdin")
    return check_messages(load_strict(path), str(path))


def check_messages(messages: object, where: str) -> list[Message]:
    """Messages as OpenAI writes them: a list of {role, content}, the content text or a list of text parts."""
    if not isinstance(messages, list) or not messages:
        raise UsageError("is not a list of messages", where=where, remedy='write [{"role": "user", "content": "..."}]')
    for index, message in enumerate(messages):
        place = f"{where}#/{index}"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise UsageError("is not a message with a role", where=place)
        content = message.get("content")
        parts = content if isinstance(content, list) else []
        for part in parts:
            if not isinstance(part, dict) or part.get("type") != "text":
                kind = part.get("type") if isinstance(part, dict) else part
                raise UnsupportedError(f"content of type {kind!r} is not supported; only text is", where=place)
        if not isinstance(content, (str, list)) and not message.get("tool_calls"):
            raise UsageError("has no content", where=place)
    return [dict(message) for message in messages]
