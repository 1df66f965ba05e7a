"""One kernel to be compiled: a Triton function with the types of its arguments and its compile-time constants."""

import hashlib
from dataclasses import asdict, dataclass

from qpack_schemas.strict_json import dump_compact

Constant = int | float | bool | None  # None stands for an absent operand


@dataclass(frozen=True)
class KernelSpec:
    function: str  # module.function within qpack_packager.cuda.kernels
    types: tuple[tuple[str, str], ...]  # run-time arguments in order: name, Triton type ("*bf16", "i32")
    constants: tuple[tuple[str, Constant], ...]  # by name
    warps: int = 4
    stages: int = 2
    fp_fusion: bool = True  # whether a * b + c may be rounded once

    @property
    def name(self) -> str:
        """The kernel's name and its entry point in the cubin: the function, and a digest of all the rest."""
        digest = hashlib.sha256(dump_compact(asdict(self))).hexdigest()
        return f"{self.function.rpartition('.')[2]}_{digest[:8]}"
