"""What quantization did to the tensors of a checkpoint, as drawings: how many there are, and how much was lost."""

import re
from collections.abc import Sequence
from statistics import median

from qpack_packager.commands.quant_errors import OutputError, QuantErrors, SourceError
from qpack_packager.commands.typeset import counted, percent
from qpack_packager.pages.axes import Axis, linear, within
from qpack_packager.pages.charts import Bar, Part, Point, Series, Stack, bars, scatter, stacked_bars
from qpack_packager.pages.layers import ROLES, layer_in, role_of
from qpack_packager.pages.render import Figure
from qpack_schemas.manifest import Quant

WORST = 10
# A tensor of a layer by its checkpoint's name: the layer, the block it is in, which of its projections.
_PROJECTION = re.compile(r"(?:.*\.)?layers\.([0-9]{1,6})\.([^.]+)\.(?:.*\.)?([^.]+)\.[^.]+")
_BLOCKS = {"self_attn": "attn", "linear_attn": "delta", "mlp": "mlp"}
_OTHER = (7, "other")


def fates(quant: Quant) -> Figure:
    """What became of the checkpoint's tensors, as one bar."""
    counts = quant["tensors"]
    shown = ((1, "quantized", counts["quantized"]), (3, "kept", counts["kept"]), (7, "dropped", counts["dropped"]))
    parts = [Part(count, colour, f"{fate}: {counted(count, 'tensor')}") for colour, fate, count in shown]
    return Figure(
        "Tensors of the checkpoint",
        stacked_bars(
            ", ".join(f"{count} {fate}" for _, fate, count in shown),
            [Stack("in the checkpoint", counted(counts["source"], "tensor"), parts)],
        ),
        "Every tensor is accounted for: one that no rule knows stops the build.",
        [(colour, f"{fate} {count:,}") for colour, fate, count in shown],
    )


def error_figures(errors: QuantErrors) -> list[Figure]:
    """What calibrated modules give, if there are any; the weights by layer and by kind of projection."""
    placed = [(source, found) for source in errors.worst_first if (found := _PROJECTION.fullmatch(source.tensor))]
    outputs = [(output, layer) for output in errors.outputs if (layer := layer_in(output.module)) is not None]
    return [
        *([_outputs(outputs)] if outputs else []),
        *([_by_layer([(source, int(found[1])) for source, found in placed])] if placed else []),
        _by_kind(errors.worst_first),
    ]


def _outputs(outputs: Sequence[tuple[OutputError, int]]) -> Figure:
    within_a_layer: dict[int, list[OutputError]] = {}
    for output, layer in outputs:
        within_a_layer.setdefault(layer, []).append(output)
    groups: dict[tuple[int, str], list[Point]] = {}
    for layer, held in within_a_layer.items():
        for x, output in zip(_side_by_side(layer, len(held)), held, strict=True):
            for error, how in ((output.rounded_to_nearest, "rounded to nearest"), (output.relative, "as stored")):
                reason = f"; {output.fallback}" if output.fallback else ""
                title = f"{output.module}, {how}: {100 * error:.2f} %{reason}"
                point = Point(x, 100 * error, title, hollow=how != "as stored")
                groups.setdefault(role_of(output.module), []).append(point)
    gains = [output.relative / output.rounded_to_nearest for output, _ in outputs if output.rounded_to_nearest]
    values = [100 * error for output, _ in outputs for error in (output.relative, output.rounded_to_nearest)]
    return Figure(
        "Error of what each layer gives",
        scatter(
            f"Relative error of the outputs of {counted(len(outputs), 'calibrated module')}",
            [Series(colour, points) for (colour, _), points in sorted(groups.items())],
            _layers(outputs),
            linear(values, "{:g} %".format, "rms on the calibration text, relative to the outputs"),
            height=220,
        ),
        f"In the median, calibration leaves {percent(median(gains or [1.0]))} of the error of rounding to nearest "
        "(hollow): it makes weights less exact where that makes outputs more so.",
        sorted(groups),
    )


def _side_by_side(layer: int, count: int) -> list[float]:
    """Where `count` points of a layer stand, so that all can be seen."""
    return [layer + 0.7 * ((place + 0.5) / count - 0.5) for place in range(count)]


def _layers(placed: Sequence[tuple[object, int]]) -> Axis:
    last = max(layer for _, layer in placed)
    return within(-0.5, last + 0.5, "{:,.0f}".format, "layer", count=8, whole=True)


def _by_layer(sources: Sequence[tuple[SourceError, int]]) -> Figure:
    groups: dict[tuple[int, str], list[Point]] = {}
    within_a_layer: dict[int, list[SourceError]] = {}
    for source, layer in sources:
        within_a_layer.setdefault(layer, []).append(source)
    for layer, held in within_a_layer.items():
        held.sort(key=lambda source: (_group(source), source.tensor, source.part))
        for x, source in zip(_side_by_side(layer, len(held)), held, strict=True):
            title = f"{name_of(source)}: {100 * source.relative_rms_error:.2f} % in int{source.bits}"
            groups.setdefault(_group(source), []).append(Point(x, 100 * source.relative_rms_error, title))
    last = max(layer for _, layer in sources)
    worst, where = sources[0]
    values = [100 * source.relative_rms_error for source, _ in sources]
    return Figure(
        "Error of each layer",
        scatter(
            f"Relative error of {counted(len(sources), 'tensor')} in {counted(last + 1, 'layer')}",
            [Series(colour, points) for (colour, _), points in sorted(groups.items())],
            _layers(sources),
            linear(values, "{:g} %".format, "rms of what was lost, relative to the weights"),
            height=220,
        ),
        f"A layer that stands out is where to look when answers are worse; the worst is layer {where} with "
        f"{100 * worst.relative_rms_error:.2f} %.",
        sorted(groups),
    )


def _by_kind(sources: Sequence[SourceError]) -> Figure:
    kinds: dict[tuple[str, int], list[SourceError]] = {}
    for source in sources:
        kinds.setdefault((_kind(source), source.bits), []).append(source)
    middle = {kind: median(source.relative_rms_error for source in held) for kind, held in kinds.items()}
    rows = [
        Bar(
            f"{kind}, int{bits}",
            middle[kind, bits],
            f"{100 * middle[kind, bits]:.2f} %",
            _group(held[0])[0],
            f"{counted(len(held), 'tensor')}: {percent(held[-1].relative_rms_error)} to "
            f"{percent(held[0].relative_rms_error)}",
            (held[-1].relative_rms_error, held[0].relative_rms_error),
        )
        for (kind, bits), held in sorted(kinds.items(), key=lambda item: (-middle[item[0]], item[0]))
    ]
    return Figure(
        "Error by kind of tensor",
        bars("Median relative error of each kind of tensor", rows),
        "Medians; the dark band goes from the best layer to the worst.",
    )


def name_of(source: SourceError) -> str:
    return f"{source.tensor} {source.part}".rstrip()


def _kind(source: SourceError) -> str:
    found = _PROJECTION.fullmatch(source.tensor)
    name = found[3] if found else source.tensor.removesuffix(".weight").rpartition(".")[2]
    return f"{name} {source.part}".rstrip()


def _group(source: SourceError) -> tuple[int, str]:
    found = _PROJECTION.fullmatch(source.tensor)
    return ROLES.get(_BLOCKS.get(found[2], ""), _OTHER) if found else _OTHER
