"""HTTP to one registry: who is asked through which proxy, how often, and what is never sent to anyone else."""

import json
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.exceptions import HTTPError, MaxRetryError, ProxyError, SSLError
from urllib3.util import make_headers

from qpack_delivery.oci.authorization import Authorization, shown
from qpack_delivery.oci.credentials import find_credentials
from qpack_delivery.oci.reference import Reference, is_loopback
from qpack_schemas.errors import QpackError

Response = urllib3.BaseHTTPResponse

PARALLEL = 4  # blobs at a time
_TIMEOUT = urllib3.Timeout(connect=15, read=60)  # seconds: of a connection, and between two pieces of an answer
_RETRIES = 5  # of a request whose connection breaks, or that the registry puts off
_LONGEST_WAIT = 60  # seconds, whatever the registry asks for
_REDIRECTS = 5
_MOST_ANSWER = 4 << 20  # bytes of an answer that is no blob, as registries limit manifests
_HOSTS = {"docker.io": "registry-1.docker.io"}  # of a registry whose name is not its host's


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]  # whose names may be written either way
    data: bytes


class _Retry(urllib3.Retry):
    def get_retry_after(self, response: Response) -> float | None:
        seconds = super().get_retry_after(response)
        return seconds and min(seconds, _LONGEST_WAIT)


class RegistryError(QpackError):
    """The registry can't be reached or says no. `broken`: the connection broke, so that going on may help."""

    def __init__(self, message: str, *, where: str = "", remedy: str = "", status: int = 0, broken: bool = False):
        super().__init__(message, where=where, remedy=remedy)
        self.status, self.broken = status, broken


