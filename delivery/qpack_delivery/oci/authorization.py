"""What a registry is shown to let someone in: Basic, or a Bearer token that another service gives for a scope.

The exchange is the one of https://distribution.github.io/distribution/spec/auth/token/ and, where a login left an
identity token, https://distribution.github.io/distribution/spec/auth/oauth/.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from qpack_delivery.oci.credentials import Credentials
from qpack_schemas.errors import QpackError

_PARAMETER = re.compile(r'(\w+)\s*=\s*(?:"([^"]*)"|([^\s,"]+))')
_DEFAULT_SECONDS = 60  # that a token is good for where the service doesn't say
_EARLY = 10  # seconds before its end that a token is no longer used

# (method, url, headers, body) -> status and body of the answer
Ask = Callable[[str, str, Mapping[str, str], bytes | None], tuple[int, bytes]]


@dataclass(frozen=True)
class _Header:
    value: str
    ends: float  # time.monotonic()


class Authorization:
    """The header for each scope, remembered as long as it is good. For several threads."""

    def __init__(
        self, ask: Ask, find: Callable[[], Credentials | None], *, registry: str, may_send: Callable[[str], bool]
    ):
        """`find` is called when a registry asks who it is, and no earlier. `may_send` says whether a secret may go to
        a URL."""
        self._ask, self._find, self._registry, self._may_send = ask, find, registry, may_send
        self._credentials: Credentials | None = None
        self._sought = False
        self._headers: dict[str, _Header] = {}
        self._lock = threading.Lock()

    def header(self, scope: str) -> str | None:
        known = self._headers.get(scope)
        return known.value if known and time.monotonic() < known.ends else None

    def renew(self, scope: str, challenges: list[str], refused: str | None) -> None:
        """Makes the header that `challenges`, of WWW-Authenticate, ask for, in place of `refused`. Raises QpackError if
        there is none that the registry would take."""
        with self._lock:
            if (known := self.header(scope)) and known != refused:
                return  # another thread has been faster
            bearer = next((one for one in challenges if one.lower().startswith("bearer ")), None)
            credentials = self._found()
            if bearer is not None:
                found = _PARAMETER.findall(bearer)
                self._headers[scope] = self._token({name.lower(): a or b for name, a, b in found}, scope, credentials)
            elif (
                credentials is not None
                and refused != credentials.basic
                and any(one.lower().startswith("basic") for one in challenges)
            ):
                self._headers[scope] = _Header(credentials.basic, float("inf"))
            else:
                raise self.refusal()

    def refusal(self) -> QpackError:
        """What the registry's no means to the person who asked."""
        if not self._sought or self._credentials is None:
            return QpackError(
                "the registry asks for credentials, and there are none", where=self._registry,
                remedy=f"docker login {self._registry} (or podman login), or name a file by DOCKER_CONFIG",
            )  # fmt: skip
        who = f"{self._credentials.user!a} from {self._credentials.source}"
        return QpackError(
            f"the registry does not let {who} in", where=self._registry,
            remedy=f"docker login {self._registry} again, or ask for access to the repository",
        )  # fmt: skip

    def _found(self) -> Credentials | None:
        if not self._sought:
            self._credentials, self._sought = self._find(), True
        return self._credentials

    def _token(self, challenge: Mapping[str, str], scope: str, credentials: Credentials | None) -> _Header:
        realm = challenge.get("realm", "")
        if urlsplit(realm).scheme not in ("http", "https"):
            raise QpackError("the registry names no service that gives tokens", where=self._registry)
        if credentials is not None and not self._may_send(realm):
            raise QpackError(
                f"the registry sends passwords to {shown(realm)}, which is not encrypted", where=self._registry,
                remedy="--plain-http, if that network is to be trusted",
            )  # fmt: skip
        wanted = {"service": challenge.get("service", ""), "scope": challenge.get("scope") or scope}
        headers: dict[str, str] = {}
        if credentials is not None and credentials.identity_token:
            wanted |= {
                "grant_type": "refresh_token", "refresh_token": credentials.identity_token, "client_id": "qpack",
            }  # fmt: skip
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            status, data = self._ask("POST", realm, headers, urlencode(wanted).encode("ascii"))
        else:
            if credentials is not None:
                headers["Authorization"] = credentials.basic
            joint = "&" if "?" in realm else "?"
            status, data = self._ask("GET", f"{realm}{joint}{urlencode(wanted)}", headers, None)
        if status in (400, 401, 403):
            raise self.refusal()
        try:
            said = json.loads(data)
            token = said.get("token") or said["access_token"]
            seconds = float(said.get("expires_in") or _DEFAULT_SECONDS)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise QpackError(f"gave no token (status {status})", where=shown(realm)) from None
        return _Header(f"Bearer {token}", time.monotonic() + max(seconds - _EARLY, 1))


def shown(url: str) -> str:
    """Without user and query, which may hold secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
