"""API keys: who is let in, what is open to all, how a file of keys is read and read again, and that a key's holder is
alone with what its slots hold."""

import asyncio
import hmac
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import AuthenticationError, OpenAI

from qpack_runtime.serve.http.keys import ApiKeys
from qpack_schemas.errors import InputError
from runtime.serve.process.wire import Wire
from server_process import ServerProcess

MODEL, COMPLETIONS = "tiny-qwen3_5", "/v1/completions"
ALICE, BOB, NEW = "alice-0123456789abcdef", "bob-0123456789abcdef", "new-0123456789abcdef"
UMLAUT = "schlüssel-0123456789"
KEYS = f"# who may come in\n\nalice {ALICE}\n  {BOB}  \numlaut {UMLAUT}\n"
OPEN = ["/", "/page/chat.js", "/livez", "/startupz", "/readyz", "/metrics", "/openapi.json"]
CLOSED = [
    ("GET", "/stats"), ("GET", "/v1/models"), ("GET", f"/v1/models/{MODEL}"), ("POST", COMPLETIONS),
    ("POST", "/v1/chat/completions"), ("POST", "/tokenize"), ("POST", "/detokenize"), ("GET", "/nothing"),
    ("GET", "/livez/"), ("GET", "/LIVEZ"), ("GET", "/page"), ("OPTIONS", "/stats"),
]  # fmt: skip


