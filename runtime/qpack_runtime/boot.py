"""`open`: from a directory to something that decodes. Verifies first, allocates second, binds last."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tokenizers import Tokenizer

from qpack_runtime.detokenizer import TokenBytes
from qpack_runtime.engine import Engine
from qpack_runtime.probes import check_probes
from qpack_runtime.reference.executor import ReferenceExecutor
from qpack_schemas.bundle import Bundle, open_bundle
from qpack_schemas.bundle_rules import TOKENIZER_PATH
from qpack_schemas.errors import Finding, IntegrityError, UsageError

if TYPE_CHECKING:
    from qpack_runtime.cuda.executor import CudaExecutor

Device = Literal["reference", "cuda"]


@dataclass(frozen=True)
class Booted:
    bundle: Bundle
    executor: "ReferenceExecutor | CudaExecutor"
    engine: Engine
    tokenizer: Tokenizer
    token_bytes: TokenBytes
    seconds: dict[str, float]  # per phase

    @property
    def notes(self) -> list[str]:
        """Lines for whoever watches: the GPU, and what was allowed and taken up."""
        return [] if isinstance(self.executor, ReferenceExecutor) else self.executor.notes

    @property
    def facts(self) -> dict[str, Any]:
        """What the executor measured and decided, for machines."""
        return {} if isinstance(self.executor, ReferenceExecutor) else self.executor.facts


class Phases:
    """The seconds between one mark and the next."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def mark(self, phase: str) -> None:
        """`phase` ends here."""
        now = time.perf_counter()
        self.seconds[phase], self._last = now - self._last, now


def boot(path: Path, device: Device = "reference", *, allow_eager: bool = False, allow_ptx: bool = False) -> Booted:
    """Boots the bundle at `path` on a device. The permissions are for "cuda": launches without a graph where the driver
    makes none, and kernels that the driver compiles.

    Raises BundleError if the bundle must not be opened, UnsupportedError or FitError if it can't run here."""
    if device != "cuda" and (allow_eager or allow_ptx):
        raise UsageError(
            f"device {device} has neither graphs nor PTX", remedy="leave --allow-eager and --allow-ptx out"
        )
    phases = Phases()
    bundle = open_bundle(path)
    phases.mark("verify")
    if device == "cuda":
        from qpack_runtime.cuda.executor import CudaExecutor

        executor = CudaExecutor(bundle, allow_eager=allow_eager, allow_ptx=allow_ptx, marked=phases.mark)
    else:
        executor = ReferenceExecutor(bundle)
        phases.mark("bind")
    engine = Engine(executor, bundle.manifest)
    try:
        tokenizer = Tokenizer.from_str((path / TOKENIZER_PATH).read_text(encoding="utf-8"))
    except Exception as error:  # the library raises bare Exception
        finding = Finding(TOKENIZER_PATH, f"the tokenizers library does not read it: {error}")
        raise IntegrityError("the tokenizer can't be loaded:", [finding], where=str(path)) from None
    check_probes(path, bundle.manifest, tokenizer)
    token_bytes = TokenBytes(tokenizer)
    phases.mark("tokenizer")
    return Booted(bundle, executor, engine, tokenizer, token_bytes, phases.seconds)
