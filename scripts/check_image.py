"""Builds both images of the Dockerfile without a Docker daemon and checks them: `sudo python3 scripts/check_image.py`.

On Debian, as root; buildah, debootstrap and iproute2 are installed where they are missing, and nothing else is needed.
The base is a Debian made here, as slim as the one that the Dockerfile names. The packager image makes a bundle of the
tiny checkpoint, the runtime image serves it: on a read-only root, as the image's user, without capabilities and
without a network. Exit code 1 if a check failed.
"""

import argparse
import http.client
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from image_checks import contents
from image_checks.buildah import Buildah, Image
from image_checks.container import PATIENCE, Container, status
from image_checks.host import mirror, need_programs, pip_configuration, unplug

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "tests" / "assets" / "tiny-qwen3_5"
PORT = 8000
PROMPT, TOKENS = "And the LORD said unto", 24
STARTS = 5
MEGABYTES, READY_SECONDS, STOP_SECONDS = 250, 2.0, 5.0  # limits
BY_SIGTERM = 128 + signal.SIGTERM

Check = tuple[str, bool, str]  # its name, whether it holds, what was found


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds the images of the Dockerfile and checks them.")
    parser.add_argument("--work", type=Path, help="folder that keeps the base and the layers for the next time")
    work = parser.parse_args().work
    need_programs()
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
        return check(work.resolve())
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="qpack-image-") as folder:  # /tmp may be in memory
        return check(Path(folder))


def check(work: Path) -> int:
    buildah = Buildah(work, pip_configuration(work / "pip"))
    buildah.make_base(mirror())
    try:
        packager, runtime = (buildah.build(ROOT, target) for target in ("packager", "runtime"))
        unplug()
        with tempfile.TemporaryDirectory(dir=work, prefix="bundle-") as folder:
            failed = 0
            for name, holds, found in chain(packs(packager, Path(folder)), serves(runtime, Path(folder))):
                failed += not holds
                print(f"{'ok  ' if holds else 'FAIL'}  {name:<38}  {found}", flush=True)
    finally:
        buildah.close()
    print(f"{failed} failed" if failed else "all hold")
    return 1 if failed else 0


def packs(image: Image, folder: Path) -> Iterator[Check]:
    yield "packager: size", True, f"{contents.megabytes(image.root):.0f} MB"
    yield absent("packager", contents.forbidden(image.root, "packager"))
    begin = time.monotonic()
    command = ["qpack", "build", "/model", "-o", "/out/bundle"]
    with Container(image, command, {MODEL: "/model", folder: "/out"}, folder / "build.log") as container:
        code = container.wait(10 * PATIENCE)
        said = "" if code == 0 else container.said()
    yield "packager: builds the tiny bundle", code == 0, said or f"in {time.monotonic() - begin:.1f} s"


def serves(image: Image, folder: Path) -> Iterator[Check]:
    size = contents.megabytes(image.root)
    yield "size, uncompressed", size < MEGABYTES, f"{size:.0f} MB of less than {MEGABYTES}"
    yield absent("runtime", contents.forbidden(image.root, "runtime"))
    strange = contents.of_the_host(image.root) + contents.settable(image.root)
    yield "nothing of this host, nothing writable", not strange, ", ".join(strange) or "none"

    volumes, log = {folder / "bundle": "/bundle"}, folder / "serve.log"
    seconds = []
    for _ in range(STARTS):
        with Container(image, image.command, volumes, log) as container:
            seconds.append(until_ready(container))
    taken = ", ".join(f"{one:.2f}" for one in sorted(seconds))
    yield "ready, the fastest of some starts", min(seconds) < READY_SECONDS, f"{taken} s of less than {READY_SECONDS:g}"

    with Container(image, image.command, volumes, log) as container:
        container.first()
        healthy = container.run(*image.healthcheck)
        yield "HEALTHCHECK before it is ready", healthy.returncode == 1, (healthy.stdout + healthy.stderr).strip()
        until_ready(container)
        healthy = container.run(*image.healthcheck)
        yield "HEALTHCHECK when it is ready", healthy.returncode == 0, (healthy.stdout + healthy.stderr).strip()[:60]
        yield from answers(container)
        yield from confined(container)
        code, taken = container.stop(signal.Signals[image.stop_signal])
        yield "ends by its stop signal", code == 0 and taken < STOP_SECONDS, f"exit code {code} after {taken:.2f} s"

    with Container(image, image.command, volumes, log) as container:
        while len(container.processes()) < 2:  # process 1, and what it has started
            time.sleep(0.001)
        code, taken = container.stop(signal.SIGTERM)
        yield "and before it can handle one", code == BY_SIGTERM and taken < 1, f"exit code {code} after {taken:.2f} s"


def absent(target: str, found: list[str]) -> Check:
    return f"{target}: no compiler, torch or pip", not found, ", ".join(found) or "none"


def answers(container: Container) -> Iterator[Check]:
    """Over HTTP and by `generate`, which has neither a server nor a scheduler, the same text."""
    body = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0}
    code, answer = ask("/v1/completions", body)
    text = answer["choices"][0]["text"] if code == 200 else json.dumps(answer)
    choices = ["--prompt", PROMPT, "--max-tokens", str(TOKENS), "--format", "json"]
    generated = container.run("qpack-runtime", "generate", "/bundle", *choices)
    expected = json.loads(generated.stdout)["text"] if generated.returncode == 0 else generated.stderr
    yield "a completion, as generate has it", code == 200 and text != "" and text == expected, repr(text)


def confined(container: Container) -> Iterator[Check]:
    pids = container.processes()
    told = [status(pid) for pid in pids]
    users = sorted({one["Uid"].split()[0] for one in told})
    yield "user", "0" not in users, f"uid {', '.join(users)} of {len(pids)} processes"
    rights = [one["Name"] for one in told if int(one["CapEff"], 16) or one["State"].startswith("Z")]
    yield "no capabilities, no zombies", not rights, ", ".join(rights) or "none"
    devices = container.run("cat", "/proc/net/dev").stdout.splitlines()[2:]
    yield "without a network", [line.split(":")[0].strip() for line in devices] == ["lo"], "lo only"
    wrote = container.run("sh", "-c", "touch /opt/x || ls -A /tmp")
    yield "writes nothing", wrote.stdout == "" and "Read-only" in wrote.stderr, wrote.stdout or "not even to /tmp"
    encoding = container.run("python3", "-c", "import sys, locale; print(locale.getpreferredencoding(False))").stdout
    yield "locale", encoding.strip() == "UTF-8", encoding.strip()
    kilobytes = [line.split()[1] for pid in pids for line in rollup(pid) if line.startswith("Pss:")]
    yield "memory of all processes", True, f"{sum(map(int, kilobytes)) / 1000:.0f} MB"


def rollup(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()


def until_ready(container: Container) -> float:
    """Seconds from now until /readyz answers 200."""
    begin = time.monotonic()
    while container.alive and time.monotonic() < begin + PATIENCE:
        try:
            if ask("/readyz")[0] == 200:
                return time.monotonic() - begin
        except OSError:
            pass
        time.sleep(0.005)
    raise AssertionError(f"the server is not ready: {container.said()}")


def ask(path: str, body: object = None) -> tuple[int, dict]:
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=PATIENCE)
    try:
        text = None if body is None else json.dumps(body)
        connection.request("POST" if text else "GET", path, text, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
