"""Binds programs to memory once, then runs a bucket as a list of calls: no name is looked up per step."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from qpack_runtime.arenas import Arenas, numeric
from qpack_runtime.boot_watch import BootWatch
from qpack_runtime.reference import instructions, int8, marlin, mixers, sampling
from qpack_schemas.bundle import Bundle
from qpack_schemas.instructions import INSTRUCTIONS
from qpack_schemas.program import Instruction, Program

FUNCTIONS: dict[str, Callable[..., None]] = {
    "rows_decode": instructions.rows_decode,
    "rows_prefill": instructions.rows_prefill,
    "embed": instructions.embed,
    "embed_int8": instructions.embed_int8,
    "rms_norm": instructions.rms_norm,
    "linear_int4": instructions.linear_int4,
    "linear_int8": instructions.linear_int8,
    "linear": instructions.linear,
    "rope_kv_write": mixers.rope_kv_write,
    "attention": mixers.attention,
    "silu_mul": instructions.silu_mul,
    "causal_conv1d": mixers.causal_conv1d,
    "gated_delta": mixers.gated_delta,
    "take_rows": instructions.take_rows,
    "sample": sampling.sample,
}
SAMPLED = INSTRUCTIONS["sample"].names("output")
PARTS = ("weight", "ba", "q", "scale", "zero")  # operands that a matrix is made of


class ReferenceExecutor:
    """Runs the programs of a bundle. `io(bucket)` are the static buffers the host writes before and reads after
    `run`."""

    lookahead = False  # a launch is over when it returns
    same_bits = True
    fallbacks = 0  # a bucket is bound or the boot fails

    def __init__(self, bundle: Bundle, *, watch: BootWatch | None = None):
        watch = watch or BootWatch()
        watch.begin("bind")
        self.notes: list[str] = []
        self.facts: dict[str, Any] = {}
        self.arenas = Arenas(bundle, numeric)
        self._matrices: dict[tuple[str, ...], np.ndarray] = {}
        self._calls: dict[str, list[Callable[[], None]]] = {}
        self._io: dict[str, dict[str, np.ndarray]] = {}
        bound: dict[tuple[str, int], list[Callable[[], None]]] = {}
        buckets = {bucket["name"]: bucket for bucket in bundle.manifest["buckets"]}
        for name in bundle.manifest["capture_order"]:
            program, rows = bundle.programs[buckets[name]["program"]], buckets[name]["rows"]
            if (program.kind, rows) not in bound:
                bound[program.kind, rows] = [self._bind(instruction, program, rows) for instruction in program.code]
            self._calls[name] = bound[program.kind, rows]
            named = {**self.arenas.shared, **program.buffers}
            self._io[name] = {n: self.arenas.view(n, b, rows) for n, b in named.items() if b.arena == "io"}
            watch.bucket_ready(name)

    def io(self, bucket: str) -> Mapping[str, np.ndarray]:
        return self._io[bucket]

    def state(self, name: str) -> np.ndarray:
        """A buffer that outlives the step, such as `slot_token` [slots + 1]."""
        return self.arenas.view(name, self.arenas.shared[name], 1)

    def run(self, bucket: str) -> None:
        """One step. Padding rows may hold anything, so what they overflow to is nobody's concern."""
        with np.errstate(all="ignore"):
            for call in self._calls[bucket]:
                call()

    def seat_written(self, slot: int) -> None:
        """The sampling tables are read where the host writes them."""

    def launch(self, bucket: str) -> dict[str, np.ndarray]:
        """One step, and copies of what `sample` gave."""
        self.run(bucket)
        return {name: self._io[bucket][name].copy() for name in SAMPLED}

    def read(self, ticket: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return ticket

    def logits(self, bucket: str) -> np.ndarray:
        return self._io[bucket]["logits"]

    def _bind(self, instruction: Instruction, program: Program, rows: int) -> Callable[[], None]:
        buffers = {**self.arenas.shared, **program.buffers}
        views = {operand.name: self.arenas.view(name, buffers[name], rows) for operand, name in instruction.operands()}
        if instruction.op == "linear_int4":
            k, n = views["x"].shape[1], views["y"].shape[1]
            words, scales, zeros = views["q"], views["scale"], views.get("zero")
            views["q"] = self._matrix(instruction, lambda: marlin.dequantize(words, scales, zeros)[:k, :n])
        if instruction.op == "linear_int8":
            k, codes, scales = views["x"].shape[1], views["q"], views["scale"]
            views["q"] = self._matrix(instruction, lambda: int8.dequantize(codes, scales)[:, :k])
        for operand in {"linear": ["weight"], "gated_delta": ["ba"]}.get(instruction.op, []):
            views[operand] = self._matrix(instruction, partial(views[operand].astype, np.float32))
        return partial(FUNCTIONS[instruction.op], **views, **instruction.attrs)

    def _matrix(self, instruction: Instruction, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The weight of a matrix product as float32, made once for all programs and buckets of the same tensors."""
        tensors = tuple(instruction.inputs[name] for name in PARTS if name in instruction.inputs)
        if tensors not in self._matrices:
            self._matrices[tensors] = np.ascontiguousarray(make())
        return self._matrices[tensors]