class Connection:
    """For several threads. Credentials go to the registry and to the service that it names for tokens, nowhere else."""

    def __init__(self, reference: Reference, *, plain_http: bool = False):
        self.reference = reference
        self._insecure = plain_http or is_loopback(reference.host)
        host = _HOSTS.get(reference.registry, reference.registry)
        self._origin = f"{'http' if self._insecure else 'https'}://{host}"
        self._pools: dict[tuple[str, str], urllib3.PoolManager] = {}
        self._lock = threading.Lock()
        self._authorization = Authorization(
            self._ask, lambda: find_credentials(reference), registry=reference.registry, may_send=self._may_send
        )

    def request(
        self,
        method: str,
        url: str,
        *,
        expect: tuple[int, ...],
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        once: bool = False,
    ) -> Answer:
        """The answer to a request for `url`, a path below /v2/REPOSITORY or what the registry gave as a location. One
        with a status that is not in `expect` raises RegistryError. So does, with `once`, a connection that breaks;
        without it the request is made again."""
        with self.open(method, url, expect=expect, headers=headers, body=body, once=once) as response:
            return self._whole(url, response)

    def open(
        self,
        method: str,
        url: str,
        *,
        expect: tuple[int, ...],
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        once: bool = False,
    ) -> Response:
        """The same, for a caller who reads the answer and closes it."""
        url = urljoin(f"{self._origin}/v2/{self.reference.repository}/", url)
        actions = "pull" if method in ("GET", "HEAD") and "/uploads/" not in url else "pull,push"
        scope = f"repository:{self.reference.repository}:{actions}"
        for _ in range(_REDIRECTS):
            response = self._authorized(method, url, scope, headers, body, once)
            if not (location := response.get_redirect_location()):
                if response.status in expect:
                    return response
                with response:
                    raise self._refused(method, url, response)
            response.drain_conn()
            url = urljoin(url, location)
        raise RegistryError(f"redirects more than {_REDIRECTS} times", where=shown(url))

    def _authorized(
        self, method: str, url: str, scope: str, headers: Mapping[str, str] | None, body: bytes | None, once: bool
    ) -> Response:
        if _origin(url) != self._origin:
            return self._send(method, url, headers, None, body, once)
        shown = self._authorization.header(scope)
        response = self._send(method, url, headers, shown, body, once)
        if response.status == 401:
            response.drain_conn()
            self._authorization.renew(scope, list(response.headers.getlist("www-authenticate")), shown)
            response = self._send(method, url, headers, self._authorization.header(scope), body, once)
        return response

    def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None,
        authorization: str | None,
        body: bytes | None,
        once: bool,
    ) -> Response:
        sent = {"User-Agent": "qpack", "Accept-Encoding": "identity", **(headers or {})}
        if authorization:
            sent["Authorization"] = authorization
        retries = _Retry(
            0 if once else _RETRIES, other=0, backoff_factor=0.5, backoff_max=30, backoff_jitter=0.5,
            status_forcelist=() if once else (429, 500, 502, 503, 504), allowed_methods=None, raise_on_status=False,
        )  # fmt: skip
        data = None
        if body is not None:  # sent in pieces, since a timeout holds for each of them
            data, sent["Content-Length"] = BytesIO(body), str(len(body))
        try:
            return self._pool(url).request(
                method, url, headers=sent, body=data, redirect=False, retries=retries, preload_content=False
            )
        except HTTPError as error:
            raise self.broken(url, error) from None

    def broken(self, url: str, error: HTTPError) -> RegistryError:
        """What a failure of the connection means. urllib3's own words repeat the URL, whose query may be a secret."""
        reason = error.reason if isinstance(error, MaxRetryError) and error.reason else error
        if isinstance(reason, SSLError):
            if "WRONG_VERSION_NUMBER" in str(reason) or "record layer failure" in str(reason):
                message, remedy = "does not speak TLS", "--plain-http, if the registry is meant to be without"
            else:
                message = f"TLS fails: {reason}"
                remedy = "let SSL_CERT_FILE name the certificate of its authority, if that is not the system's"
            return RegistryError(message, where=shown(url), remedy=remedy)
        cause = next((one for one in reversed(reason.args) if isinstance(one, Exception)), reason)
        what = "to the proxy " if isinstance(reason, ProxyError) else ""
        return RegistryError(
            f"the connection {what}fails: {str(cause).rpartition(': ')[2]}", where=shown(url), broken=True,
            remedy="look at the address, the network and HTTPS_PROXY; what is there already is not moved again",
        )  # fmt: skip

    def _refused(self, method: str, url: str, response: Response) -> QpackError:
        said = _words(response.read(1 << 16))
        if _origin(url) == self._origin and response.status in (401, 403):
            error = self._authorization.refusal()
            error.message += f" ({response.status}{said})"
            return error
        return RegistryError(
            f"answers {response.status} to {method}{said}", where=shown(url), status=response.status,
            broken=response.status == 429 or response.status >= 500,
        )  # fmt: skip

    def _ask(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> tuple[int, bytes]:
        """For the service that gives tokens; a redirect is not followed with what is shown there."""
        with self._send(method, url, headers, None, body, once=False) as response:
            answer = self._whole(url, response)
            return answer.status, answer.data

    def _whole(self, url: str, response: Response) -> Answer:
        try:
            data = response.read(_MOST_ANSWER + 1)
        except HTTPError as error:
            raise self.broken(url, error) from None
        if len(data) > _MOST_ANSWER:
            raise RegistryError(f"answers with more than {_MOST_ANSWER} bytes", where=shown(url))
        response.release_conn()
        return Answer(response.status, response.headers, data)

    def _may_send(self, url: str) -> bool:
        return self._insecure or urlsplit(url).scheme == "https" or is_loopback(urlsplit(url).hostname or "")

    def _pool(self, url: str) -> urllib3.PoolManager:
        """Straight or through the proxy that the environment names for the host, as other programs have it."""
        parts = urlsplit(url)
        proxy = "" if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme, "")
        key = parts.scheme, proxy
        with self._lock:
            if key not in self._pools:
                self._pools[key] = _pool(parts.scheme, proxy)
            return self._pools[key]


def _pool(scheme: str, proxy: str) -> urllib3.PoolManager:
    shared: dict[str, Any] = {"maxsize": PARALLEL, "timeout": _TIMEOUT}
    if scheme == "https":
        shared["ssl_context"] = ssl.create_default_context()  # of the system, or of SSL_CERT_FILE
    if not proxy:
        return urllib3.PoolManager(**shared)
    via = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    who = f"{unquote(via.username)}:{unquote(via.password or '')}" if via.username else None
    shared["proxy_headers"] = make_headers(proxy_basic_auth=who)
    return urllib3.ProxyManager(f"{via.scheme}://{via.netloc.rpartition('@')[2]}", **shared)


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _words(body: bytes) -> str:
    """What the registry's JSON says of an error, by the distribution specification's "Error codes"."""
    try:
        first = json.loads(body)["errors"][0]
        return f": {ascii(str(first['code']))[1:-1][:80]}, {ascii(str(first.get('message') or ''))[1:-1][:200]}"
    except (ValueError, KeyError, IndexError, TypeError):
        return ""
