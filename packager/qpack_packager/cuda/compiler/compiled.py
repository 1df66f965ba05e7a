"""What the compiler makes of one kernel for one target."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CompiledKernel:
    """`image` is the cubin, or PTX in ASCII. `shared_bytes` is dynamic shared memory per block, `spills` bytes of local
    memory per thread (0, since other kernels are refused). For PTX `registers` and `spills` are None: the driver that
    assembles it decides."""

    image: bytes
    shared_bytes: int
    registers: int | None
    spills: int | None
