"""How far a bundle may be from its reference: limits that a person sets, and what missed them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from qpack_packager.evaluate.figures import Figures
from qpack_schemas.errors import QualityError, UsageError


@dataclass(frozen=True)
class Gate:
    """Limits that every mode must keep; None is no limit. They compare what was measured, not its error bars."""

    max_ppl_ratio: float | None = None  # perplexity of the bundle / of the reference
    max_kl: float | None = None  # nats, the mean of KL(reference || bundle)

    def __post_init__(self) -> None:
        for flag, limit in (("--max-ppl-ratio", self.max_ppl_ratio), ("--max-kl", self.max_kl)):
            if limit is not None and not 0 < limit < float("inf"):
                raise UsageError(f"{flag} {limit} is no limit", remedy="give a finite number above 0")
        if self.max_ppl_ratio is None and self.max_kl is None:
            raise UsageError("the gate has no limit", remedy="give --max-ppl-ratio, --max-kl or both")

    def check(self, modes: Mapping[str, Figures]) -> list[str]:
        """What missed the gate, in words with both values; nothing if the bundle passed. Every mode must have been
        compared with a reference."""
        return [f"{mode}: {finding}" for mode, figures in modes.items() for finding in self._check(figures)]

    def _check(self, figures: Figures) -> Iterator[str]:
        if figures["nonfinite_tokens"]:
            first = figures["nonfinite"][0]
            yield (
                f"{figures['nonfinite_tokens']:,} tokens have logits that are not finite, the first at window "
                f"{first['window']}, position {first['position']}"
            )
            return
        for what, value, error, limit in (
            ("perplexity over the reference's", figures["ppl_ratio"], figures["ppl_ratio_stderr"], self.max_ppl_ratio),
            ("mean KL divergence in nats", figures["kl_mean"], figures["kl_stderr"], self.max_kl),
        ):
            if limit is None:
                continue
            assert value is not None, "the gate is for what was compared with a reference"
            if not value <= limit:
                give_or_take = f" +- {error:.2g}" if error is not None else ""
                yield f"{what} is {value:.6g}{give_or_take}, the gate allows {limit:.6g}"


def missed(findings: list[str], bundle: Path, *, kept: bool) -> QualityError:
    """What a build ends with whose bundle missed the gate, and is `kept` all the same or not."""
    where = "its quality.html shows" if kept else "--keep-failed keeps the bundle with a report of"
    return QualityError(
        "\n".join(["the bundle missed its gate:", *(f"  {finding}" for finding in findings)]),
        where=str(bundle),
        remedy=f"use a better method or more bits, or allow more; {where} the worst modules",
    )
