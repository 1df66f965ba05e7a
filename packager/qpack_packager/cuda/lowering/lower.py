"""Programs -> launch tables and the kernels they need, for one target. Nothing is compiled here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qpack_packager.cuda.lowering import both, decode, prefill
from qpack_packager.cuda.lowering.launches import Launches, operands
from qpack_packager.cuda.lowering.refusals import check_graphable
from qpack_packager.cuda.lowering.sampling import sample
from qpack_packager.cuda.lowering.tiles import Tuning, choose
from qpack_packager.cuda.spec import KernelSpec
from qpack_packager.cuda.targets import Target, forward_path, parse_targets
from qpack_packager.devices import typical
from qpack_packager.lowering.lower import Lowered
from qpack_packager.quantize.groups import GROUP
from qpack_schemas.launch_table import LaunchTable
from qpack_schemas.program import Buffer, Kind, Program

Emit = Callable[[Launches, int], int]
BOTH: Mapping[str, Emit] = {
    "rms_norm": both.rms_norm,
    "linear": both.linear,
    "linear_int8": both.linear_int8,
    "silu_mul": both.silu_mul,
    "rope_kv_write": both.rope_kv_write,
    "sample": sample,
}
DECODE: Mapping[str, Emit] = {
    "rows_decode": decode.begin,
    "attention": decode.attention,
    "causal_conv1d": decode.delta,
}
PREFILL: Mapping[str, Emit] = {
    "rows_prefill": prefill.begin,
    "embed": prefill.embed,
    "embed_int8": prefill.embed,
    "attention": prefill.attention,
    "causal_conv1d": prefill.causal_conv1d,
    "gated_delta": prefill.gated_delta,
    "take_rows": prefill.take_rows,
}


@dataclass(frozen=True)
class LoweredTarget:
    """What one target needs: a launch table per program, and their kernels by name."""

    target: Target
    tables: Mapping[Kind, LaunchTable]
    specs: Mapping[str, KernelSpec]


def lower_targets(lowered: Lowered, names: Sequence[str], tuning: Path | None) -> tuple[LoweredTarget, ...]:
    """All that `--target` asks for by `names` and, if that is any GPU, the PTX for newer ones. Raises UnsupportedError
    for a target that is not known."""
    targets = parse_targets(name for name in names if name != "cpu")
    if not targets:
        return ()
    measured = Tuning.read(tuning) if tuning else Tuning()
    shared = shared_of(lowered)
    return tuple(
        lower_target(lowered.programs, shared, target, measured) for target in (*targets, forward_path(targets))
    )


def shared_of(lowered: Lowered) -> dict[str, Buffer]:
    """Weights and the buffers that outlive a step, by name."""
    weights = lowered.layout
    return {**weights, **lowered.buffers}


def lower_target(
    programs: Mapping[Kind, Program], shared: Mapping[str, Buffer], target: Target, tuning: Tuning
) -> LoweredTarget:
    """`shared`: weights and the buffers that outlive a step, by name. Raises UnsupportedError for a model that the
    kernels don't cover, InputError for a tuning file that doesn't fit it."""
    tables: dict[Kind, LaunchTable] = {}
    specs: dict[str, KernelSpec] = {}
    for kind, program in programs.items():
        check_graphable(program, shared, target.name)
        launches = Launches(program, shared, target.architecture)
        emitters = {**BOTH, **(PREFILL if kind == "prefill" else DECODE), "linear_int4": _linear_int4(target, tuning)}
        index = 0
        while index < len(program.code):
            index += emitters[program.code[index].op](launches, index)
        tables[kind] = launches.finish(target.name)
        specs |= launches.specs
    return LoweredTarget(target, tables, dict(sorted(specs.items())))


def _linear_int4(target: Target, tuning: Tuning) -> Emit:
    """Of prefill all but the head multiplies many rows. The head's tile is never a tuned one: it has one plane."""
    device = typical(f"sm_{target.sm}")

    def emit(to: Launches, index: int) -> int:
        lines, width = to.shape(operands(to.program.code[index])["scale"])
        if both.is_head(to.program, index):
            return decode.linear_int4(to, index, choose(device, Tuning(), lines * GROUP, width, most_planes=1))
        if to.program.kind == "prefill":
            return prefill.linear_int4(to, index)
        return decode.linear_int4(to, index, choose(device, tuning, lines * GROUP, width))

    return emit
