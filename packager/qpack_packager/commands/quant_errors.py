"""What quantization cost, from a bundle's quant_log.jsonl: one line per module, written by `build`."""

from dataclasses import dataclass
from statistics import median

from qpack_packager.commands.typeset import columns, percent
from qpack_schemas.bundle import Bundle
from qpack_schemas.errors import Finding, InputError, IntegrityError
from qpack_schemas.strict_json import JsonValue, load_text, parse_strict

QUANT_LOG = "quant_log.jsonl"


@dataclass(frozen=True)
class SourceError:
    """Of the lines of one checkpoint tensor: rms(stored - source) / rms(source)."""

    tensor: str
    part: str  # "", or which lines of the tensor
    bits: int
    relative_rms_error: float


@dataclass(frozen=True)
class OutputError:
    """Of what a calibrated module gives on the calibration text: rms(as stored - as in the source) / rms(source)."""

    module: str
    relative: float
    rounded_to_nearest: float  # what it would have been
    fallback: str | None  # why the module was rounded to nearest all the same


@dataclass(frozen=True)
class QuantErrors:
    worst_first: tuple[SourceError, ...]  # not empty
    outputs: tuple[OutputError, ...] = ()  # of calibrated modules, in the order of the log

    @property
    def median(self) -> float:
        return median(source.relative_rms_error for source in self.worst_first)

    def range_text(self) -> str:
        """Per number of bits, since 8 and 4 of them are far apart."""
        by_bits: dict[int, list[str]] = {}
        for source in self.worst_first:
            by_bits.setdefault(source.bits, []).append(percent(source.relative_rms_error))
        ranges = {bits: " to ".join(dict.fromkeys([shown[-1], shown[0]])) for bits, shown in sorted(by_bits.items())}
        return ", ".join(f"{shown} in int{bits}" if len(ranges) > 1 else shown for bits, shown in ranges.items())

    def to_json(self) -> dict[str, object]:
        return {"median": self.median, "worst_first": [vars(source) for source in self.worst_first]}

    def lines(self, shown: int) -> list[str]:
        rows = [
            (f"{source.tensor} {source.part}".rstrip(), f"int{source.bits}", f"{100 * source.relative_rms_error:.2f} %")
            for source in self.worst_first[:shown]
        ]
        title = f"Quantization error: rms relative to the weights, median {100 * self.median:.2f} %"
        return [title, *columns(rows, right={2})]


def read_quant_errors(bundle: Bundle) -> QuantErrors | None:
    """None if the bundle has no log or an empty one. Raises IntegrityError if it is malformed."""
    if not any(entry["path"] == QUANT_LOG for entry in bundle.manifest["files"]):
        return None
    try:
        lines = load_text(bundle.path / QUANT_LOG).splitlines()
        modules = [parse_strict(line, QUANT_LOG) for line in lines]
        sources = [source for module in modules for source in _sources(module)]
        outputs = tuple(_output(module) for module in modules if module.get("output_error") is not None)
    except (InputError, KeyError, TypeError, ValueError):
        raise IntegrityError(
            "the bundle is damaged (1 finding):",
            [Finding(QUANT_LOG, "is not a quantization log")],
            where=str(bundle.path),
            remedy="copy or build the bundle again",
        ) from None
    sources.sort(key=lambda source: (-source.relative_rms_error, source.tensor, source.part))
    return QuantErrors(tuple(sources), outputs) if sources else None


def _sources(module: JsonValue) -> list[SourceError]:
    bits = int(module["bits"])
    return [
        SourceError(str(s["tensor"]), str(s["part"]), bits, float(s["relative_rms_error"])) for s in module["sources"]
    ]


def _output(module: JsonValue) -> OutputError:
    relative, nearest = float(module["output_error"]), float(module["rtn_output_error"])
    reason = module["fallback"]
    return OutputError(str(module["module"]), relative, nearest, None if reason is None else str(reason))
