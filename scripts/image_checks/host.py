"""This host: the programs that a check needs, and how it reaches packages."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PROGRAMS = {"buildah": "buildah", "debootstrap": "debootstrap", "ip": "iproute2"}  # Debian's names of the packages
SUITE = "bookworm"
CLONE_NEWNET = 0x40000000  # linux/sched.h
# What of pip's configuration says where packages are. A folder of wheels would not exist in the image.
PIP_KEYS = ("index-url", "extra-index-url", "trusted-host")
PIP_FOLDER = "/etc/xdg/pip"  # where pip looks for one, and no package of Debian has a file


def need_programs() -> None:
    """Installs those that are missing."""
    if os.geteuid():
        sys.exit("error: namespaces and debootstrap need root: start it with sudo")
    if missing := [package for program, package in PROGRAMS.items() if not shutil.which(program)]:
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        command = ["apt-get", "install", "--yes", "-qq", "--no-install-recommends", *missing]
        subprocess.run(command, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"}, check=True)


def mirror() -> list[str]:
    """The URL of this host's Debian mirror, for debootstrap; empty: its own."""
    command = ["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages"]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout.splitlines()
    return [line.partition(" ")[2] for line in lines if line.startswith(f"{SUITE} ")][:1]


def pip_configuration(folder: Path) -> list[str]:
    """Writes what a pip inside needs to find packages as this host's pip does into `folder`; the volume that a build
    needs, none if the host has no such configuration."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, check=False, capture_output=True, encoding="utf-8").stdout  # "" where pip isn't
    said = dict(re.findall(r"^(?:global|install|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE))
    lines = [f"{key} = {said[key]}" for key in PIP_KEYS if key in said]
    if bundle := said.get("cert") or os.environ.get("SSL_CERT_FILE"):
        folder.mkdir(exist_ok=True)
        shutil.copy(bundle, folder / "ca.pem")
        lines.append(f"cert = {PIP_FOLDER}/ca.pem")
    if not lines:
        return []
    folder.mkdir(exist_ok=True)
    (folder / "pip.conf").write_text("\n".join(["[global]", *lines, ""]), encoding="utf-8")
    return [f"{folder}:{PIP_FOLDER}:ro"]


def unplug() -> None:
    """Leaves this process, and all that it starts from now on, no network but a loopback device of their own."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "this host lets root have no network namespace")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
