"""One blob into a registry: in one piece or in chunks, going on where the registry says that it has got to.

OCI distribution specification 1.1, "Pushing blobs".
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from qpack_delivery.oci.connection import Answer, Connection, RegistryError
from qpack_delivery.oci.modelpack import Layer

CHUNK_BYTES = 32 << 20  # as most weight files have; so much of each blob under way is held in memory
_MOST_FAILURES = 6  # in a row, with nothing moved in between


Read = Callable[[int, int], bytes]  # (offset, size) -> bytes


@dataclass
class _Session:
    url: str
    chunk: int  # bytes
    offset: int  # bytes that the registry has


def has_blob(connection: Connection, digest: str) -> bool:
    return connection.request("HEAD", f"blobs/{digest}", expect=(200, 404)).status == 200


def push_blob(connection: Connection, read: Read, layer: Layer, moved: Callable[[int], None]) -> None:
    """`read` gives the bytes of the blob, `moved` is told of those that the registry has. Raises RegistryError if the
    connection stays broken, or the registry doesn't take the blob."""
    session: _Session | None = None
    failures = told = 0
    broke = False  # since the session began, so that the registry may have lost it, or have bytes twice
    while True:
        try:
            session = session or _begin(connection)
            while layer.bytes - session.offset > session.chunk:
                _send_chunk(connection, session, read)
                moved(max(session.offset - told, 0))
                told, failures = max(told, session.offset), 0
            _finish(connection, session, read, layer)
            break
        except RegistryError as error:
            failures += 1
            if failures > _MOST_FAILURES or not (error.broken or (broke and error.status in (400, 404, 416))):
                raise
            time.sleep(min(0.25 * 2**failures, 30))
            session = _asked(connection, session) if session and error.broken else None
            broke = session is not None
        if session is None and has_blob(connection, layer.digest):  # only the answer had been lost
            break
    moved(layer.bytes - told)


def _begin(connection: Connection) -> _Session:
    answer = connection.request("POST", "blobs/uploads/", expect=(202,), body=b"")
    least = answer.headers.get("OCI-Chunk-Min-Length", "")
    chunk = max(CHUNK_BYTES, int(least) if least.isascii() and least.isdigit() else 0)
    return _Session(_location(answer), chunk, 0)


def _send_chunk(connection: Connection, session: _Session, read: Read) -> None:
    data = read(session.offset, session.chunk)
    answer = connection.request(
        "PATCH", session.url, expect=(202,), headers=_headers(session.offset, data), body=data, once=True
    )
    session.url, session.offset = _location(answer), session.offset + len(data)


def _finish(connection: Connection, session: _Session, read: Read, layer: Layer) -> None:
    data = read(session.offset, layer.bytes - session.offset)
    joint = "&" if "?" in session.url else "?"
    url = f"{session.url}{joint}digest={layer.digest}"
    connection.request("PUT", url, expect=(201, 204), headers=_headers(session.offset, data), body=data, once=True)


def _asked(connection: Connection, session: _Session) -> _Session | None:
    """Where the registry has got to; None if it has forgotten the session."""
    try:
        answer = connection.request("GET", session.url, expect=(204,))
    except RegistryError as error:
        if error.broken:
            raise
        return None
    reached = re.fullmatch(r"(?:bytes=)?0-([0-9]+)", answer.headers.get("Range", ""))
    if reached is None:
        return None
    last = int(reached[1])  # 0 is said of nothing as well
    return _Session(_location(answer), session.chunk, last + 1 if last else 0)


def _location(answer: Answer) -> str:
    location = answer.headers.get("Location")
    if not location:
        raise RegistryError("the registry names no place for the upload")
    return location


def _headers(offset: int, data: bytes) -> dict[str, str]:
    kind = {"Content-Type": "application/octet-stream"}
    return kind | {"Content-Range": f"{offset}-{offset + len(data) - 1}"} if offset or data else kind
