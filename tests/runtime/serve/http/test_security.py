"""What a request can and can't do to a server on loopback without keys: docs/security.md, promise by promise."""

import asyncio
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from runtime.serve.process.wire import Wire, request
from server_process import ServerProcess

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
JSON = {"content-type": "application/json"}
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
# Every kind of answer: method, path, what is sent besides, status.
ANSWERS: list[tuple[str, str, dict[str, Any], int]] = [
    ("GET", "/", {}, 200),
    ("GET", "/page/chat.js", {}, 200),
    ("GET", "/page/nothing", {}, 404),
    ("GET", "/livez", {}, 200),
    ("GET", "/metrics", {}, 200),
    ("GET", "/stats", {}, 200),
    ("GET", "/openapi.json", {}, 200),
    ("HEAD", "/v1/models", {}, 200),
    ("POST", COMPLETIONS, {"json": {"prompt": "a", "max_tokens": 1}}, 200),
    ("POST", COMPLETIONS, {"json": {"prompt": "a", "max_tokens": 0, "echo": True, "stream": True}}, 200),
    ("POST", CHAT, {"json": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "stream": True}}, 200),
    ("POST", COMPLETIONS, {"json": {}}, 400),
    ("GET", "/stats", {"headers": {"host": "example.com"}}, 400),
    ("GET", "/v1/models/gpt-4", {}, 404),
    ("GET", "/nothing", {}, 404),
    ("GET", COMPLETIONS, {}, 405),
    ("OPTIONS", COMPLETIONS, {}, 405),
    ("POST", COMPLETIONS, {"content": b" " * (4 << 20) + b" ", "headers": JSON}, 413),
    ("POST", COMPLETIONS, {"content": b"{}"}, 415),
]


@pytest.mark.parametrize(("method", "path", "sent", "status"), ANSWERS, ids=lambda value: str(value)[:40])
def test_every_answer_has_the_headers_that_keep_browsers_in_bounds(
    http: httpx2.Client, method: str, path: str, sent: dict[str, Any], status: int
):
    answer = http.request(
        method, path, **{**sent, "headers": {"origin": "http://example.com", **sent.get("headers", {})}}
    )
    assert answer.status_code == status
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] in ("no-store", "no-cache")
    assert answer.headers["x-request-id"]
    assert not [
        name for name in answer.headers if name.startswith("access-control-") or name in ("server", "set-cookie")
    ]


@pytest.mark.parametrize("host", ["localhost", "LocalHost:8000", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8000"])
def test_this_hosts_names_are_answered(http: httpx2.Client, host: str):
    assert http.get("/livez", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["example.com", "example.com:8000", "localhost.example.com", "127.0.0.1.nip.io", "localhost@example.com", "",
     "localhost:80:80", "localhost:x", "0.0.0.0", "[::]", "::1", "127.1", "2130706433", "localhost.", "http://localhost"],
)  # fmt: skip
def test_a_foreign_name_leads_nowhere(http: httpx2.Client, host: str):
    """Else a page elsewhere could reach this server under a name of its own: DNS rebinding."""
    for path in ("/", "/livez", "/stats", "/page/chat.js", "/nothing"):
        answer = http.get(path, headers={"host": host})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "wrong_host")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "json"])
def test_what_a_page_elsewhere_can_send_unasked_is_not_read(http: httpx2.Client, kind: str):
    for path in (COMPLETIONS, CHAT, "/tokenize", "/detokenize"):
        answer = http.post(path, content=b'{"prompt": "a"}', headers={"content-type": kind})
        assert answer.status_code == 415
        assert "application/json" in answer.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON", "application/json; charset=utf-8"])
def test_json_is_read_however_its_type_is_spelled(http: httpx2.Client, kind: str):
    assert http.post("/tokenize", content=b'{"prompt": "a"}', headers={"content-type": kind}).status_code == 200


def test_a_page_elsewhere_is_given_no_leave(http: httpx2.Client):
    asked = {"origin": "http://example.com", "access-control-request-method": "POST",
             "access-control-request-headers": "content-type, authorization"}  # fmt: skip
    for path in ("/", COMPLETIONS, "/stats", "/metrics"):
        answer = http.options(path, headers=asked)
        assert answer.status_code == 405
        assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    "headers",
    [f"x-long: {'a' * 300_000}\r\n", f"{'n' * 300_000}: a\r\n", "x-many: a\r\n" * 30_000, "x: a\r\n b\r\n" * 30_000],
    ids=["a long value", "a long name", "many headers", "folded lines"],
)  # fmt: skip
def test_a_head_without_bounds_is_refused(server: ServerProcess, headers: str):
    async def refused() -> int:
        wire = await Wire.open(server.port)
        with suppress(ConnectionError):  # the server need not read what it has refused
            await wire.send(request("/livez", method="GET", headers=headers))
        try:
            return (await wire.head())[0]
        except (ConnectionError, asyncio.IncompleteReadError):
            return 0
        finally:
            wire.close(reset=True)

    assert asyncio.run(refused()) in (0, 400)
    assert server.get("/livez")[0] == 200


def test_the_api_is_spoken_over_tls(bundle: Path, tmp_path: Path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=qpack test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    trusted = ssl.create_default_context(cafile=certificate)
    with ServerProcess(bundle, "--tls-certificate", str(certificate), "--tls-key", str(key)) as server:
        server.line("ready")
        with httpx2.Client(base_url=f"https://127.0.0.1:{server.port}", verify=trusted, timeout=None) as http:
            assert http.get("/readyz").status_code == 200
            answer = http.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 3, "stream": True})
            assert answer.text.endswith("data: [DONE]\n\n")
        untrusting = httpx2.Client(base_url=f"https://127.0.0.1:{server.port}", timeout=None)
        with untrusting as http, pytest.raises(httpx2.ConnectError, match="certificate"):
            http.get("/readyz")
        plain = httpx2.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=None)
        with plain as http, pytest.raises(httpx2.TransportError):
            http.get("/readyz")
        assert [line for line in server.log if "traceback" in line] == []


@pytest.mark.parametrize("missing", [("--tls-key",), ("--tls-certificate",)])
def test_a_certificate_needs_its_key(bundle: Path, tmp_path: Path, missing: tuple[str]):
    with ServerProcess(bundle, *missing, str(tmp_path / "file.pem")) as server:
        assert server.wait() == 2
        assert "belong together" in server.plain[0]


@pytest.mark.parametrize(("content", "code", "said"), [(None, 1, "No such file"), ("no PEM", 1, "is no certificate")])
def test_a_certificate_that_cannot_be_used_is_named(
    bundle: Path, tmp_path: Path, content: str | None, code: int, said: str
):
    certificate = tmp_path / "certificate.pem"
    if content is not None:
        certificate.write_text(content, encoding="utf-8")
    key = tmp_path / "key.pem"
    key.write_text("no PEM either", encoding="utf-8")
    with ServerProcess(bundle, "--tls-certificate", str(certificate), "--tls-key", str(key)) as server:
        assert server.wait() == code
        assert str(certificate) in server.plain[0]
        assert said in server.plain[0]
