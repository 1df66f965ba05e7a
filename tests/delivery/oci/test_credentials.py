"""Who asks: the files of docker and podman, Basic and Bearer, and where no secret ever goes."""

import base64
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner

from oci_registry import PASSWORD, USER, Registry
from qpack_delivery.oci.connection import Connection
from qpack_delivery.oci.credentials import find_credentials
from qpack_delivery.oci.pull import pull
from qpack_delivery.oci.push import push
from qpack_delivery.oci.reference import Reference
from qpack_packager.cli import main
from qpack_schemas.errors import InputError, QpackError

SECRET = "correct horse battery staple"
BASIC = base64.b64encode(f"{USER}:{SECRET}".encode()).decode("ascii")


def log_in(folder: Path, registry: str, password: str = SECRET, name: str = "config.json") -> None:
    auth = base64.b64encode(f"{USER}:{password}".encode()).decode("ascii")
    (folder / name).write_text(json.dumps({"auths": {registry: {"auth": auth}}}), encoding="utf-8")


def install_helper(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / f"docker-credential-{name}"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_guarded_registry_lets_in_who_is_logged_in(
    bundle: Path, guarded: Registry, nobody_is_logged_in: Path, tmp_path: Path
):
    place = Reference.parse(f"{guarded.address}/team/model:1")
    log_in(nobody_is_logged_in, guarded.address, PASSWORD)
    digest = push(bundle, place).digest
    assert pull(place, tmp_path / "bundle").digest == digest


@pytest.mark.parametrize("password", [None, SECRET])
def test_who_is_not_let_in_is_told_what_to_do(
    password: str | None, guarded: Registry, bundle: Path, nobody_is_logged_in: Path, tmp_path: Path
):
    if password:
        log_in(nobody_is_logged_in, guarded.address, password)
    for command in (("push", f"{guarded.address}/a:1", str(bundle)), ("pull", f"{guarded.address}/a:1", "-o", "b")):
        ran = CliRunner().invoke(main, command)
        assert ran.exit_code == 1
        assert f"docker login {guarded.address}" in ran.stderr
        assert ("there are none" in ran.stderr) == (password is None)
        assert (f"'{USER}' from {nobody_is_logged_in}" in ran.stderr) == (password is not None)
        assert SECRET not in ran.output
        assert BASIC not in ran.output


@pytest.mark.parametrize("key", ["r.example:5000", "https://r.example:5000", "http://r.example:5000/v1/"])
def test_docker_writes_hosts_in_several_ways(key: str, nobody_is_logged_in: Path):
    log_in(nobody_is_logged_in, key)
    found = find_credentials(Reference.parse("r.example:5000/team/a"))
    assert found is not None
    assert (found.user, found.password) == (USER, SECRET)
    assert SECRET not in repr(found)
    assert find_credentials(Reference.parse("r.example/team/a")) is None


def test_docker_hub_has_a_name_of_its_own(nobody_is_logged_in: Path):
    log_in(nobody_is_logged_in, "https://index.docker.io/v1/")
    assert find_credentials(Reference.parse("docker.io/library/a")) is not None


def test_podman_knows_paths_and_the_nearest_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    auths = {
        key: {"auth": base64.b64encode(f"{key}:{SECRET}".encode()).decode("ascii")}
        for key in ("r.example", "r.example/team", "r.example/other")
    }
    (tmp_path / "auth.json").write_text(json.dumps({"auths": auths}), encoding="utf-8")
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json"))
    users = [find_credentials(Reference.parse(f"r.example/{name}")) for name in ("team/a", "teams", "other")]
    assert [found and found.user for found in users] == ["r.example/team", "r.example", "r.example/other"]


def test_a_helper_is_asked_for_its_host_only(
    tmp_path: Path, nobody_is_logged_in: Path, monkeypatch: pytest.MonkeyPatch
):
    answer = json.dumps({"ServerURL": "r.example", "Username": USER, "Secret": SECRET})
    install_helper(tmp_path, "safe", f"test $1 = get && grep -qx r.example && echo '{answer}'", monkeypatch)
    text = json.dumps({"credHelpers": {"r.example": "safe"}})
    (nobody_is_logged_in / "config.json").write_text(text, encoding="utf-8")
    found = find_credentials(Reference.parse("r.example/a"))
    assert found is not None
    assert (found.user, found.password, found.source) == (USER, SECRET, "docker-credential-safe")
    assert find_credentials(Reference.parse("other.example/a")) is None


def test_a_store_that_has_none_leaves_the_registry_to_anybody(
    tmp_path: Path, nobody_is_logged_in: Path, monkeypatch: pytest.MonkeyPatch
):
    install_helper(tmp_path, "empty", "echo credentials not found in native keychain; exit 1", monkeypatch)
    (nobody_is_logged_in / "config.json").write_text('{"credsStore": "empty"}', encoding="utf-8")
    assert find_credentials(Reference.parse("r.example/a")) is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"credsStore": "missing"}', "docker-credential-missing, which is not on PATH"),
        ('{"credsStore": "../evil"}', "no name of a credential helper"),
        ('{"credsStore": "broken"}', "docker-credential-broken ended with exit code 3"),
        ('{"credsStore": "silent"}', "docker-credential-silent gave no credentials"),
        ('{"auths": {"r.example": {"auth": "%%%"}}}', "the entry of r.example is damaged"),
        ('{"auths": ', "line 1"),
        ("[]", "is not a JSON object"),
    ],
)
def test_a_broken_login_is_named(
    config: str, message: str, tmp_path: Path, nobody_is_logged_in: Path, monkeypatch: pytest.MonkeyPatch
):
    install_helper(tmp_path, "broken", f"echo '{SECRET}'; exit 3", monkeypatch)
    install_helper(tmp_path, "silent", f"echo '{SECRET}'", monkeypatch)
    (nobody_is_logged_in / "config.json").write_text(config, encoding="utf-8")
    with pytest.raises(InputError, match=message) as refused:
        find_credentials(Reference.parse("r.example/a"))
    assert SECRET not in str(refused.value)


