"""What `qpack-runtime serve` was asked for, beyond the boot."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ServeOptions:
    host: str = "127.0.0.1"
    port: int = 8000
    model_name: str | None = None  # None: the name of the bundle's folder, or of its repository
    queue: int = 64  # sequences that may wait for a slot
    timeout: float = 600.0  # seconds that a request may take, from its arrival to its last token
    drain: float = 30.0  # seconds that running answers get after SIGTERM
    longest_wait: float = 0.1  # seconds that a prompt chunk may hold up running answers
    api_key_file: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    log_prompts: bool = False
    tracing: bool = False
    bundle_store: Path | None = None  # of bundles from registries; None: in the user's cache
    plain_http: bool = False  # to the registry

    @property
    def loopback(self) -> bool:
        return self.host in ("127.0.0.1", "::1", "localhost")
