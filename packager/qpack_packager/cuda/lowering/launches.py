"""Collects the launches of one program on one target: kernels, arguments, and how work buffers are held."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from qpack_packager.cuda.lowering.signatures import arguments
from qpack_packager.cuda.spec import Constant, KernelSpec
from qpack_packager.cuda.targets import Architecture
from qpack_packager.planner import plan
from qpack_schemas.launch_rules import TRITON_TYPES
from qpack_schemas.launch_table import SCRATCH_MARK, Argument, Grid, Launch, LaunchTable, Scalar, TargetBuffer
from qpack_schemas.program import Buffer, Instruction, Program

ROWS = Scalar("R")


@dataclass(frozen=True)
class Held:
    """How the output of a linear waits for its readers: `planes` float32 planes without the bias, or (0) as it is."""

    planes: int
    bias: str | None


class Launches:
    """The launches so far. Work buffers come to be when they are first named; the program's own are held as it says."""

    def __init__(self, program: Program, shared: Mapping[str, Buffer], architecture: Architecture):
        self.program, self.architecture = program, architecture
        self.buffers = {**shared, **program.buffers}
        self.work: dict[str, TargetBuffer] = {}
        self.launches: list[Launch] = []
        self.specs: dict[str, KernelSpec] = {}
        self._held: dict[str, Held] = {}

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a buffer of the program or the manifest, for one row."""
        return self.buffers[name].extent(1)

    def rows(self, name: str) -> int | str:
        return self.buffers[name].shape[0]

    def hold(self, name: str, planes: int, bias: str | None) -> None:
        """The output of a linear is kept as planes; the reader adds the bias."""
        (columns,) = self.shape(name)[1:]
        self._held[name] = Held(planes, bias)
        self.work[name] = TargetBuffer("float32", (planes, "R", columns), -1)

    def held(self, name: str | None) -> Held:
        return self._held.get(name or "", Held(0, None))

    def scratch(self, owner: str, purpose: str, dtype: str, *shape: int | str) -> str:
        """A buffer that lives between the launches of one instruction; named after one of its outputs."""
        name = f"{owner}{SCRATCH_MARK}{purpose}"
        self.work[name] = TargetBuffer(dtype, shape, -1)
        return name

    def launch(
        self,
        function: str,
        code: tuple[int, int],
        grid: Grid,
        given: Mapping[str, str | Scalar | Constant],
        *,
        warps: int = 4,
        stages: int = 2,
        fp_fusion: bool = True,
    ) -> None:
        """Appends a launch. `given` has a buffer (str), a Scalar or a constant for every argument of the kernel."""
        order = arguments(function)
        if set(order) != set(given):
            raise AssertionError(f"{function}: {sorted(set(order) ^ set(given))} are not given or not known")
        types: list[tuple[str, str]] = []
        constants: list[tuple[str, Constant]] = []
        args: list[Argument] = []
        for name in order:
            value = given[name]
            if isinstance(value, str):
                types.append((name, TRITON_TYPES[self._dtype(value)]))
                args.append(value)
            elif isinstance(value, Scalar):
                types.append((name, "i32"))
                args.append(value)
            else:
                constants.append((name, value))
        spec = KernelSpec(function, tuple(types), tuple(constants), warps, stages, fp_fusion)
        self.specs[spec.name] = spec
        after = (len(self.launches) - 1,) if self.launches else ()
        self.launches.append(Launch(spec.name, code, grid, tuple(args), after))

    def _dtype(self, name: str) -> str:
        if name in self.work:
            return self.work[name].dtype
        buffer = self.buffers[name]
        if buffer.arena == "work":
            self.work[name] = TargetBuffer(buffer.dtype, buffer.shape, -1)
        return buffer.dtype

    def finish(self, target: str) -> LaunchTable:
        """The table, with an offset for every work buffer."""
        table = LaunchTable(self.program.kind, target, self.work, tuple(self.launches))
        offsets = plan({name: buffer.bytes_per_row() for name, buffer in self.work.items()}, table.lifetimes())
        return replace(table, work={n: replace(b, offset=offsets[n]) for n, b in self.work.items()})


def operands(instruction: Instruction) -> dict[str, str]:
    """Operand -> buffer, for the operands that are present."""
    return {operand.name: name for operand, name in instruction.operands()}


def block(size: int, most: int = 1 << 30) -> int:
    """The next power of two, which Triton's blocks must be."""
    return min(most, 1 << max(0, size - 1).bit_length())