def replace(path: Path, text: str) -> None:
    """Whole at once, as an editor or a secret's mount does it."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys"


@pytest.fixture(scope="module")
def server(bundle: Path, file: Path) -> Iterator[ServerProcess]:
    file.write_text(KEYS, encoding="utf-8")
    with ServerProcess(bundle, "--api-key-file", str(file)) as server:
        yield server.ready()
        assert server.complaints() == []
        assert not [key for key in (ALICE, BOB, NEW, UMLAUT) if key in json.dumps(server.log, ensure_ascii=False)]


@pytest.fixture
def http(server: ServerProcess, file: Path) -> Iterator[httpx2.Client]:
    replace(file, KEYS)
    with httpx2.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=None) as http:
        yield http


def bearer(key: str) -> dict[bytes, bytes]:
    return {b"authorization": f"Bearer {key}".encode()}


def status(http: httpx2.Client, key: str) -> int:
    return http.get("/stats", headers=bearer(key)).status_code


def check_refused(answer: httpx2.Response, problem: str) -> None:
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
    assert error["message"].startswith(problem)


@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_nobody_comes_in_without_a_key(http: httpx2.Client, method: str, path: str):
    check_refused(http.request(method, path), "an API key is needed; ")
    check_refused(http.request(method, path, headers=bearer(NEW)), "the API key is wrong; ")


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", f"Bearer {ALICE}x", f"Bearer {ALICE[:-1]}", f"Bearer {ALICE.upper()}", ALICE, f"Basic {ALICE}",
     f"Bearer {ALICE} {BOB}", f"Bearer alice {ALICE}", "Bearer alice", f"Bearer,{ALICE}", f"Bearer \xa0{ALICE}"],
)  # fmt: skip
def test_nobody_comes_in_with_something_like_a_key(http: httpx2.Client, header: str):
    check_refused(http.get("/stats", headers={b"authorization": header.encode("latin-1")}), "the API key is wrong; ")


@pytest.mark.parametrize("path", OPEN)
def test_what_is_open_answers_without_a_key(http: httpx2.Client, path: str):
    assert http.get(path).status_code == 200
    assert http.get(path, headers={"host": "models.example.com"}).status_code == 200, "with keys any name will do"


@pytest.mark.parametrize("header", [f"Bearer {ALICE}", f"bearer {BOB}", f"BEARER   {BOB}", f"Bearer {UMLAUT}"])
def test_every_key_of_the_file_opens(http: httpx2.Client, header: str):
    assert http.get("/stats", headers={b"authorization": header.encode("utf-8")}).status_code == 200


def test_a_key_is_asked_for_before_a_body_is_read(server: ServerProcess, http: httpx2.Client):
    async def ask() -> int:
        wire = await Wire.open(server.port)
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n"
        await wire.send(head.encode("ascii"))
        code, _ = await wire.head()
        wire.close()
        return code

    assert asyncio.run(ask()) == 401


def test_openais_client_is_let_in_with_its_key_and_told_without(server: ServerProcess, http: httpx2.Client):
    with OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=BOB, max_retries=0) as client:
        assert client.models.retrieve(MODEL).id == MODEL
        with pytest.raises(AuthenticationError, match="the API key is wrong"):
            client.with_options(api_key="none").models.list()


def test_keys_are_read_again_when_the_file_changes(http: httpx2.Client, file: Path):
    replace(file, f"{ALICE}\nnew {NEW}\n")
    assert [status(http, key) for key in (ALICE, BOB, NEW)] == [200, 401, 200]
    file.write_text(f"{BOB}\n", encoding="utf-8")  # in place
    assert [status(http, key) for key in (ALICE, BOB, NEW)] == [401, 200, 401]


@pytest.mark.parametrize("broken", ["", "# none\n", "short\n", f"{NEW}\na b {NEW}\n", f"{NEW}\n\udcff\n", None])
def test_a_new_file_that_is_wrong_keeps_the_old_keys(
    http: httpx2.Client, server: ServerProcess, file: Path, broken: Any
):
    assert status(http, ALICE) == 200
    if broken is None:
        file.unlink()
    else:
        file.write_bytes(broken.encode("utf-8", "surrogateescape"))
    assert [status(http, key) for key in (ALICE, BOB, NEW)] == [200, 200, 401]
    line = server.line("api_keys_kept")
    assert line["path"] == str(file)
    assert line["reason"]
    replace(file, NEW)
    assert [status(http, key) for key in (ALICE, BOB, NEW)] == [401, 401, 200]


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "holds no key"), ("# a\n", "holds no key"), ("short", "keys:1"), (f"{BOB}\na b {NEW}", "keys:2"), (None, "")],
)
def test_a_server_is_not_started_on_a_wrong_file(bundle: Path, tmp_path: Path, text: str | None, words: str):
    path = tmp_path / "keys"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with ServerProcess(bundle, "--api-key-file", str(path)) as server:
        assert server.wait() == 1
        assert server.plain[0].startswith("error: ")
        assert str(path) in "".join(server.plain)
        assert words in "".join(server.plain)
        assert server.log == []


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InputError, match=str(path)):
            ApiKeys(path)


def test_a_wrong_key_is_compared_with_as_many_as_a_right_one(file: Path, monkeypatch: pytest.MonkeyPatch):
    replace(file, KEYS)
    keys, compared = ApiKeys(file), list[bytes]()
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(a) or compare(a, b))
    for header, client in (
        (f"Bearer {ALICE}", "alice"), (f"Bearer {NEW}", None), (f"Basic {ALICE}", None), (None, None), ("", None),
    ):  # fmt: skip
        compared.clear()
        assert keys.client(header) == client
        assert len(set(compared)) == 3
        assert {len(digest) for digest in compared} == {32}


@pytest.mark.parametrize("session", [None, "shared"])
def test_nobody_goes_on_from_what_another_key_has_left(http: httpx2.Client, session: str | None):
    """Else response times, and `cached_tokens`, would tell one client of another's prompts."""
    asked: dict[str, Any] = {"prompt": [5, 6, 7, 8, 9], "max_tokens": 1, "session": session}

    def cached(key: str, **fields: Any) -> int:
        answer = http.post(COMPLETIONS, json=asked | fields, headers=bearer(key))
        return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    longer = {"prompt": [5, 6, 7, 8, 9, 10]}
    assert cached(ALICE) == 0
    assert cached(BOB, **longer) == 0
    assert cached(ALICE, **longer) == 5
