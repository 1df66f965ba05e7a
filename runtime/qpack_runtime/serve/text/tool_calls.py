"""Tool calls in what a Qwen model writes, found while it writes.

Qwen2.5 and Qwen3 write `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`; Qwen3-Coder and Qwen3.5 write
`<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`, with newlines between.
"""

import json
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qpack_runtime.serve.text.tool_values import typed_value
from qpack_schemas.errors import InputError
from qpack_schemas.strict_json import parse_strict

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, END_THINK = "<think>", "</think>"
LONGEST_MARK = len("</function>") + 8 + len(CLOSE)  # characters, with the most white space in between

_FUNCTION = re.compile(r"\s*<function=\s*([^<>\s]+)\s*>(.*)</function>\s*", re.DOTALL)
# A value ends where a parameter or the function may begin or end, so that it may itself hold "</parameter>".
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>(.*?)</parameter>\s*(?=<parameter=|\Z)", re.DOTALL)


@dataclass(frozen=True)
class ToolCall:
    """`arguments` is the text of a JSON object."""

    name: str
    arguments: str


@dataclass(frozen=True)
class _Form:
    """How a call is spelled: what it begins with, and what may come next outside and inside a value, where a CLOSE by
    itself closes nothing."""

    begins: str
    outside: re.Pattern[str]
    inside: re.Pattern[str]


# Where a value is left without its end, the call is malformed but must not swallow the next: a newline ends a JSON
# string, which may not hold one, and the end of a function and its call ends a parameter.
_JSON = _Form("{", re.compile(f'"|{CLOSE}'), re.compile(r'"|\n|\\.', re.DOTALL))
_XML = _Form("<function=", re.compile(f"<parameter=|{CLOSE}"), re.compile(rf"</parameter>|</function>\s{{0,8}}{CLOSE}"))


class ToolCallParser:
    """Splits text that comes in pieces into visible text and whole calls; how it is cut into pieces changes nothing.

    `tools` is OpenAI's list; `thinking` says that the prompt ends within <think>. Inside <think>...</think> a
    <tool_call> is text. A call that is malformed or never ends is the text it was. Where there are calls, text before,
    between and behind them that is only white space is dropped. All that is held back is the beginning of a mark, a
    call that isn't whole, and such white space."""

    def __init__(self, tools: Sequence[Mapping[str, Any]], *, thinking: bool = False):
        self._parameters = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools}
        self._thinking = thinking
        self._held = ""  # not yet given out; within a call all of it, from its OPEN on
        self._in_call = False
        self._form: _Form | None = None  # of the call, once its first characters show it
        self._inside = False  # a value of the call
        self._scanned = 0  # how far into _held the end of the call has been looked for
        self._blank = ""  # white space with which a text begins, or which is all of it
        self._in_text = False  # the text since the last call has more than white space
        self._calls = False

    def push(self, text: str) -> list[str | ToolCall]:
        """What can be given out now that `text` has come."""
        self._held += text
        return self._given(self._found(last=False))

    def finish(self) -> list[str | ToolCall]:
        """What was held back, now that nothing more comes."""
        given = self._given(self._found(last=True))
        if self._blank and not self._calls:
            given.append(self._blank)
        self._blank = ""
        return given

    def _given(self, found: Iterator[str | ToolCall]) -> list[str | ToolCall]:
        """Without the white space at the edges of calls, and with neighbouring texts as one."""
        given: list[str | ToolCall] = []
        for item in found:
            if isinstance(item, ToolCall):
                given.append(item)
                self._blank, self._in_text, self._calls = "", False, True
            elif self._in_text or not item.isspace():
                text, self._blank, self._in_text = self._blank + item, "", True
                if given and isinstance(before := given[-1], str):
                    given[-1] = before + text
                else:
                    given.append(text)
            else:
                self._blank += item
        return given

    def _found(self, last: bool) -> Iterator[str | ToolCall]:
        """Texts, none empty, and calls, until more text is needed; `last` says that no more comes."""
        while self._held:
            if self._in_call:
                whole = yield from self._call()
                if not whole:
                    if last:
                        yield self._taken(len(self._held))
                    return
                continue
            marks = (END_THINK,) if self._thinking else (OPEN, THINK)
            found = re.search("|".join(marks), self._held)
            if found is None:
                if kept := self._taken(len(self._held) - (0 if last else _begun(self._held, marks))):
                    yield kept
                return
            self._in_call = found.group() == OPEN
            if text := self._taken(found.start() if self._in_call else found.end()):
                yield text
            if self._in_call:
                self._begin()
            else:
                self._thinking = not self._thinking

    def _begin(self) -> None:
        """_held begins with OPEN."""
        self._form, self._inside, self._scanned = None, False, len(OPEN)

    def _call(self) -> Generator[str | ToolCall, None, bool]:
        """Yields the call that _held begins with, or the text it turns out to be. Returns False if more must come."""
        if self._form is None:
            body = self._held[self._scanned :].lstrip()
            self._scanned = len(self._held) - len(body)
            self._form = next((form for form in (_JSON, _XML) if body.startswith(form.begins)), None)
            if self._form is None:
                if _XML.begins.startswith(body):
                    return False
                self._in_call = False
                yield self._taken(len(OPEN))
                return True
        if (end := self._end(self._form)) is None:
            return False
        body = self._held[len(OPEN) : end - len(CLOSE)]
        call = _json_call(body) if self._form is _JSON else self._xml_call(body)
        # Perhaps only the call before this one was left without an end.
        inner = self._held.rfind(OPEN, len(OPEN), end) if call is None else -1
        if inner >= 0:
            yield self._taken(inner)
            self._begin()
        else:
            self._in_call = False
            text = self._taken(end)
            yield call or text
        return True

    def _end(self, form: _Form) -> int | None:
        """The index behind the CLOSE of the call that _held begins with, or None if it hasn't come."""
        while found := (form.inside if self._inside else form.outside).search(self._held, self._scanned):
            self._scanned = found.end()
            if found.group().endswith(CLOSE):
                return found.end()
            if not found.group().startswith("\\"):
                self._inside = not self._inside
        self._scanned = max(self._scanned, len(self._held) - LONGEST_MARK)
        return None

    def _xml_call(self, body: str) -> ToolCall | None:
        if (function := _FUNCTION.fullmatch(body)) is None:
            return None
        name, inner = function.group(1), function.group(2).rstrip()
        arguments: dict[str, Any] = {}
        at = 0
        while at < len(inner):
            if (found := _PARAMETER.match(inner, at)) is None or found.group(1) in arguments:
                return None
            if "\n<parameter=" in (value := found.group(2).removeprefix("\n").removesuffix("\n")):
                return None  # rather a parameter left without its end than a value that holds another
            arguments[found.group(1)] = typed_value(value, self._parameters.get(name), found.group(1))
            at = found.end()
        return ToolCall(name, json.dumps(arguments, ensure_ascii=False))

    def _taken(self, length: int) -> str:
        taken, self._held = self._held[:length], self._held[length:]
        return taken


def _json_call(body: str) -> ToolCall | None:
    try:
        call = parse_strict(body, "tool call")
    except InputError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        return None
    if not isinstance(call.get("arguments"), dict):
        return None
    return ToolCall(call["name"], json.dumps(call["arguments"], ensure_ascii=False))


def _begun(text: str, marks: Sequence[str]) -> int:
    """How many characters at the end of a text may be the beginning of a mark; each has its only < in front."""
    at = text.rfind("<")
    return len(text) - at if at >= 0 and any(mark.startswith(text[at:]) for mark in marks) else 0
