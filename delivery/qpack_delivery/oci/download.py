"""One blob out of a registry into a file: going on behind what is there, and nothing kept that has another digest."""

import hashlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from urllib3.exceptions import HTTPError

from qpack_delivery.oci.connection import Connection, RegistryError, Response
from qpack_delivery.oci.modelpack import Layer
from qpack_schemas.errors import Finding, IntegrityError

_BLOCK = 1 << 20
_MOST_FAILURES = 6  # in a row, with nothing moved in between


def fetch_blob(connection: Connection, layer: Layer, file: Path, moved: Callable[[int], None]) -> None:
    """Makes `file` whole, which may hold the blob's beginning; synced to disk. `moved` is told of bytes that came.

    Raises IntegrityError, and removes the file, if the registry's bytes are not those of the digest; RegistryError if
    they can't be had."""
    failures = 0
    with file.open("ab+") as data:
        kept = data.seek(0, os.SEEK_END)
        digest = _digest(data, layer)
        while (held := data.tell()) < layer.bytes:
            try:
                _receive(connection, layer, data, digest, moved)
            except RegistryError as error:
                failures = 1 if data.tell() > held else failures + 1
                if failures > _MOST_FAILURES or not error.broken:
                    raise
                time.sleep(min(0.25 * 2**failures, 30))
        data.flush()
        os.fsync(data.fileno())
    if (found := f"sha256:{digest.hexdigest()}") == layer.digest:
        return
    file.unlink()
    if kept:  # the blame may be with what an earlier pull left
        fetch_blob(connection, layer, file, moved)
        return
    finding = Finding(layer.path, f"the registry's bytes have {found}, its manifest says {layer.digest}")
    raise IntegrityError(
        "the registry holds a damaged blob:", [finding], where=str(connection.reference), remedy="push the bundle again"
    )


def _digest(data: BinaryIO, layer: Layer):
    """Over what is there of the blob; what is longer than it is dropped."""
    if data.seek(0, os.SEEK_END) > layer.bytes:
        data.truncate(0)
    digest = hashlib.sha256()
    data.seek(0)
    while block := data.read(_BLOCK):
        digest.update(block)
    return digest


def _receive(connection: Connection, layer: Layer, data: BinaryIO, digest, moved: Callable[[int], None]) -> None:
    """Appends what one answer brings."""
    held = data.tell()
    headers = {"Range": f"bytes={held}-"} if held else {}
    answer = connection.open("GET", f"blobs/{layer.digest}", expect=(200, 206), headers=headers)
    with answer:
        skip = held if answer.status == 200 else held - _start(answer, connection)
        try:
            for block in answer.stream(_BLOCK, decode_content=False):
                fresh, skip = block[max(skip, 0) :], skip - len(block)
                if data.tell() + len(fresh) > layer.bytes:
                    message = f"sends more than the {layer.bytes} bytes of {layer.digest}"
                    raise RegistryError(message, where=str(connection.reference))
                data.write(fresh)
                digest.update(fresh)
                moved(len(block))
        except HTTPError as error:
            raise connection.broken(f"{connection.reference}", error) from None
        if data.tell() == held:
            raise RegistryError(f"sends nothing of {layer.digest}", where=str(connection.reference), broken=True)


def _start(answer: Response, connection: Connection) -> int:
    found = re.match(r"bytes ([0-9]+)-", answer.headers.get("Content-Range", ""))
    if found is None:
        raise RegistryError("answers 206 without a Content-Range", where=str(connection.reference))
    return int(found[1])
