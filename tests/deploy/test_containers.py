"""What images and host services are made of: locks, flags, time to end, health. scripts/check_image.py builds and runs
the images themselves."""

import http.server
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from qpack_runtime.serve.command import serve
from qpack_runtime.serve.options import ServeOptions
from qpack_runtime.serve.process import FLUSH_SECONDS
from qpack_schemas import errors

ROOT = Path(__file__).parents[2]
CONTAINER = ROOT / "deploy" / "container"
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((CONTAINER / "compose.yaml").read_text(encoding="utf-8"))
UNIT = (ROOT / "deploy" / "systemd" / "qpack-runtime.service").read_text(encoding="utf-8")
LOCKS = {"runtime": ("runtime", "cuda"), "packager": ("packager", "kernels")}
SERVICES = sorted(COMPOSE["services"])


def pins(name: str) -> dict[str, Version]:
    """Package -> version of a lock. Fails if one has no digest."""
    text = (CONTAINER / f"{name}.lock").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = [re.fullmatch(r"(\S+)==(\S+)(?:\s+--hash=sha256:[0-9a-f]{64})+", line.strip()) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if not match]
    return {match[1]: Version(match[2]) for match in found if match}


def unit(key: str) -> str:
    return "\n".join(re.findall(rf"^{key}=(.*)$", UNIT, re.MULTILINE))


def program() -> Any:
    parser = RawConfigParser(inline_comment_prefixes=None, comment_prefixes=(";",))
    parser.read(ROOT / "deploy" / "supervisor" / "qpack-runtime.conf", encoding="utf-8")
    return parser["program:qpack-runtime"]


def words(instruction: str) -> list[str]:
    """Those of the Dockerfile's last such line."""
    return yaml.safe_load(re.findall(rf"^{instruction} (\[.*\])$", DOCKERFILE, re.MULTILINE)[-1])


# --- locks


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_a_version_of_all_that_its_extras_ask_for(name: str, requirements: dict[str, list[str]]):
    locked = pins(name)
    for text in [*requirements[""], *(one for extra in LOCKS[name] for one in requirements[extra])]:
        wanted = Requirement(text)
        assert locked[wanted.name.lower()] in wanted.specifier, text


def test_both_images_have_the_same_versions():
    one, other = pins("runtime"), pins("packager")
    assert {name: one[name] for name in one.keys() & other.keys()} == {
        name: other[name] for name in one.keys() & other.keys()
    }


def test_the_runtime_image_gets_nothing_that_builds_or_downloads():
    assert not pins("runtime").keys() & {"torch", "triton", "transformers", "huggingface-hub", "pip", "setuptools"}


@pytest.fixture
def requirements() -> dict[str, list[str]]:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {"": project["dependencies"], **project["optional-dependencies"]}


# --- Dockerfile


def test_what_is_copied_is_there_and_not_ignored():
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").split() if line[0] == "!"]
    for words in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE):
        for source in words.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert any(Path(one).is_relative_to(source) or Path(source).is_relative_to(one) for one in allowed), source


def test_every_stage_is_made_of_the_base_whose_digest_is_named():
    stages = re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, re.MULTILINE)
    names = [name for _, name in stages]
    assert len(re.findall(r"^FROM", DOCKERFILE, re.MULTILINE)) == len(stages)
    assert all(base == "${BASE}" or base in names for base, _ in stages)
    assert names[-1] == "runtime"
    assert re.search(r"^ARG BASE=debian:[\w.-]+@sha256:[0-9a-f]{64}$", DOCKERFILE, re.MULTILINE)


# --- what is started


def entered(folder: Path, arguments: list[str], device: str | None = None) -> list[str]:
    """What the image's entry point starts in a container with the file `device` in /dev, which `folder` stands for."""
    tini = folder / "tini"
    tini.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n", encoding="utf-8")
    tini.chmod(0o755)
    (entry,) = words("ENTRYPOINT")
    script = (CONTAINER / Path(entry).name).read_text(encoding="utf-8")
    if device:
        (folder / device).touch()
    command = ["sh", "-c", script.replace("/dev/", f"{folder}/"), entry, *arguments]
    path = f"{folder}:{os.environ['PATH']}"
    ran = subprocess.run(command, check=True, capture_output=True, encoding="utf-8", env={"PATH": path})
    return ran.stdout.splitlines()


