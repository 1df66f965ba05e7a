"""Images, made and opened by buildah in a storage of their own."""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .host import SUITE

BASE = "localhost/qpack-base"
# What Debian's slim images leave out, by what they tell dpkg and by what they remove.
SLIM = ("usr/share/doc", "usr/share/info", "usr/share/lintian", "usr/share/locale", "usr/share/man")
CACHES = ("var/cache/apt", "var/lib/apt/lists", "var/log")


@dataclass(frozen=True)
class Image:
    """What the Dockerfile says of an image, and its files, which may be written to without changing the image."""

    root: Path
    user: str  # "" is root
    environment: dict[str, str]
    command: list[str]
    healthcheck: list[str]
    stop_signal: str


class Buildah:
    def __init__(self, folder: Path, volumes: list[str]):
        self._folder = folder
        self._storage = ["--root", str(folder / "storage"), "--runroot", str(folder / "run")]
        self._volumes = [f"--volume={volume}" for volume in volumes]

    def make_base(self, mirror: list[str]) -> None:
        """A Debian as slim as the one that the Dockerfile names; kept in the folder."""
        if self._run("images", "--quiet", "--filter", f"reference={BASE}"):
            return
        root = self._folder / "base"
        shutil.rmtree(root, ignore_errors=True)
        subprocess.run(["debootstrap", "--variant=minbase", SUITE, str(root), *mirror], check=True)
        exclude = "".join(f"path-exclude /{path}/*\n" for path in SLIM)
        (root / "etc/dpkg/dpkg.cfg.d/slim").write_text(exclude, encoding="utf-8")
        for path in (*SLIM, *CACHES):
            for one in (root / path).iterdir():
                shutil.rmtree(one) if one.is_dir() and not one.is_symlink() else one.unlink()
        container = self._run("from", "scratch")
        self._run("add", "--quiet", container, str(root), "/")
        self._run("commit", "--quiet", "--rm", container, BASE)
        shutil.rmtree(root)

    def build(self, context: Path, target: str) -> Image:
        """Builds a stage of the Dockerfile in `context`."""
        name = f"localhost/qpack-{target}"
        flags = ["--isolation", "chroot", "--network", "host", "--format", "docker", "--layers"]
        command = ["bud", *flags, *self._volumes, "--build-arg", f"BASE={BASE}", "--target", target, "--tag", name]
        self._call(*command, str(context))
        config = json.loads(self._run("inspect", "--type", "image", name))["Docker"]["config"]
        root = self._run("mount", self._run("from", "--pull-never", name))
        return Image(
            Path(root),
            config.get("User", ""),
            dict(entry.split("=", 1) for entry in config["Env"]),
            [*(config.get("Entrypoint") or []), *(config.get("Cmd") or [])],
            (config.get("Healthcheck") or {}).get("Test", [])[1:],
            config.get("StopSignal", "SIGTERM"),
        )

    def close(self) -> None:
        """Images stay, their opened files don't."""
        self._run("rm", "--all")

    def _call(self, *arguments: str) -> None:
        subprocess.run(["buildah", *self._storage, *arguments], check=True)

    def _run(self, *arguments: str) -> str:
        command = ["buildah", *self._storage, *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout.strip()
