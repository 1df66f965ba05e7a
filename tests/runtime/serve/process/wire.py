"""HTTP/1.1 on a raw connection, so that a test may send what no HTTP library would, and read as slowly as it likes."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

SMALL_BUFFER = 2048  # bytes of a receive buffer: the kernel's least is about that
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s, so that closing sends RST


@dataclass(frozen=True)
class Response:
    """`body` is whole, chunks put together."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def request(path: str, body: bytes | None = None, *, method: str = "POST", headers: str = "") -> bytes:
    """A request as it goes over the wire; `headers` are lines that end with CRLF."""
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{headers}"
    if body is not None:
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return f"{head}\r\n".encode("ascii") + (body or b"")


class Wire:
    """One connection. `narrow`: with a receive buffer so small that the server feels how slowly it is read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int, *, narrow: bool = False) -> "Wire":
        connection = socket.socket()
        connection.setblocking(False)
        if narrow:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        return cls(*await asyncio.open_connection(sock=connection, limit=1 if narrow else 1 << 20))

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next response. Raises IncompleteReadError if the connection ends before."""
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = (line.partition(": ") for line in lines[1:-2])
        return int(lines[0].split()[1]), {name.lower(): value for name, _, value in fields}

    async def pieces(self, headers: dict[str, str]) -> AsyncIterator[bytes]:
        """The body as it comes: its chunks, or all of it."""
        if "content-length" in headers:
            yield await self._reader.readexactly(int(headers["content-length"]))
            return
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)

    async def response(self) -> Response:
        status, headers = await self.head()
        return Response(status, headers, b"".join([piece async for piece in self.pieces(headers)]))

    async def bytewise(self) -> "Wire":
        """Reads to the end of the connection, a byte at a time, and gives what came to be read again."""
        come = asyncio.StreamReader()
        while byte := await self._reader.read(1):
            come.feed_data(byte)
            await asyncio.sleep(0)
        come.feed_eof()
        return Wire(come, self._writer)

    async def has_ended(self) -> None:
        """Waits until the server closes the connection. Raises AssertionError if it sends anything before."""
        with suppress(ConnectionError):
            assert not await self._reader.read(1)

    def close(self, *, reset: bool = False) -> None:
        if reset and (connection := self._writer.get_extra_info("socket")) is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self._writer.transport.abort()
        self._writer.close()


@asynccontextmanager
async def connected(port: int, *, narrow: bool = False, reset: bool = False) -> AsyncIterator[Wire]:
    """A connection that is closed at the end, or reset."""
    wire = await Wire.open(port, narrow=narrow)
    try:
        yield wire
    finally:
        wire.close(reset=reset)
