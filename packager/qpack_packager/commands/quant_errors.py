"""What quantization cost, from a bundle's quant_log.jsonl: one line per module, written by `build`."""

from dataclasses import dataclass
from statistics import median

from qpack_packager.commands.typeset import columns, percent
from qpack_schemas.bundle import Bundle
from qpack_schemas.errors import Finding, InputError, IntegrityError
from qpack_schemas.strict_json import load_text, parse_strict

QUANT_LOG = "quant_log.jsonl"


@dataclass(frozen=True)
class SourceError:
    """Of the lines of one checkpoint tensor: rms(stored - source) / rms(source)."""

    tensor: str
    part: str  # "", or which lines of the tensor
    relative_rms_error: float


@dataclass(frozen=True)
class QuantErrors:
    worst_first: tuple[SourceError, ...]  # not empty

    @property
    def median(self) -> float:
        return median(source.relative_rms_error for source in self.worst_first)

    def range_text(self) -> str:
        best, worst = self.worst_first[-1], self.worst_first[0]
        return f"{percent(best.relative_rms_error)} to {percent(worst.relative_rms_error)}"

    def to_json(self) -> dict[str, object]:
        return {"median": self.median, "worst_first": [vars(source) for source in self.worst_first]}

    def lines(self, shown: int) -> list[str]:
        rows = [
            (f"{source.tensor} {source.part}".rstrip(), f"{100 * source.relative_rms_error:.2f} %")
            for source in self.worst_first[:shown]
        ]
        title = f"Quantization error: rms relative to the weights, median {100 * self.median:.2f} %"
        return [title, *columns(rows, right={1})]


def read_quant_errors(bundle: Bundle) -> QuantErrors | None:
    """None if the bundle has no log or an empty one. Raises IntegrityError if it is malformed."""
    if not any(entry["path"] == QUANT_LOG for entry in bundle.manifest["files"]):
        return None
    try:
        lines = load_text(bundle.path / QUANT_LOG).splitlines()
        sources = [source for line in lines for source in _read_line(line)]
    except (InputError, KeyError, TypeError, ValueError):
        raise IntegrityError(
            "the bundle is damaged (1 finding):",
            [Finding(QUANT_LOG, "is not a quantization log")],
            where=str(bundle.path),
            remedy="copy or build the bundle again",
        ) from None
    sources.sort(key=lambda source: (-source.relative_rms_error, source.tensor, source.part))
    return QuantErrors(tuple(sources)) if sources else None


def _read_line(line: str) -> list[SourceError]:
    sources = parse_strict(line, QUANT_LOG)["sources"]
    return [SourceError(str(s["tensor"]), str(s["part"]), float(s["relative_rms_error"])) for s in sources]
