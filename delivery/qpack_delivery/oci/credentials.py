"""Who asks: the credentials that `docker login`, `podman login` or a cloud's credential helper keeps for a registry.

Files in order: $REGISTRY_AUTH_FILE, $DOCKER_CONFIG/config.json or ~/.docker/config.json, and
$XDG_RUNTIME_DIR/containers/auth.json. In each a helper comes before what is written into it, as docker has it.
"""

import base64
import binascii
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qpack_delivery.oci.reference import Reference
from qpack_schemas.errors import InputError
from qpack_schemas.strict_json import load_strict

_DOCKER_HUB = "docker.io"
_DOCKER_HUB_KEY = "index.docker.io"  # under which docker keeps them
_HELPER_SECONDS = 60
_NO_CREDENTIALS = "credentials not found"  # what every helper says then


@dataclass(frozen=True)
class Credentials:
    """`identity_token` is what an OAuth2 login left instead of a password. `source` is where they come from."""

    user: str
    password: str = field(repr=False)
    identity_token: str = field(repr=False)
    source: str

    @property
    def basic(self) -> str:
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode("ascii")


def find_credentials(reference: Reference) -> Credentials | None:
    """Those for a repository, or None if no file has any. Raises InputError for a file or helper that is broken."""
    registry = _DOCKER_HUB_KEY if reference.registry == _DOCKER_HUB else reference.registry
    for file in _files():
        if not file.is_file():
            continue
        config = load_strict(file)
        if not isinstance(config, dict):
            raise InputError("is not a JSON object", where=str(file), remedy="log in again")
        found = _of_helper(config, registry, file) or _written(config, registry, reference.repository, file)
        if found is not None:
            return found
    return None


def _files() -> Iterator[Path]:
    if named := os.environ.get("REGISTRY_AUTH_FILE"):
        yield Path(named)
    docker = os.environ.get("DOCKER_CONFIG")
    yield Path(docker or os.path.expanduser("~/.docker")) / "config.json"  # some containers' users have no home
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime) / "containers" / "auth.json"


def _of_helper(config: Mapping[str, Any], registry: str, file: Path) -> Credentials | None:
    helpers = config.get("credHelpers") or {}
    name = helpers.get(registry) or config.get("credsStore")
    if not name:
        return None
    program = f"docker-credential-{name}"
    if not re.fullmatch(r"[A-Za-z0-9._-]+", str(name)):
        raise InputError(f"{name!a} is no name of a credential helper", where=str(file))
    server = f"https://{registry}/v1/" if registry == _DOCKER_HUB_KEY else registry
    try:
        ran = subprocess.run(
            [program, "get"], input=server, capture_output=True, encoding="utf-8", timeout=_HELPER_SECONDS, check=False
        )
    except FileNotFoundError:
        raise InputError(
            f"names the credential helper {program}, which is not on PATH", where=str(file), remedy="install it"
        ) from None
    except subprocess.TimeoutExpired:
        raise InputError(f"{program} did not answer within {_HELPER_SECONDS} s", where=str(file)) from None
    if ran.returncode:
        if _NO_CREDENTIALS in ran.stdout + ran.stderr:
            return None
        raise InputError(
            f"{program} ended with exit code {ran.returncode}", where=str(file), remedy=f"try {program} get"
        )
    try:
        answer = json.loads(ran.stdout)
        user, secret = str(answer["Username"]), str(answer["Secret"])
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{program} gave no credentials that can be read", where=str(file)) from None
    is_token = user == "<token>"
    return Credentials(user, "" if is_token else secret, secret if is_token else "", program)


def _written(config: Mapping[str, Any], registry: str, repository: str, file: Path) -> Credentials | None:
    """The entry for the repository, or the nearest path above it, as podman has them; docker has hosts only."""
    entries = {_bare(key): entry for key, entry in (config.get("auths") or {}).items()}
    parts = repository.split("/")
    for end in range(len(parts), -1, -1):
        entry = entries.get("/".join([registry, *parts[:end]]))
        if not isinstance(entry, dict):
            continue
        token, auth = entry.get("identitytoken"), entry.get("auth")
        try:
            user, _, password = base64.b64decode(auth or "", validate=True).decode("utf-8").partition(":")
        except (binascii.Error, UnicodeDecodeError, TypeError):
            where = f"{file}#/auths"
            raise InputError(f"the entry of {registry} is damaged", where=where, remedy="log in again") from None
        if token or password:
            return Credentials(user, password.rstrip("\0"), token or "", str(file))
    return None


def _bare(key: str) -> str:
    """https://index.docker.io/v1/ -> index.docker.io, as docker writes hosts."""
    return re.sub(r"^https?://|/v[12]/?$|/$", "", key)
