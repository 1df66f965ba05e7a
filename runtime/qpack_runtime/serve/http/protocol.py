"""Uvicorn's HTTP/1.1 connection with two deadlines that it lacks: for a request to come, and for a reader to read."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 15.0  # from a connection, or the first byte behind an answer, to the end of the next head
READ_SECONDS = 60.0  # that a full send buffer may stay full
PIPELINED_BYTES = 1 << 16  # behind a request that is being answered: what may come while it is watched for the end


class Connection(H11Protocol):
    """A connection that misses a deadline is cut, so that half-open and stuck ones don't pile up."""

    _head_deadline: asyncio.TimerHandle | None = None
    _read_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._head_deadline = _cancelled(self._head_deadline)
            # Uvicorn stops reading where a client sends on, and would not see it leave.
            if self.conn.their_state is h11.DONE and len(self.conn.trailing_data[0]) <= PIPELINED_BYTES:
                self.flow.resume_reading()
        elif self._head_deadline is None:  # also for the rest of a body that nobody asked for
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

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP. The application, if it is at a request, hears that the client has left, so that there
        are not two answers; one that was sent before is cut off."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _await_head(self) -> None:
        self._head_deadline = self.loop.call_later(HEAD_SECONDS, self.transport.abort)


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
