"""Where a bundle lies in a registry: `[oci://]HOST[:PORT]/REPOSITORY[:TAG][@sha256:...]`.

The grammar of repository, tag and digest is the OCI distribution specification's, 1.1, "Pulling manifests".
"""

import ipaddress
import re
from dataclasses import dataclass

from qpack_schemas.errors import UsageError

SCHEME = "oci://"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = re.compile(rf"((?:{_LABEL}(?:\.{_LABEL})*)|\[[0-9A-Fa-f:.]+\])(?::([0-9]{{1,5}}))?")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST = 255  # characters of HOST[:PORT]/REPOSITORY, which many registries and clients limit to that
_EXAMPLE = "write it like registry.example.com/team/qwen3-small:1.4.0"


@dataclass(frozen=True)
class Reference:
    """A tag moves, a digest doesn't; where both are given the digest decides."""

    registry: str  # HOST[:PORT]
    repository: str
    tag: str | None
    digest: str | None

    @classmethod
    def parse(cls, text: str) -> "Reference":
        """Raises UsageError that says which part is wrong. Without tag and digest the tag is `latest`."""

        def refuse(problem: str, remedy: str = _EXAMPLE) -> UsageError:
            return UsageError(problem, where=ascii(text)[1:-1][:300], remedy=remedy)

        bare = text.removeprefix(SCHEME)
        if "://" in bare:
            raise refuse("a reference to a registry has no such scheme", f"leave {bare.partition('://')[0]}:// out")
        head, at, digest = bare.partition("@")
        registry, _, rest = head.partition("/")
        repository, colon, tag = rest.partition(":")
        host = _HOST.fullmatch(registry)
        if host is None or (host[2] and not 0 < int(host[2]) < 1 << 16):
            raise refuse(f"{registry!a} is no host of a registry")
        if not rest or not (host[2] or "." in registry or registry.startswith("[") or registry == "localhost"):
            raise refuse("names no registry, or no repository in it")
        if not _REPOSITORY.fullmatch(repository):
            remedy = "lower-case letters and digits, with single . _ - between them and / between parts"
            raise refuse(f"{repository!a} is no name of a repository", remedy)
        if len(registry) + 1 + len(repository) > _LONGEST:
            raise refuse(f"registry and repository have more than {_LONGEST} characters", "name a shorter repository")
        if colon and not _TAG.fullmatch(tag):
            raise refuse(
                f"{tag!a} is no tag", "a tag has at most 128 letters, digits, _ . and -, and begins with none of . -"
            )
        if at and not DIGEST.fullmatch(digest):
            raise refuse(f"{digest!a} is no digest", "a digest is sha256: and 64 hexadecimal digits in lower case")
        return cls(registry, repository, (tag or None) if colon or at else "latest", digest or None)

    @property
    def name(self) -> str:
        """The last part of the repository."""
        return self.repository.rpartition("/")[2]

    @property
    def target(self) -> str:
        """What a manifest is asked for by."""
        return self.digest or self.tag or ""

    @property
    def host(self) -> str:
        host, _, port = self.registry.rpartition(":")
        return (host if host and port.isdigit() else self.registry).strip("[]")

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.registry}/{self.repository}{tag}" + (f"@{self.digest}" if self.digest else "")


def is_loopback(host: str) -> bool:
    """Of this very machine, where nobody listens in."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