def words_of_serve(where: str, folder: Path) -> list[str]:
    """What follows `qpack-runtime serve`, wherever it is started here."""
    if where == "systemd":
        return unit("ExecStart").split()[2:-1]  # without $QPACK_FLAGS
    if where == "supervisor":
        return program()["command"].split()[2:]
    arguments = [] if where == "image" else COMPOSE["services"][where].get("command", [])
    started = entered(folder, arguments)
    assert started[:3] == ["--", "qpack-runtime", "serve"]
    return started[3:]


@pytest.mark.parametrize("where", ["image", *SERVICES, "systemd", "supervisor"])
def test_each_start_has_a_bundle_and_flags_that_serve_knows(where: str, tmp_path: Path):
    context = click.Command.make_context(serve, "serve", words_of_serve(where, tmp_path))
    assert context.params["bundle"].is_absolute()
    assert context.params["port"] == 8000


@pytest.mark.parametrize(
    ("arguments", "served"),
    [
        ([], ["/bundle"]),
        (["--device", "cuda"], ["/bundle", "--device", "cuda"]),
        (["/other bundle", "--queue", "8"], ["/other bundle", "--queue", "8"]),
        (["oci://registry.example/model:1"], ["oci://registry.example/model:1"]),
    ],
)
def test_the_image_serves_the_bundle_that_is_named_or_else_its_own(
    arguments: list[str], served: list[str], tmp_path: Path
):
    started = entered(tmp_path, arguments)
    assert started == ["--", "qpack-runtime", "serve", "--host", "0.0.0.0", *served]


@pytest.mark.parametrize("device", ["nvidiactl", "nvmap", "dxg"])
def test_a_container_with_a_gpu_serves_with_it_unless_told_otherwise(device: str, tmp_path: Path):
    assert entered(tmp_path, ["/a", "--queue", "8"], device)[5:] == ["/a", "--queue", "8", "--device", "cuda"]
    for flags in (["--device", "cpu"], ["--device=reference"]):
        assert entered(tmp_path, flags, device)[5:] == ["/bundle", *flags]


def test_only_the_gpu_service_asks_for_a_gpu_and_for_cuda():
    for name in SERVICES:
        service = COMPOSE["services"][name]
        assert ("deploy" in service, "cuda" in service.get("command", [])) == (name == "gpu", name == "gpu")


def test_what_another_start_cannot_cure_is_not_started_again():
    """1 is also the engine's failure, which another start may cure; 3 is of builds."""
    kinds = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.QpackError)]
    codes = {one.exit_code for one in kinds} - {1, 3}
    assert {int(code) for code in unit("RestartPreventExitStatus").split()} == codes
    assert {int(code) for code in program()["exitcodes"].split(",")} == codes | {0}


def test_answers_may_end_before_the_process_is_killed():
    needed = ServeOptions().drain + 2 * FLUSH_SECONDS
    graces = [re.sub("s$", "", COMPOSE["services"][name]["stop_grace_period"]) for name in SERVICES]
    assert all(float(seconds) > needed for seconds in [*graces, unit("TimeoutStopSec"), program()["stopwaitsecs"]])


# --- health


class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/readyz" else 503)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[http.server.HTTPServer]:
    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def healthcheck(url: str) -> int:
    """As the image calls it, with this Python."""
    command = words("    CMD")
    assert command[0] == "python3"
    assert command[2] == "/opt/healthcheck.py"
    ran = subprocess.run(
        [sys.executable, command[1], CONTAINER / "healthcheck.py", url], check=False, capture_output=True
    )
    assert b"Traceback" not in ran.stderr, ran.stderr
    return ran.returncode


def test_healthy_is_what_answers_200(server: http.server.HTTPServer):
    address = f"http://127.0.0.1:{server.server_port}"
    assert healthcheck(f"{address}/readyz") == 0
    assert healthcheck(f"{address}/startupz") == 1


def test_who_does_not_listen_is_not_healthy():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        assert healthcheck(f"http://127.0.0.1:{port}/readyz") == 1
        assert healthcheck(f"https://127.0.0.1:{port}/readyz") == 1