Reply = tuple[int, dict[str, str], bytes]


@contextmanager
def server(reply: Callable[[BaseHTTPRequestHandler], Reply]) -> Iterator[tuple[str, list[tuple[str, str, str | None]]]]:
    """An HTTP server on loopback: its address, and method, path and Authorization of each request it gets."""
    seen: list[tuple[str, str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.command, self.path, self.headers["Authorization"]))
            status, headers, body = reply(self)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{running.server_port}", seen
        finally:
            running.shutdown()
            thread.join()


def ask(address: str, path: str = "blobs/a") -> bytes:
    return Connection(Reference.parse(f"{address}/team/a:1")).request("GET", path, expect=(200,)).data


def test_a_redirect_to_another_host_carries_no_credentials(nobody_is_logged_in: Path):
    with server(lambda request: (200, {}, b"the blob")) as (store, asked_store):

        def registry(request: BaseHTTPRequestHandler) -> Reply:
            if request.headers["Authorization"] is None:
                return 401, {"WWW-Authenticate": 'Basic realm="x"'}, b""
            return 307, {"Location": f"http://{store}/bucket/a?X-Signature=secret"}, b""

        with server(registry) as (address, asked):
            log_in(nobody_is_logged_in, address)
            assert ask(address) == b"the blob"
    assert [authorization for *_, authorization in asked] == [None, f"Basic {BASIC}"]
    assert asked_store == [("GET", "/bucket/a?X-Signature=secret", None)]


def test_a_failing_store_is_named_without_its_signature(nobody_is_logged_in: Path):
    with server(lambda request: (403, {}, b"")) as (store, _):
        location = {"Location": f"http://user:pass@{store}/bucket/a?X-Signature=secret"}
        with server(lambda request: (307, location, b"")) as (address, _), pytest.raises(QpackError) as refused:
            ask(address)
    assert f"{store}/bucket/a" in str(refused.value)
    assert "secret" not in str(refused.value)
    assert "pass@" not in str(refused.value)


@contextmanager
def bearer(tokens: list[str], login: str = f"Basic {BASIC}", seconds: int = 300):
    """A registry that takes the last of the `tokens` its service has given, and that service."""
    given: list[str] = []

    def service(request: BaseHTTPRequestHandler) -> Reply:
        if request.headers["Authorization"] != login:
            return 401, {}, b""
        given.append(tokens[len(given)])
        return 200, {}, json.dumps({"token": given[-1], "expires_in": seconds}).encode("ascii")

    def registry(request: BaseHTTPRequestHandler) -> Reply:
        if not given or request.headers["Authorization"] != f"Bearer {given[-1]}" or given[-1] == "stale":
            challenge = f'Bearer realm="http://{where}/token",service="reg",scope="repository:team/a:pull"'
            return 401, {"WWW-Authenticate": challenge}, b""
        return 200, {}, b"the blob"

    with server(service) as (where, asked_service), server(registry) as (address, asked):
        yield address, asked, asked_service


