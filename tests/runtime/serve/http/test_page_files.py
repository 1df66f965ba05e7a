"""The page's files, and that no path leads to any other file."""

import asyncio
import re
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.serve.process.wire import Wire, request
from server_process import ServerProcess

PAGE = Path(str(files("qpack_runtime.serve").joinpath("page")))
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
TRICKS = [
    "..", ".", "", "../page.py", "..%2fhttp%2fpage.py", "%2e%2e/http/page.py", "%2e%2e%2fhttp%2fpage.py", "..\\page.py",
    "..%5cpage.py", "/etc/passwd", "%2fetc%2fpasswd", "//etc/passwd", "....//....//etc/passwd", "%252e%252e%252fetc",
    "index.html%00", "index.html%00.css", "%00", "index.html/", "index.html/..", "./index.html", "%2e/index.html",
    "index.html%20", "index.html.", "INDEX.HTML", "index.html::$DATA", "index.html%3bx", "index.html;x", "%ff", "%",
    "%zz", "%c0%ae%c0%ae/", "%e2%80%a5", "chat.js/../../app.py", "file:///etc/passwd", "~root",
]  # fmt: skip


async def status_of(port: int, path: str) -> tuple[int, bytes]:
    """Of a path that is sent as it stands."""
    wire = await Wire.open(port)
    try:
        await wire.send(request(path, method="GET", headers="connection: close\r\n"))
        response = await wire.response()
        return response.status, response.body
    finally:
        wire.close()


def test_the_page_is_whole(http: httpx2.Client):
    index = http.get("/")
    assert index.content == (PAGE / "index.html").read_bytes()
    named = re.findall(r'(?:src|href)="([^"#]+)"', index.text)
    assert {"/page/chat.js", "/page/chat.css"} <= set(named) | {f"/{name}" for name in named}
    for path in named:
        assert http.get(path if path.startswith("/") else f"/{path}").status_code == 200


@pytest.mark.parametrize("file", sorted(PAGE.iterdir()), ids=lambda file: file.name)
def test_a_file_is_served_as_what_it_is(http: httpx2.Client, file: Path):
    answer = http.get(f"/page/{file.name}")
    assert answer.content == file.read_bytes()
    assert answer.headers["content-type"].partition(";")[0] == KINDS[file.suffix]
    for needed in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"):
        assert needed in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    for imported in re.findall(r'from "\./([^"]+)"', answer.text):
        assert (PAGE / imported).is_file()


@pytest.mark.parametrize("trick", TRICKS)
def test_no_path_leads_to_another_file(server: ServerProcess, trick: str):
    status, body = asyncio.run(status_of(server.port, f"/page/{trick}"))
    assert status in (400, 404)
    assert b"root:" not in body
    assert b"import" not in body


@given(name=st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_no_name_but_a_files_own_gives_a_file(server: ServerProcess, name: str):
    status, _ = asyncio.run(status_of(server.port, "/page/" + quote(name, safe="/")))
    assert (status == 200) == (name in {file.name for file in PAGE.iterdir()})
