"""`open`: from a directory to something that decodes. Verifies first, allocates second, binds last."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer

from qpack_runtime.boot_watch import BootWatch
from qpack_runtime.detokenizer import TokenBytes
from qpack_runtime.engine import Engine, Executor
from qpack_runtime.exchanged import refuse_exchanged
from qpack_runtime.probes import check_probes
from qpack_runtime.signature import trust_of
from qpack_schemas.bundle import Bundle, open_bundle
from qpack_schemas.bundle_rules import TOKENIZER_PATH
from qpack_schemas.errors import Finding, IntegrityError, UsageError

Device = Literal["cpu", "cuda", "reference"]
Mode = Literal["fast", "exact"]
Verify = Literal["full", "quick"]


@dataclass(frozen=True)
class Booted:
    bundle: Bundle
    device: Device
    executor: Executor
    engine: Engine
    tokenizer: Tokenizer
    token_bytes: TokenBytes
    seconds: dict[str, float]  # per phase

    notes: list[str]  # lines for whoever watches: the GPU, and what was allowed and taken up

    @property
    def facts(self) -> dict[str, Any]:
        """What the executor decided and measured, for machines."""
        return self.executor.facts


def boot(
    path: Path,
    device: Device | None = None,
    *,
    mode: Mode | None = None,
    threads: int | None = None,
    code_path: str | None = None,
    verify: Verify = "full",
    allow_eager: bool = False,
    allow_ptx: bool = False,
    require_signature: bool = False,
    pubkeys: Sequence[Path] = (),
    min_version: str | None = None,
    watch: BootWatch | None = None,
) -> Booted:
    """Boots the bundle at `path` on a device: without one on the CPU, or by the reference executor where this
    installation has no kernels for it, which `notes` then say.

    `mode`, `threads` and `code_path` are for "cpu", the permissions for "cuda": launches without a graph where the
    driver makes none, and kernels that the driver compiles. `verify` "quick" compares
    files by size only. With `require_signature` one of the `pubkeys` must have signed the bundle, as `min_version` or
    newer. `watch` is told of each phase and bucket while the boot goes on.

    Raises BundleError if the bundle must not be opened, TrustError if nobody trusted has signed it, UnsupportedError
    or FitError if it can't run here, InputError if another bundle took its place meanwhile."""
    notes = []
    if device is None:
        from qpack_runtime.cpu.native import LIBRARY

        device = "cpu" if LIBRARY.exists() else "reference"
        if device == "reference":
            notes = ["this installation has no CPU kernels, so the slow reference executor runs; a wheel has them"]
    if device != "cuda" and (allow_eager or allow_ptx):
        raise UsageError(
            f"device {device} has neither graphs nor PTX", remedy="leave --allow-eager and --allow-ptx out"
        )
    if device != "cpu" and (mode or threads or code_path):
        raise UsageError(
            f"device {device} has one mode and its own threads", remedy="leave --mode, --threads and --code-path out"
        )
    trust = trust_of(require_signature, pubkeys, min_version, quick=verify == "quick")
    watch = watch or BootWatch()
    watch.begin("verify")
    bundle = open_bundle(path, digests=verify == "full")
    if trust:
        from qpack_delivery.signing.verify import check_signature

        notes.append(str(check_signature(path, bundle.bundle_id, trust)))
    watch.expected = tuple(bundle.manifest["capture_order"])
    executor = _executor(bundle, device, mode, threads, code_path, allow_eager, allow_ptx, watch)
    watch.begin("tokenizer")
    engine = Engine(executor, bundle.manifest)
    try:
        tokenizer = Tokenizer.from_str((path / TOKENIZER_PATH).read_text(encoding="utf-8"))
    except Exception as error:  # the library raises bare Exception
        finding = Finding(TOKENIZER_PATH, f"the tokenizers library does not read it: {error}")
        raise IntegrityError("the tokenizer can't be loaded:", [finding], where=str(path)) from None
    check_probes(path, bundle.manifest, tokenizer)
    token_bytes = TokenBytes(tokenizer, engine.vocab)
    refuse_exchanged(bundle)
    watch.end()
    notes += executor.notes
    return Booted(bundle, device, executor, engine, tokenizer, token_bytes, watch.seconds, notes)


def _executor(
    bundle: Bundle,
    device: Device,
    mode: Mode | None,
    threads: int | None,
    code_path: str | None,
    allow_eager: bool,
    allow_ptx: bool,
    watch: BootWatch,
) -> Executor:
    """Each is imported only where it is asked for."""
    if device == "cuda":
        from qpack_runtime.cuda.executor import CudaExecutor

        return CudaExecutor(bundle, allow_eager=allow_eager, allow_ptx=allow_ptx, watch=watch)
    if device == "cpu":
        from qpack_runtime.cpu.executor import CpuExecutor

        return CpuExecutor(bundle, mode=mode or "fast", threads=threads, code_path=code_path, watch=watch)
    from qpack_runtime.reference.executor import ReferenceExecutor

    return ReferenceExecutor(bundle, watch=watch)
