"""From the engine thread to the event loop, without letting go of the interpreter.

The loop's own `call_soon_threadsafe` writes to a socket, and while it does, the loop takes Python's lock and keeps it:
measured 0.2 ms of every step of the engine thread, and a millisecond at the 99th percentile. An eventfd that is written
with the lock held wakes the loop as well, which then runs when the engine thread is in its next step.
"""

import asyncio
import ctypes
import os
from collections import deque
from collections.abc import Callable
from typing import Any

_WRITE = ctypes.PyDLL(None).eventfd_write  # PyDLL keeps Python's lock during a call
_WRITE.argtypes = (ctypes.c_int, ctypes.c_uint64)


class Mailbox:
    """Calls that another thread posts, made by the loop in their order. Lives as long as the process."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop, self._calls = loop, deque[tuple[Callable[[Any], object], Any]]()
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.add_reader(self._descriptor, self._make_calls)

    def post(self, call: Callable[[Any], object], value: Any) -> None:
        """`call(value)` on the loop, for whoever calls from another thread."""
        self._calls.append((call, value))
        _WRITE(self._descriptor, 1)

    def _make_calls(self) -> None:
        os.eventfd_read(self._descriptor)
        try:
            while self._calls:
                call, value = self._calls.popleft()
                call(value)
        finally:
            if self._calls:  # behind one that failed
                _WRITE(self._descriptor, 1)
