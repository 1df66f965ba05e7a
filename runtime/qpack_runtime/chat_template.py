"""A bundle's chat template, compiled once in Jinja's immutable sandbox: messages -> prompt, as transformers renders it.

Block trimming, `raise_exception`, `tojson` and `strftime_now` are what transformers gives a template. So is what the
sandbox leaves open and is closed here: `dict` is a function, because the class lends its methods to change a message,
and a namespace takes no underscored name. `lipsum`, `cycler` and `joiner` are not there: no chat template needs them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from qpack_schemas.errors import InputError, QpackError, UsageError

Message = dict[str, Any]
TEMPLATE = "model/chat_template.jinja"
MOST_CHARACTERS = 4_000_000  # of a prompt
LONGEST_REASON = 500  # characters of what a template says when it refuses, which can hold all of the messages
GIVEN = {"messages", "tools", "add_generation_prompt"}  # what no variable of a request may stand for
# Qwen's templates know neither: they drop or refuse such a message.
ROLES = {"developer": "system", "function": "tool"}


def today(form: str) -> str:
    return datetime.now().strftime(form)


class Template:
    """`source` compiled; `name` is how errors call it. Raises UsageError for a source that is no template."""

    def __init__(self, source: str, name: str = TEMPLATE, *, now: Callable[[str], str] = today):
        self._name = name
        self._environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], keep_trailing_newline=False
        )
        self._environment.globals = {
            "raise_exception": _refuse,
            "strftime_now": now,
            "namespace": _Namespace,
            "dict": _dict,
            "range": self._environment.globals["range"],  # the sandbox's own, of at most 100,000 numbers
        }
        self._environment.filters["tojson"] = _to_json
        try:
            tree = self._environment.parse(source)
            self._takes_parts = any(_called_content(loop.iter) for loop in tree.find_all(nodes.For))
            self._template = self._environment.from_string(tree)
        except Exception as error:  # of Jinja, or of Python where the nesting is too deep
            raise UsageError(f"the chat template can't be compiled: {_reason(error)}", where=name) from None

    @classmethod
    def read(cls, bundle: Path, *, now: Callable[[str], str] = today) -> "Template":
        """The bundle's template, named by its path. Raises InputError for a bundle without one."""
        path = bundle / TEMPLATE
        if not path.is_file():
            raise InputError("the bundle has no chat template", where=str(path), remedy="use --prompt")
        return cls(path.read_text(encoding="utf-8"), str(path), now=now)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool = True,
        most_characters: int = MOST_CHARACTERS,
    ) -> str:
        """The prompt of a conversation, ready for the assistant's answer unless `add_generation_prompt` is false.

        `messages` are what check_messages lets through, `tools` OpenAI's list; `variables` are whatever else the
        template knows (enable_thinking), chat_template_kwargs in a request. Raises UsageError if the template refuses
        them, and for a prompt of more than `most_characters`."""
        variables = variables or {}
        if taken := sorted(variables.keys() & (GIVEN | self._environment.globals.keys())):
            raise UsageError(
                f"{taken[0]!r} is not for a request to set",
                where="chat_template_kwargs",
                remedy="leave it out; messages and tools have fields of their own",
            )
        try:
            prepared = [self._prepared(message, f"messages[{index}]") for index, message in enumerate(messages)]
            given = {"messages": prepared, "tools": tools, "documents": None}
            given |= {**variables, "add_generation_prompt": add_generation_prompt}
            return _joined(self._template.generate(given), most_characters)
        except QpackError:
            raise
        except MemoryError:
            raise UsageError(
                "the chat template needs too much memory for the messages", where="messages", remedy="send less text"
            ) from None
        except Exception as error:  # a template can raise whatever Python's operators do
            reason = f"the chat template refuses the messages: {_reason(error)}"
            raise UsageError(reason, where=self._name) from None

    def _prepared(self, message: Message, place: str) -> Message:
        """A message as templates expect it, from one as OpenAI's clients write it.

        As in transformers, what is null isn't there, and `reasoning` is `reasoning_content`. As in vLLM, the arguments
        of a call are a mapping, not its JSON text, and a list of text parts is one text, a line each, unless the
        template has a loop over content."""
        ready = {key: value for key, value in message.items() if value is not None}
        ready["role"] = ROLES.get(ready["role"], ready["role"])
        if "reasoning" in ready:
            ready.setdefault("reasoning_content", ready["reasoning"])
        if isinstance(content := ready.get("content"), list) and not self._takes_parts:
            ready["content"] = "\n".join(part["text"] for part in content)
        if "function_call" in ready:  # OpenAI's older spelling of one call
            ready["tool_calls"] = [{"type": "function", "function": ready.pop("function_call")}]
        if calls := ready.pop("tool_calls", None):
            ready["tool_calls"] = [_call(call, f"{place}.tool_calls[{index}]") for index, call in enumerate(calls)]
        return ready


def _call(call: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    function = call["function"]
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            raise UsageError(
                f"is not the text of a JSON object: {function['arguments'][:60]!r}",
                where=f"{place}.function.arguments",
                remedy='write an object, {"city": "Oslo"} say, as a string',
            )
    return {**call, "function": {**function, "arguments": arguments}}


def _joined(pieces: Any, most_characters: int) -> str:
    """The pieces of a prompt as one text. Raises UsageError for too many characters and for what UTF-8 can't spell."""
    kept, length = list[str](), 0
    for piece in pieces:
        kept.append(piece)
        if (length := length + len(piece)) > most_characters:
            raise UsageError(
                f"the prompt has more than {most_characters} characters", where="messages", remedy="send less text"
            )
    prompt = "".join(kept)
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"U+{ord(prompt[error.start]):04X}"
        raise UsageError(
            f"the prompt holds {half}, half of a surrogate pair, which is no text",
            where="messages",
            remedy="remove it, or send the whole character",
        ) from None
    return prompt


def _called_content(node: nodes.Node) -> bool:
    """Whether an expression is a variable, an attribute or an item called content."""
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return getattr(node, "name" if isinstance(node, nodes.Name) else "attr", None) == "content"


def _reason(error: Exception) -> str:
    """What an exception says, short, and text whatever messages it quotes."""
    text = str(error) or type(error).__name__
    return text[:LONGEST_REASON].encode("utf-8", "replace").decode("utf-8")


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


class _Namespace(Namespace):
    """Jinja's namespace, closed to names that Python itself looks for."""

    def __init__(*args: Any, **kwargs: Any):  # no `self`, so that namespace(self=...) works
        values = dict(*args[1:], **kwargs)
        for name in values:
            _refuse_underscore(name)
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _refuse_underscore(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"a namespace takes no name that begins with an underscore: {name!r}")
