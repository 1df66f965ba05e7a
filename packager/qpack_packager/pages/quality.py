"""What an evaluation measured of a bundle, as the figures of a table: a column for each way to compute."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from qpack_packager.commands.typeset import counted, percent
from qpack_packager.pages.axes import Axis, linear
from qpack_packager.pages.charts import histogram
from qpack_packager.pages.render import Figure
from qpack_schemas.errors import InputError
from qpack_schemas.strict_json import JsonValue, load_strict

QUALITY = "quality.json"  # beside the manifest, once the bundle has been evaluated
ERROR = "_stderr"  # behind the name of a figure: its standard error
_WORDS = {  # figures that are known, in the order in which they are shown
    "perplexity": "perplexity",
    "ppl_ratio": "perplexity over the checkpoint's",
    "kl_mean": "mean KL divergence, nats",
    "kl_p99": "99 % of tokens are below, nats",
    "kl_max": "largest KL divergence, nats",
    "top1_agreement": "share of the same likeliest tokens",
    "nonfinite_tokens": "tokens without finite logits",
}
FAR = 0.1  # nats
_ELSEWHERE = {"gate", "modes", "text_sha256", "reference_perplexity"}  # shown by themselves, or told twice


@dataclass(frozen=True)
class Measured:
    modes: list[str]
    rows: list[tuple[str, list[str]]]  # name of a figure -> its value in each mode
    facts: list[tuple[str, str]]  # whatever else is a single value
    text_sha256: str
    findings: list[str]  # why the gate was missed
    ppl_ratio: float | None  # of the first mode
    divergences: list[Figure]

    @property
    def heads(self) -> list[str]:
        """Of the table's columns of numbers."""
        return [f"#{mode}" for mode in self.modes]


def read_quality(path: Path) -> Measured | None:
    """Of the bundle at `path`; None if it was not evaluated. Raises InputError if the file is none."""
    file = path / QUALITY
    if not file.is_file():
        return None
    document = load_strict(file)
    if not isinstance(document, dict) or not isinstance(document.get("modes"), dict):
        raise InputError("holds no figures by mode", where=str(file), remedy="run `qpack eval` again")
    return measured(cast(Mapping[str, JsonValue], document))


def measured(document: Mapping[str, JsonValue]) -> Measured:
    """The document as its tables. Lists, such as histograms, are left to the page of the evaluation."""
    modes: dict[str, Mapping[str, JsonValue]] = document["modes"]
    told = [name for one in modes.values() for name in one if not name.endswith(ERROR)]
    names = list(dict.fromkeys([*(name for name in _WORDS if name in told), *told]))
    rows = [
        (_WORDS.get(name, _words(name)), [_number(one.get(name), one.get(_error(name))) for one in modes.values()])
        for name in names
        if not any(isinstance(one.get(name), list | dict) for one in modes.values())
    ]
    others = {name: value for name, value in document.items() if name not in {*_ELSEWHERE, *names}}
    gate: Mapping[str, JsonValue] = document.get("gate") or {}
    return Measured(
        list(modes),
        rows,
        [(_words(name), text) for name, text in _single_values(others)],
        str(document.get("text_sha256")),
        [str(finding) for finding in gate.get("findings", [])],
        next(iter(modes.values()), {}).get("ppl_ratio"),
        [divergence(mode, one["kl_histogram"]) for mode, one in modes.items() if one.get("kl_histogram")],
    )


def divergence(mode: str, found: Mapping[str, list[float]]) -> Figure:
    """`found`: edges in nats, a constant ratio apart, and one more numbers of tokens than edges: those below the first
    and from the last on stand in columns as wide as the others."""
    step, tokens = found["edges"][1] / found["edges"][0], sum(found["tokens"])
    edges = [found["edges"][0] / step, *found["edges"], found["edges"][-1] * step]
    decades = range(math.ceil(math.log10(edges[0]) - 1e-6), math.floor(math.log10(edges[-1]) + 1e-6) + 1)
    x = Axis(edges[0], edges[-1], tuple(10.0**decade for decade in decades), "{:.3g}".format, "nats", log=True)
    far = sum(count for low, count in zip(edges, found["tokens"], strict=False) if low >= FAR * (1 - 1e-3))
    return Figure(
        f"Distance from the checkpoint, {mode}",
        histogram(
            f"KL divergence of {counted(round(tokens), 'token')}, {mode}",
            x,
            linear(found["tokens"], "{:,.0f}".format, "tokens"),
            edges,
            found["tokens"],
        ),
        f"KL divergence token by token: {percent(far / tokens) if tokens else 'none'} are {FAR} nats or more from what "
        "the checkpoint would say; a second hill on the right would be text that the bundle gets wrong.",
    )


def _single_values(document: Mapping[str, JsonValue], path: str = "") -> Iterator[tuple[str, str]]:
    for name, value in document.items():
        if isinstance(value, dict):
            yield from _single_values(cast(Mapping[str, JsonValue], value), f"{path}{name} ")
        elif not isinstance(value, list) and not name.endswith(ERROR):
            yield f"{path}{name}", _number(value, document.get(_error(name)))


def _error(name: str) -> str:
    return name.removesuffix("_mean") + ERROR


def _words(name: str) -> str:
    return name.replace("_", " ")


def _number(value: JsonValue, error: JsonValue = None) -> str:
    if value is None:
        return "-"
    shown = f"{value:.5g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
    return shown if error is None else f"{shown} ± {error:.2g}"
