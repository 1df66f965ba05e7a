"""Collects the buffers, weight modules and instructions of one program while a family is lowered."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from qpack_packager.checkpoint.source_tensor import FLOATS, PackedTensor, Tensor, as_packed
from qpack_packager.lowering.modules import Module, Rows, dense, int8, marlin
from qpack_packager.weights_policy import LayerForms
from qpack_schemas.errors import InputError, UsageError
from qpack_schemas.program import Arena, Buffer, Instruction, Kind, Program, align


class Shared:
    """What both programs name: weight modules, and the buffers that outlive a step, placed one behind the other."""

    def __init__(self, sources: Mapping[str, Tensor], forms: LayerForms, where: str):
        self.sources = sources  # the checkpoint's tensors
        self.forms = forms  # what becomes of the weights of layers
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
        dtype, actual = self.sources[name].dtype, self.sources[name].shape
        if actual != shape:
            message = f"tensor {name!r} has shape {list(actual)}, config.json asks for {list(shape)}"
            raise InputError(message, where=self.where)
        if dtype == "float64":
            raise InputError(f"tensor {name!r} is {dtype}, not float32, bfloat16 or float16", where=self.where)
        return dtype

    def dense_dtype(self, name: str, shape: tuple[int, ...]) -> str:
        """Likewise, of one that is to be stored as it is."""
        if (dtype := self.expect(name, shape)) not in FLOATS:
            raise InputError(
                f"tensor {name!r} is quantized ({dtype}), but the model needs it as numbers", where=self.where,
                remedy="export the checkpoint with this tensor unquantized",
            )  # fmt: skip
        return dtype

    def packed(self, module: str, tensors: Sequence[str]) -> list[PackedTensor]:
        """Those of the checkpoint that are int4 already: of weights that are multiplied together all or none, and with
        scales of one dtype."""
        found = {name: as_packed(self.sources[name]) for name in tensors}
        packed = {name: tensor for name, tensor in found.items() if tensor}
        if packed and (others := found.keys() - packed.keys()):
            name = min(others)
            raise UsageError(
                f"is {self.sources[name].dtype} in the checkpoint, and is multiplied together with weights that are "
                "int4 there", where=name, remedy="export the checkpoint with all of them quantized, or none",
            )  # fmt: skip
        if len({tensor.scale_dtype for tensor in packed.values()}) > 1:
            dtypes = ", ".join(f"{tensor.scale_dtype} ({name})" for name, tensor in packed.items())
            raise InputError(
                f"their scales are {dtypes}; weights that are multiplied together need scales of one dtype",
                where=module, remedy="export the checkpoint in one dtype",
            )  # fmt: skip
        return list(packed.values())


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
        dtypes = {self.shared.dense_dtype(rows.tensor, self._whole(rows, shape)) for rows, shape in sources.items()}
        shapes = list(sources.values())
        shape = (sum(part[0] for part in shapes), *shapes[0][1:])
        dtype = dtype or (dtypes.pop() if len(dtypes) == 1 else "float32")
        lines = {rows: part[0] for rows, part in sources.items()}
        self.shared.add_module(dense(name, lines, shape, stored or shape, dtype))
        return name

    def linear(
        self, x: str, name: str, sources: Mapping[Rows, int], k: int, *, bias: Mapping[Rows, int] | None = None
    ) -> str:
        """y = x @ W^T + bias, the sources (tensor -> lines) joined, in the form that they are to have."""
        shapes = {rows: (n, k) for rows, n in sources.items()}
        n, weight = sum(sources.values()), f"layers.{name}"
        y = self.work(f"{name}.y", "R", n)
        vector = self.dense(f"{weight}.bias", {rows: (n,) for rows, n in bias.items()}) if bias else None
        for rows, shape in shapes.items():
            self.shared.expect(rows.tensor, self._whole(rows, shape))
        whole = {rows.tensor: self.shared.sources[rows.tensor] for rows in sources}
        form = self.shared.forms.of(whole, self.shared.where)
        if form == "dense":
            inputs = {"x": x, "weight": self.dense(f"{weight}.weight", shapes), "bias": vector}
            self.emit("linear", inputs, {"y": y})
            return y
        tensors = self.quantized(weight, form, sources, k, n)
        self.emit(f"linear_{form}", {"x": x, **tensors, "bias": vector}, {"y": y})
        return y

    def quantized(self, name: str, form: str, sources: Mapping[Rows, int], k: int, n: int) -> dict[str, str]:
        """A weight as codes, which gives `n` outputs. Operand of a product -> tensor of the bundle."""
        packed = self.shared.packed(name, [rows.tensor for rows in sources])
        if form == "int8":
            module = int8(name, sources, k, n)
        elif packed:
            scale = packed[0].scale_dtype
            module = marlin(name, sources, k, scale, imported=True, zeros=any(one.asymmetric for one in packed))
        else:
            module = marlin(name, sources, k)
        self.shared.add_module(module)
        return {tensor.removeprefix(f"{name}."): tensor for tensor in module.tensors}

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
