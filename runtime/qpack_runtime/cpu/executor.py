"""Binds programs to memory once, as arrays of instructions that the kernels walk through: a step is one call."""

import ctypes
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from qpack_runtime.arenas import OPAQUE, Arenas, numeric
from qpack_runtime.boot_watch import BootWatch
from qpack_runtime.cpu import native
from qpack_runtime.cpu.host import default_threads
from qpack_runtime.cpu.packed import pack
from qpack_schemas.bundle import Bundle
from qpack_schemas.errors import FitError
from qpack_schemas.instructions import INSTRUCTIONS
from qpack_schemas.program import Program

Mode = Literal["fast", "exact"]
SAMPLED = INSTRUCTIONS["sample"].names("output")


class CpuExecutor:
    """Runs the programs of a bundle on `threads` threads. Mode "fast" multiplies with int8 activations, "exact" with
    float32 ones; `code_path` forces one of the instruction sets that the library has.

    Raises UnsupportedError if this installation has no kernels, FitError if memory is short."""

    lookahead = False  # a launch is over when it returns
    same_bits = True
    fallbacks = 0  # a bucket is bound or the boot fails

    def __init__(
        self,
        bundle: Bundle,
        *,
        mode: Mode = "fast",
        threads: int | None = None,
        code_path: str | None = None,
        watch: BootWatch | None = None,
    ):
        watch = watch or BootWatch()
        watch.begin("map")
        self.team = native.Team(native.Kernels(native.LIBRARY), threads or default_threads(), code_path)
        self.notes: list[str] = []
        self.facts = {"mode": mode, "threads": self.team.threads, "code_path": self.team.path}
        self.arenas = Arenas(bundle, OPAQUE.__getitem__)
        watch.begin("pack")
        self._packed = pack(bundle, self.arenas, self.team)
        watch.begin("bind")
        self._slots = bundle.manifest["slots"]
        self._programs: dict[str, Any] = {}  # bucket -> pointer to its bound program
        self._io: dict[str, dict[str, np.ndarray]] = {}
        self._sampled: dict[str, dict[str, np.ndarray]] = {}
        bound: dict[tuple[str, int], native.Program] = {}
        buckets = {bucket["name"]: bucket for bucket in bundle.manifest["buckets"]}
        for name in bundle.manifest["capture_order"]:
            program, rows = bundle.programs[buckets[name]["program"]], buckets[name]["rows"]
            if (program.kind, rows) not in bound:
                bound[program.kind, rows] = self._bind(program, rows, mode)
            self._programs[name] = ctypes.byref(bound[program.kind, rows])
            named = {**self.arenas.shared, **program.buffers}
            self._io[name] = {n: self.arenas.view(n, b, rows) for n, b in named.items() if b.arena == "io"}
            self._sampled[name] = {output: self._io[name][output] for output in SAMPLED}
        self._bound = list(bound.values())
        self._scratch = self._make_scratch()
        for name in self._programs:
            watch.bucket_ready(name)

    def io(self, bucket: str) -> Mapping[str, np.ndarray]:
        return self._io[bucket]

    def state(self, name: str) -> np.ndarray:
        """A buffer that outlives the step, such as `slot_token` [slots + 1]."""
        buffer = self.arenas.shared[name]
        return self.arenas.view(name, buffer, 1).view(numeric(buffer.dtype))

    def seat_written(self, slot: int) -> None:
        """The sampling tables are read where the host writes them."""

    def run(self, bucket: str) -> None:
        """One step."""
        self.team.kernels.run(self.team.handle, self._programs[bucket])

    def launch(self, bucket: str) -> dict[str, np.ndarray]:
        """One step, and copies of what `sample` gave."""
        self.run(bucket)
        return {name: view.copy() for name, view in self._sampled[bucket].items()}

    def read(self, ticket: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return ticket

    def logits(self, bucket: str) -> np.ndarray:
        return self._io[bucket]["logits"]

    def _bind(self, program: Program, rows: int, mode: Mode) -> native.Program:
        buffers = {**self.arenas.shared, **program.buffers}
        code = (native.Instruction * len(program.code))()
        for made, instruction in zip(code, program.code, strict=True):
            views = {o.name: self.arenas.view(name, buffers[name], rows) for o, name in instruction.operands()}
            native.fill(self.team.kernels, made, instruction.op, views, instruction.attrs)
            places = self.team.kernels.operands[instruction.op]
            for operand, name in instruction.operands():
                if name in self._packed:  # sizes and dtype stay those of the bundle's tensor
                    made.operands[places.index(operand.name)].data = self._packed[name].ctypes.data
        return native.Program(code=code, count=len(code), fast=mode == "fast", scratch_slot=self._slots)

    def _make_scratch(self) -> np.ndarray:
        """Room for the values that no instruction leaves to the next, shared by all programs."""
        needs = [self.team.kernels.scratch_bytes(self.team.handle, ctypes.byref(bound)) for bound in self._bound]
        try:
            raw = np.empty(max(needs) + 64, np.uint8)
        except MemoryError:
            raise FitError(
                f"the scratch of a step takes {max(needs):,} bytes, more than this host gives",
                remedy="build with smaller --prefill or --batch, or give fewer --threads",
            ) from None
        for bound in self._bound:
            bound.scratch = raw.ctypes.data + -raw.ctypes.data % 64
        return raw
