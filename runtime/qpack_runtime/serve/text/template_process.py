"""Chat templates rendered in a child process with limits, because one can loop for ever or take all memory, and Python
can't stop a thread. The parent's side; render_child.py is the child's.
"""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from qpack_runtime.chat_template import MOST_CHARACTERS, TEMPLATE, Message
from qpack_schemas.errors import InputError, UsageError

CHILD = "qpack_runtime.serve.text.render_child"
START_SECONDS = 30.0  # for Python and Jinja to load and the template to compile, on a slow and busy host
LENGTH = 4  # bytes of a frame's length, big endian
# What Python needs to find itself and its libraries, and a template today's date; above all no secrets.
ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "TZ")
FRUGAL = {"MALLOC_MMAP_THRESHOLD_": "131072"}  # glibc gives back what a large request took, 90 MB for 4M characters


class TemplateProcess:
    """One child that renders requests one after another. It is ended when a request takes too long or its client leaves
    in the middle, and the next request starts another; memory and processor time it limits by itself.

    The template is the one that the bundle has now: each child gets it from here, also when the folder has been
    exchanged for a newer bundle's meanwhile. A bundle without a template has no child, and render says so."""

    def __init__(self, bundle: Path, *, seconds: float = 4.0, most_characters: int = MOST_CHARACTERS):
        self._arguments = (repr(seconds), str(most_characters))
        self._template = (bundle / TEMPLATE).read_bytes() if (bundle / TEMPLATE).is_file() else None
        self._seconds, self._longest_answer = seconds, 12 * most_characters + (1 << 16)  # \\u escapes of two halves
        self._child: Process | None = None
        self._turn = asyncio.Lock()
        self._closed = False

    async def start(self) -> None:
        """Starts the child and waits until it has compiled the template. Raises UsageError for a template that doesn't
        compile, InputError if the child doesn't start."""
        if self._template is not None:
            async with self._turn:
                await self._living()

    async def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt of a conversation, as Template.render makes it. Raises UsageError if the template refuses the
        messages, or needs too much time, memory or text for them."""
        if self._template is None:
            raise UsageError("the model has no chat template", remedy="send the prompt itself to /v1/completions")
        request = _frame({
            "messages": messages, "tools": tools, "variables": variables,
            "add_generation_prompt": add_generation_prompt,
        })  # fmt: skip
        async with self._turn:
            # A child that somebody killed between two requests is no fault of the second, so that has two chances.
            answer = await self._asked(request) or await self._asked(request)
        if answer is None:
            raise UsageError(
                "the chat template needs too much memory for the messages", where="messages", remedy="send less text"
            )
        if error := answer.get("error"):
            raise UsageError(error["message"], where=error["where"], remedy=error["remedy"])
        return answer["prompt"]

    async def close(self) -> None:
        """Ends the child. A request that is being rendered fails."""
        self._closed = True
        await self._end()
        async with self._turn:
            await self._end()

    async def _asked(self, request: bytes) -> dict[str, Any] | None:
        """What the child answers, or None if it died over it. A child that has not answered doesn't outlive this, since
        its answer would be taken for the next request's."""
        child, answered = await self._living(), False
        try:
            async with asyncio.timeout(self._seconds):
                answer = await self._exchanged(child, request)
            answered = answer is not None
            return answer
        except TimeoutError:
            raise UsageError(
                f"the chat template needs more than {self._seconds:g} s for the messages",
                where="messages",
                remedy="send fewer or shorter messages",
            ) from None
        finally:
            if not answered:
                await self._end()

    async def _exchanged(self, child: Process, request: bytes) -> dict[str, Any] | None:
        assert child.stdin is not None
        try:
            child.stdin.write(request)
            await child.stdin.drain()
            return await self._answer(child)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def _answer(self, child: Process) -> dict[str, Any]:
        assert child.stdout is not None
        length = int.from_bytes(await child.stdout.readexactly(LENGTH), "big")
        if length > self._longest_answer:
            raise ConnectionError(f"the child announces an answer of {length} bytes")
        return json.loads(await child.stdout.readexactly(length))

    async def _living(self) -> Process:
        """The child, started if there is none. For whoever holds the turn."""
        if self._closed:
            raise UsageError("the server is being stopped")
        if self._child is not None and self._child.returncode is None:
            return self._child
        await self._end()
        self._child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", CHILD, *self._arguments),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ} | FRUGAL,
            start_new_session=True,  # a terminal's Ctrl-C is for the server
        )
        try:
            await self._compiled(self._child)
        except BaseException:
            await self._end()
            raise
        return self._child

    async def _compiled(self, child: Process) -> None:
        assert child.stdin is not None
        assert child.stderr is not None
        assert self._template is not None
        try:
            async with asyncio.timeout(START_SECONDS):
                child.stdin.write(len(self._template).to_bytes(LENGTH, "big") + self._template)
                await child.stdin.drain()
                answer = await self._answer(child)
        except TimeoutError:
            raise UsageError(f"the chat template is not compiled after {START_SECONDS:g} s", where=TEMPLATE) from None
        except (asyncio.IncompleteReadError, ConnectionError):
            said = (await child.stderr.read()).decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise InputError(
                f"the process for the chat template did not start: {said or 'it took too much time or memory'}",
                where=TEMPLATE,
            ) from None
        if error := answer.get("error"):
            raise UsageError(error["message"], where=error["where"], remedy=error["remedy"])

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            if child.returncode is None:
                # Process.kill would ask for the exit status first, and take it from the loop, which waits for it too.
                with suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
            await child.wait()


def _frame(request: Mapping[str, Any]) -> bytes:
    try:
        data = json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        raise UsageError("is nested too deeply to be rendered", where="messages") from None
    return len(data).to_bytes(LENGTH, "big") + data
