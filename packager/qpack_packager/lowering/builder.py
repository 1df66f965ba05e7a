"""Collects the buffers, weight modules and instructions of one program while a family is lowered."""

from collections.abc import Mapping
from dataclasses import replace

from qpack_packager.lowering.modules import Module, Rows, dense, marlin
from qpack_packager.weights_policy import kept_reason
from qpack_schemas.errors import InputError
from qpack_schemas.program import Arena, Buffer, Instruction, Kind, Program, align


class Shared:
    """What both programs name: weight modules, and the buffers that outlive a step, placed one behind the other."""

    def __init__(self, sources: Mapping[str, tuple[str, tuple[int, ...]]], where: str):
        self.sources = sources  # checkpoint tensor -> (dtype, shape)
        self.where = where  # the checkpoint, for messages
        self.modules: dict[str, Module] = {}
        self.buffers: dict[str, Buffer] = {}
        self.end: dict[Arena, int] = {"state": 0, "io": 0}

    def add_buffer(self, arena: Arena, name: str, dtype: str, *shape: int) -> str:
        if name not in self.buffers:
            self.buffers[name] = Buffer(arena, dtype, shape, self.end[arena])
            self.end[arena] += align(self.buffers[name].bytes())
        return name

    def add_module(self, module: Module) -> Module:
        self.modules.setdefault(module.name, module)
        return module

    def expect(self, name: str, shape: tuple[int, ...]) -> str:
        """The dtype of a checkpoint tensor that must be there in this shape."""
        if name not in self.sources:
            raise InputError(f"tensor {name!r} of shape {list(shape)} is missing", where=self.where)
        dtype, actual = self.sources[name]
        if actual != shape:
            message = f"tensor {name!r} has shape {list(actual)}, config.json asks for {list(shape)}"
            raise InputError(message, where=self.where)
        if dtype not in ("float32", "bfloat16", "float16"):
            raise InputError(f"tensor {name!r} is {dtype}, not float32, bfloat16 or float16", where=self.where)
        return dtype


class Builder:
    """One program in the making. Names of buffers are values: each is written by one instruction."""

    def __init__(self, kind: Kind, activation: str, shared: Shared):
        self.kind: Kind = kind
        self.activation, self.shared = activation, shared
        self.buffers: dict[str, Buffer] = {}
        self.code: list[Instruction] = []

    def work(self, name: str, *shape: int | str, dtype: str = "") -> str:
        self.buffers[name] = Buffer("work", dtype or self.activation, shape)
        return name

    def io(self, name: str, dtype: str, *shape: int | str) -> str:
        self.buffers[name] = Buffer("io", dtype, shape)
        return name

    def state(self, name: str, *shape: int, dtype: str = "") -> str:
        return self.shared.add_buffer("state", name, dtype or self.activation, *shape)

    def emit(
        self,
        op: str,
        inputs: Mapping[str, str | None],
        outputs: Mapping[str, str | None],
        updates: Mapping[str, str] | None = None,
        **attrs: int | float | bool,
    ) -> None:
        """Appends an instruction; operands that are None are absent."""
        given = {name: buffer for name, buffer in inputs.items() if buffer is not None}
        made = {name: buffer for name, buffer in outputs.items() if buffer is not None}
        self.code.append(Instruction(op, given, made, dict(updates or {}), attrs))

    def dense(
        self, name: str, sources: Mapping[Rows, tuple[int, ...]], *, stored: tuple[int, ...] = (), dtype: str = ""
    ) -> str:
        """Tensors kept as they are, joined along the first axis; in their common dtype, or float32 if they differ.

        `stored`, if given, is the shape in the bundle: more (zero) lines, or without the dimensions of 1."""
        dtypes = {self.shared.expect(rows.tensor, self._whole(rows, shape)) for rows, shape in sources.items()}
        shapes = list(sources.values())
        shape = (sum(part[0] for part in shapes), *shapes[0][1:])
        dtype = dtype or (dtypes.pop() if len(dtypes) == 1 else "float32")
        self.shared.add_module(dense(name, tuple(sources), shape, stored or shape, dtype))
        return name

    def linear(
        self, x: str, name: str, sources: Mapping[Rows, int], k: int, *, bias: Mapping[Rows, int] | None = None
    ) -> str:
        """y = x @ W^T + bias, the sources (tensor -> lines) joined: int4 unless the policy keeps one of them dense."""
        shapes = {rows: (n, k) for rows, n in sources.items()}
        n, weight = sum(sources.values()), f"layers.{name}"
        y = self.work(f"{name}.y", "R", n)
        vector = self.dense(f"{weight}.bias", {rows: (n,) for rows, n in bias.items()}) if bias else None
        if any(kept_reason(rows.tensor) for rows in sources):
            inputs = {"x": x, "weight": self.dense(f"{weight}.weight", shapes), "bias": vector}
            self.emit("linear", inputs, {"y": y})
            return y
        for rows, shape in shapes.items():
            self.shared.expect(rows.tensor, self._whole(rows, shape))
        self.shared.add_module(marlin(weight, tuple(sources), (n, k)))
        self.emit("linear_int4", {"x": x, "q": f"{weight}.q", "scale": f"{weight}.scale", "bias": vector}, {"y": y})
        return y

    @staticmethod
    def _whole(rows: Rows, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the checkpoint tensor that `rows` are taken from: query and gate are halves of one."""
        return (2 * shape[0], *shape[1:]) if rows.part else shape

    def finish(self, most_rows: int) -> Program:
        """The program with its io placed behind the shared io; work is placed by the planner."""
        end = self.shared.end["io"]
        for name, buffer in self.buffers.items():
            if buffer.arena == "io":
                self.buffers[name] = replace(buffer, offset=end)
                end += align(buffer.bytes(most_rows))
        return Program(self.kind, self.activation, self.buffers, tuple(self.code))
