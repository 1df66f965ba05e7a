"""API keys from a file: one a line, with an optional name before it. The file is read again when it changes."""

import hmac
import os
from hashlib import sha256
from pathlib import Path

from qpack_runtime.serve.logs import log
from qpack_schemas.errors import InputError

SHORTEST = 16  # characters of a key; fewer can be guessed


class ApiKeys:
    """Raises InputError for a file that can't be read or holds no key, naming the line."""

    def __init__(self, path: Path):
        self._path = path
        self._stamp = self._stamped()
        try:
            self._clients = self._read()
        except OSError as error:
            raise InputError(
                f"can't be read: {error.strerror}", where=str(path), remedy="give a file with one key a line"
            ) from None

    def client(self, authorization: str | None) -> str | None:
        """The name of the client whose key a header `Bearer KEY` holds, or None. Takes as long for a wrong key as for
        a right one: every key is compared, each by its digest."""
        self._refresh()
        scheme, _, key = (authorization or "").partition(" ")
        given = sha256(key.strip(" ").encode("latin-1")).digest()  # the bytes that came, which ASGI has decoded so
        found = None
        for digest, name in self._clients:
            if hmac.compare_digest(digest, given):
                found = name
        return found if scheme.lower() == "bearer" else None

    def _refresh(self) -> None:
        """A new file that is wrong is logged, and the keys stay as they were: nobody is locked out by half a write."""
        if (stamp := self._stamped()) == self._stamp:
            return
        self._stamp = stamp
        try:
            self._clients = self._read()
            log("api_keys_read", path=str(self._path), keys=len(self._clients))
        except (InputError, OSError) as error:
            log("api_keys_kept", path=str(self._path), reason=str(error))

    def _stamped(self) -> tuple[int, int, int] | None:
        """What changes with the file; None while there is none."""
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size

    def _read(self) -> list[tuple[bytes, str]]:
        clients: list[tuple[bytes, str]] = []
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            raise InputError("is not UTF-8", where=str(self._path), remedy="write one key a line") from None
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) > 2 or len(words[-1]) < SHORTEST:
                raise InputError(
                    f"is no key of at least {SHORTEST} characters, with or without a name before it",
                    where=f"{self._path}:{number}",
                    remedy="write `NAME KEY`; `openssl rand -hex 32` makes a key",
                )
            digest = sha256(words[-1].encode("utf-8")).digest()
            clients.append((digest, words[0] if len(words) == 2 else f"key-{digest.hex()[:8]}"))
        if not clients:
            raise InputError("holds no key", where=str(self._path), remedy="write one key a line")
        return clients
