"""Messages as OpenAI writes them: read, checked, and rendered by the bundle's chat template (chat_template.py)."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qpack_runtime.chat_template import Message, Template, today
from qpack_schemas.errors import UnsupportedError, UsageError
from qpack_schemas.strict_json import load_strict, parse_strict

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
TEXTS = ("name", "tool_call_id", "reasoning_content", "reasoning")  # optional fields that are text
OWNERS = {"tool_calls": "assistant", "function_call": "assistant", "tool_call_id": "tool"}


def render(
    bundle: Path,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
    now: Callable[[str], str] = today,
) -> str:
    """The prompt of a conversation, ready for the assistant's answer, as Template.render makes it, in this process.

    `now` is the template's strftime_now. Raises UsageError for messages the template refuses, InputError for a bundle
    without a template."""
    return Template.read(bundle, now=now).render(messages, tools, variables)


def load_messages(path: Path) -> list[Message]:
    """The messages in a JSON file, or on stdin for `-`. Raises InputError or UsageError, naming the place."""
    if str(path) == "-":
        return check_messages(parse_strict(sys.stdin.read(), "stdin"), "stdin: messages")
    return check_messages(load_strict(path), f"{path}: messages")


def check_messages(messages: object, where: str = "messages") -> list[Message]:
    """Messages as OpenAI writes them: a list of {role, content}, the content text, a list of text parts, or null
    beside tool_calls. Fields that aren't OpenAI's are left to the template.

    Raises UsageError or UnsupportedError that names the place (`messages[3].content`), `where` being its beginning."""
    if not isinstance(messages, list) or not messages:
        raise UsageError("is not a list of messages", where=where, remedy='write [{"role": "user", "content": "..."}]')
    for index, message in enumerate(messages):
        _check_message(message, f"{where}[{index}]")
    return [dict(message) for message in messages]


def _check_message(message: object, place: str) -> None:
    if not isinstance(message, dict):
        raise UsageError(f"is not a message: {_shown(message)}", where=place, remedy="write an object with a role")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise UsageError(
            f"is not a role: {_shown(role)}",
            where=f"{place}.role",
            remedy=f"use one of {', '.join(ROLES)}",
        )
    for field, owner in OWNERS.items():
        if message.get(field) is not None and role not in (owner, "function" if owner == "tool" else owner):
            raise UsageError(
                f"is not for a message of role {role!r}", where=f"{place}.{field}", remedy=f"only {owner} has it"
            )
    for field in TEXTS:
        if message.get(field) is not None:
            _check_text(message[field], f"{place}.{field}")
    _check_calls(message, place)
    _check_content(message, place)


def _check_content(message: Message, place: str) -> None:
    content, place = message.get("content"), f"{place}.content"
    if content is None:
        if not message.get("tool_calls") and message.get("function_call") is None:
            raise UsageError("has no content", where=place, remedy="only an assistant's tool_calls go without")
    elif isinstance(content, list):
        for index, part in enumerate(content):
            if not isinstance(part, dict) or part.get("type") != "text":
                kind = part.get("type") if isinstance(part, dict) else part
                raise UnsupportedError(
                    f"content of type {_shown(kind)} is not supported; only text is", where=f"{place}[{index}]"
                )
            _check_text(part.get("text"), f"{place}[{index}].text")
    else:
        _check_text(content, place)


def _check_calls(message: Message, place: str) -> None:
    calls, older = message.get("tool_calls"), message.get("function_call")
    if older is not None:
        if calls:
            raise UsageError("stands beside tool_calls", where=f"{place}.function_call", remedy="keep tool_calls")
        _check_function(older, f"{place}.function_call")
    if calls is None:
        return
    if not isinstance(calls, list):
        raise UsageError(f"is not a list: {_shown(calls)}", where=f"{place}.tool_calls", remedy="write [] or null")
    for index, call in enumerate(calls):
        here = f"{place}.tool_calls[{index}]"
        if not isinstance(call, dict):
            raise UsageError(f"is not a call: {_shown(call)}", where=here, remedy="write an object with a function")
        if call.get("type", "function") != "function":
            raise UnsupportedError(
                f"a call of type {_shown(call['type'])} is not supported; only function is", where=f"{here}.type"
            )
        if call.get("id") is not None:
            _check_text(call["id"], f"{here}.id")
        _check_function(call.get("function"), f"{here}.function")


def _check_function(function: object, place: str) -> None:
    if not isinstance(function, dict):
        raise UsageError(f"is not a function: {_shown(function)}", where=place, remedy="write its name and arguments")
    _check_text(function.get("name"), f"{place}.name")
    arguments = function.get("arguments")
    if arguments is not None and not isinstance(arguments, dict):
        _check_text(arguments, f"{place}.arguments")


def _check_text(value: object, place: str) -> None:
    if not isinstance(value, str):
        raise UsageError(f"is not text: {_shown(value)}", where=place, remedy="write a string")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"U+{ord(value[error.start]):04X}"
        raise UsageError(
            f"holds {half}, half of a surrogate pair, which is no text",
            where=place,
            remedy="remove it, or send the whole character",
        ) from None


def _shown(value: object) -> str:
    """A JSON value, short enough for a message."""
    try:
        text = json.dumps(value)
    except (ValueError, TypeError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."
