"""`qpack tuning-kit`: kernels for several tiles of each int4 weight, to be measured on a device.

A kernel of a kit is the one that a build would make for the same tile: both come from decode.linear_int4. It is
measured with a reader behind it, so that more planes cost what they cost.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from qpack_packager.bundle_writer import refuse_existing, writing
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.cuda.compiler.toolchain import compilers
from qpack_packager.cuda.lowering import both, decode
from qpack_packager.cuda.lowering.launches import Launches, operands
from qpack_packager.cuda.lowering.lower import LoweredTarget, shared_of
from qpack_packager.cuda.lowering.tiles import Tile, Tuning, candidates, choose, cost
from qpack_packager.cuda.package import add_kernels
from qpack_packager.cuda.spec import KernelSpec
from qpack_packager.cuda.targets import Architecture, Target
from qpack_packager.devices import typical
from qpack_packager.prepare import prepare
from qpack_packager.progress import Progress
from qpack_packager.quantize.groups import GROUP
from qpack_packager.serving import Options
from qpack_schemas.errors import UsageError
from qpack_schemas.manifest import Kernel, seal
from qpack_schemas.program import Buffer, Instruction, Program
from qpack_schemas.strict_json import JsonValue
from qpack_schemas.tuning_kit import KIT, VERSION, Candidate, KitDocument, Weight, open_kit

CHEAPEST = 12  # tiles of a shape that are measured, by the cost model; a shape may have 24
READ = "read"  # the output of the reader

Choices = dict[str, Weight]  # padded shape "KxN" -> its candidates


def make_kit(
    text: ModelText, output: Path, options: Options, progress: Progress, *, kernel_cache: Path | None = None
) -> KitDocument:
    """Makes the kit of a checkpoint at `output`, whole or not at all. It needs the checkpoint's headers, no weights.

    With `options.tuning`, the tiles of that file are measured again beside the others. Raises UsageError if `options`
    name no GPU or `output` exists."""
    refuse_existing(output)
    prepared = prepare(text, options)
    targets = [one.target for one in prepared.targets if one.target.format == "cubin"]
    if not targets:
        raise UsageError("a tuning kit is for GPUs, and --target names none", remedy="add --target cuda:sm_89")
    tuning = Tuning.read(options.tuning) if options.tuning else Tuning()
    program, shared = prepared.lowered.programs["decode"], shared_of(prepared.lowered)
    lowered: list[LoweredTarget] = []
    choices: dict[str, Choices] = {}
    for target in targets:
        choices[target.name], specs = lower_candidates(program, shared, target, tuning)
        lowered.append(LoweredTarget(target, {}, specs))
    with writing(output) as writer:
        kernels = add_kernels(lowered, writer, progress, kernel_cache)
        document: JsonValue = {
            "kit_version": VERSION,
            "activation": program.activation,
            "rows": sorted({1, prepared.serving.most_rows("decode")}),
            "targets": {
                target.name: _describe(target, kernels[target.name], choices[target.name]) for target in targets
            },
        }
        writer.add(KIT, seal(document))
        return open_kit(writer.folder).document


def lower_candidates(
    program: Program, shared: Mapping[str, Buffer], target: Target, tuning: Tuning
) -> tuple[Choices, dict[str, KernelSpec]]:
    """What is measured for every shape of the decode `program` but the head's, and the kernels of it all by name. Of
    weights that are padded to the same shape the first stands for all."""
    choices: Choices = {}
    specs: dict[str, KernelSpec] = {}
    for index, instruction in enumerate(program.code):
        if instruction.op != "linear_int4" or both.is_head(program, index):
            continue
        o = operands(instruction)
        lines, width = shared[o["scale"]].extent(1)
        if (shape := f"{lines * GROUP}x{width}") in choices:
            continue
        columns = {name: program.buffers[o[name]].extent(1)[1] for name in ("x", "y")}
        weight: Weight = {"k": columns["x"], "n": columns["y"], "candidates": []}
        for tile in measured_tiles(target, tuning, lines * GROUP, width):
            pair = launch_pair(program, shared, index, tile, target.architecture)
            weight["candidates"].append(_candidate(tile, pair))
            specs |= pair.specs
        choices[shape] = weight
    return choices, dict(sorted(specs.items()))


def measured_tiles(target: Target, tuning: Tuning, k: int, n: int) -> Iterator[Tile]:
    """Tiles of padded codes [k, n]: the cheapest, the model's choice in front; last the tuned one, unless it is among
    them."""
    device = typical(f"sm_{target.sm}")
    ranked = sorted(candidates(k, n), key=lambda tile: (cost(device, k, n, tile), tile.planes, -tile.columns))
    yield from dict.fromkeys([*ranked[:CHEAPEST], choose(device, tuning, k, n)])


def launch_pair(
    program: Program, shared: Mapping[str, Buffer], index: int, tile: Tile, architecture: Architecture
) -> Launches:
    """Instruction `index`, a linear_int4, as a build launches it with this tile, and silu_mul over all that it wrote.
    The bias is the reader's, so the pair goes without."""
    o = operands(program.code[index])
    read = Buffer("work", program.activation, ("R", program.buffers[o["y"]].extent(1)[1] // 2))
    code = (
        Instruction("linear_int4", {name: o[name] for name in ("x", "q", "scale", "zero") if name in o}, {"y": o["y"]}),
        Instruction("silu_mul", {"x": o["y"]}, {"y": READ}),
    )
    buffers = {o["x"]: program.buffers[o["x"]], o["y"]: program.buffers[o["y"]], READ: read}
    to = Launches(Program("decode", program.activation, buffers, code), shared, architecture)
    decode.linear_int4(to, 0, tile)
    both.silu_mul(to, 1)
    return to


def _candidate(tile: Tile, pair: Launches) -> Candidate:
    gemm, reader = pair.launches
    return {
        "columns": tile.columns,
        "planes": tile.planes,
        "gemm": gemm.kernel,
        "gemm_grid": list(gemm.grid),
        "reader": reader.kernel,
        "reader_grid": list(reader.grid),
    }


def _describe(target: Target, kernels: Mapping[str, Kernel], weights: Choices) -> JsonValue:
    return {
        "architecture": target.architecture_name,
        "scope": target.scope,
        "format": target.format,
        "toolkit": target.toolkit,
        "min_driver": target.min_driver,
        "max_shared_bytes": max(kernel["shared_bytes"] for kernel in kernels.values()),
        "compilers": compilers(target),
        "kernels": dict(kernels),
        "weights": weights,
    }
