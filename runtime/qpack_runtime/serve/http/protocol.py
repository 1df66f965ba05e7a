"""Uvicorn's HTTP/1.1 connection with two deadlines that it lacks: for a head to come, and for a reader to read."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 15.0  # from a connection, or from the first byte of its next request, to the end of the head
READ_SECONDS = 60.0  # that a full send buffer may stay full


class Connection(H11Protocol):
    """A connection that misses a deadline is cut, so that half-open and stuck ones don't pile up."""

    _head_deadline: asyncio.TimerHandle | None = None
    _read_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._head_deadline = _cancelled(self._head_deadline)
        elif self._head_deadline is None:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_deadline = _cancelled(self._head_deadline)
        self._read_deadline = _cancelled(self._read_deadline)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._read_deadline = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._read_deadline = _cancelled(self._read_deadline)
        super().resume_writing()

    def _await_head(self) -> None:
        self._head_deadline = self.loop.call_later(HEAD_SECONDS, self.transport.abort)


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
