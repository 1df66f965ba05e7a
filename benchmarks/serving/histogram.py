"""A histogram of /metrics: its mean and quantiles between two scrapes."""

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from qpack_schemas.errors import QpackError


@dataclass(frozen=True)
class Histogram:
    """`below[edge]` observations are at most `edge`; the last edge is infinite."""

    below: dict[float, float]
    total: float

    def __sub__(self, earlier: "Histogram") -> "Histogram":
        """What was observed since."""
        below = {edge: count - earlier.below[edge] for edge, count in self.below.items()}
        return Histogram(below, self.total - earlier.total)

    @property
    def count(self) -> int:
        return int(max(self.below.values()))

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def quantile(self, q: float) -> float:
        """As PromQL's histogram_quantile has it: observations lie evenly between two edges, those above the last finite
        edge at it. 0 without observations."""
        rank, low, fewer = q * self.count, 0.0, 0.0
        for edge, count in sorted(self.below.items()):
            if count >= rank and count > fewer:
                return low + (edge - low) * (rank - fewer) / (count - fewer) if edge != float("inf") else low
            low, fewer = edge, count
        return 0.0


def read_histogram(text: bytes, name: str) -> Histogram:
    """The histogram `name`, without labels, of a scrape. Raises QpackError if it isn't there."""
    for family in text_string_to_metric_families(text.decode()):
        if family.name == name:
            below = {
                float(sample.labels["le"]): sample.value for sample in family.samples if sample.name.endswith("_bucket")
            }
            total = next(sample.value for sample in family.samples if sample.name.endswith("_sum"))
            return Histogram(below, total)
    raise QpackError(f"there is no metric {name}", where="/metrics", remedy="measure a server of qpack")