def test_a_token_is_asked_for_once_and_kept(nobody_is_logged_in: Path):
    with bearer(["one"]) as (address, asked, asked_service):
        log_in(nobody_is_logged_in, address)
        connection = Connection(Reference.parse(f"{address}/team/a:1"))
        for _ in range(3):
            assert connection.request("GET", "blobs/a", expect=(200,)).data == b"the blob"
    assert [authorization for *_, authorization in asked] == [None, *["Bearer one"] * 3]
    ((_, path, authorization),) = asked_service
    assert authorization == f"Basic {BASIC}"
    assert parse_qs(urlsplit(path).query) == {"service": ["reg"], "scope": ["repository:team/a:pull"]}


def test_a_token_that_is_refused_is_renewed(nobody_is_logged_in: Path):
    with bearer(["stale", "fresh"]) as (address, asked, _):
        log_in(nobody_is_logged_in, address)
        connection = Connection(Reference.parse(f"{address}/team/a:1"))
        with pytest.raises(QpackError, match="does not let"):
            connection.request("GET", "blobs/a", expect=(200,))
        assert connection.request("GET", "blobs/a", expect=(200,)).data == b"the blob"
    assert [authorization for *_, authorization in asked] == [None, "Bearer stale", "Bearer stale", "Bearer fresh"]


def test_a_service_that_refuses_the_login_is_reported_without_it(
    nobody_is_logged_in: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    with bearer([], login="other") as (address, _, _):
        log_in(nobody_is_logged_in, address)
        with pytest.raises(QpackError, match="docker login") as refused:
            ask(address)
    assert SECRET not in str(refused.value) + caplog.text
    assert BASIC not in str(refused.value) + caplog.text


def test_an_identity_token_is_exchanged(nobody_is_logged_in: Path):
    bodies: list[dict[str, list[str]]] = []

    def service(request: BaseHTTPRequestHandler) -> Reply:
        bodies.append(parse_qs(request.rfile.read(int(request.headers["Content-Length"])).decode("ascii")))
        return 200, {}, b'{"access_token": "t"}'

    def registry(request: BaseHTTPRequestHandler) -> Reply:
        if request.headers["Authorization"] == "Bearer t":
            return 200, {}, b"the blob"
        return 401, {"WWW-Authenticate": f'Bearer realm="http://{where}/token",service="reg"'}, b""

    with server(service) as (where, asked_service), server(registry) as (address, _):
        auths = {"auths": {address: {"auth": "dTo=", "identitytoken": SECRET}}}
        (nobody_is_logged_in / "config.json").write_text(json.dumps(auths), encoding="utf-8")
        assert ask(address) == b"the blob"
    assert [method for method, *_ in asked_service] == ["POST"]
    assert bodies[0]["grant_type"] == ["refresh_token"]
    assert bodies[0]["refresh_token"] == [SECRET]


def test_a_busy_registry_is_asked_again_when_it_says(nobody_is_logged_in: Path):
    answers = [(429, {"Retry-After": "0"}, b""), (503, {"Retry-After": "0"}, b""), (200, {}, b"the blob")]
    with server(lambda request: answers.pop(0)) as (address, asked):
        assert ask(address) == b"the blob"
    assert len(asked) == 3


def test_a_proxy_is_used_as_the_environment_says(nobody_is_logged_in: Path, monkeypatch: pytest.MonkeyPatch):
    with server(lambda request: (200, {}, b"by the proxy")) as (proxy, asked):
        monkeypatch.setenv("http_proxy", f"http://user:{PASSWORD}@{proxy}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        connection = Connection(Reference.parse("r.example/team/a:1"), plain_http=True)
        assert connection.request("GET", "blobs/a", expect=(200,)).data == b"by the proxy"
        assert asked == [("GET", "http://r.example/v2/team/a/blobs/a", None)]


@pytest.mark.parametrize(
    ("registry", "plain_http", "begin"),
    [("r.example", False, "https:"), ("r.example", True, "http:"), ("[::1]:5", False, "http:")],
)
def test_only_this_machine_is_asked_in_plain_unless_that_is_allowed(registry: str, plain_http: bool, begin: str):
    assert Connection(Reference.parse(f"{registry}/a"), plain_http=plain_http)._origin.startswith(begin)
