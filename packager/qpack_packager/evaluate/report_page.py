"""`qpack eval --format html`: what was measured, on one page with drawings."""

import math
from itertools import pairwise
from pathlib import Path

from qpack_packager.commands.quant_errors import read_quant_errors
from qpack_packager.commands.sections import model_text, scheme_text
from qpack_packager.commands.typeset import counted, percent
from qpack_packager.evaluate.figures import Figures
from qpack_packager.evaluate.quality import Quality
from qpack_packager.pages.axes import Axis, linear
from qpack_packager.pages.charts import Bar, bars, histogram
from qpack_packager.pages.quantization import error_figures, name_of
from qpack_packager.pages.render import Figure, render
from qpack_schemas.bundle import open_bundle

COLOURS = {"fast": 1, "exact": 3}  # of modes; a device that has one way to compute is as fast
REFERENCE = 7
# Row of the table -> the value and its standard error.
ROWS = (
    ("perplexity", "perplexity", "perplexity_stderr"),
    ("perplexity over the reference's", "ppl_ratio", "ppl_ratio_stderr"),
    ("mean KL divergence, nats", "kl_mean", "kl_stderr"),
    ("99 % of tokens are below, nats", "kl_p99", None),
    ("largest KL divergence, nats", "kl_max", None),
)


def page(path: Path, quality: Quality, name: str = "") -> str:
    """The page of the bundle at `path`, which it calls `name`, or by its path. The same bundle and numbers give the
    same bytes."""
    bundle = open_bundle(path, digests=False)
    manifest, errors = bundle.manifest, read_quant_errors(bundle)
    mode, first = next(iter(quality["modes"].items()))
    divergences = [found for name, one in quality["modes"].items() if (found := _divergence(name, one))]
    return render(
        "eval.html.jinja",
        Path(__file__).parent,
        bundle=bundle,
        name=name or str(path),
        model=manifest["model"],
        model_words=model_text(manifest["model"]),
        scheme=scheme_text(manifest["quant"]["bits"], manifest["quant"]["group_size"], manifest["quant"]),
        quality=quality,
        first_mode=mode,
        first=first,
        heads=["figure", *(f"#{name}" for name in quality["modes"])],
        rows=ROWS,
        number=number,
        perplexity_figure=_perplexity(quality),
        divergence_figures=divergences,
        error_figures=error_figures(errors) if errors else [],
        worst=[(name_of(one), one) for one in errors.worst_first[: len(quality["modules"])]] if errors else [],
    )


def number(value: float | None, error: float | None = None) -> str:
    """`9.123`, `9.123 ± 0.4`; a dash for what there is not."""
    return "-" if value is None else f"{value:.5g}" + ("" if error is None else f" ± {error:.2g}")


def _perplexity(quality: Quality) -> Figure:
    measured = {name: (one["perplexity"], one["perplexity_stderr"]) for name, one in quality["modes"].items()}
    rows = [_bar(f"bundle, {name}", *pair, COLOURS.get(name, 1)) for name, pair in measured.items()]
    if (reference := quality["reference"]) is not None:
        rows.append(_bar("reference", reference["perplexity"], reference["perplexity_stderr"], REFERENCE))
    return Figure(
        "Perplexity",
        bars("Perplexity of the bundle in each mode, and of its reference", [row for row in rows if row]),
        "Among how many equally likely tokens the model hesitates, so less is better. What is marked at the end is two "
        "standard errors either way: how far another text of this kind would move all bars together.",
    )


def _bar(name: str, value: float | None, error: float | None, colour: int) -> Bar | None:
    if value is None:
        return None
    spread = None if error is None else (max(value - 2 * error, 0), value + 2 * error)
    return Bar(name, value, number(value), colour, f"{name}: {number(value, error)}", spread)


def _divergence(mode: str, figures: Figures) -> Figure | None:
    """Tokens below the first edge and from the last on stand in a column as wide as the others."""
    if (found := figures["kl_histogram"]) is None:
        return None
    step = found["edges"][1] / found["edges"][0]
    edges = [found["edges"][0] / step, *found["edges"], found["edges"][-1] * step]
    decades = range(math.ceil(math.log10(edges[0]) - 1e-6), math.floor(math.log10(edges[-1]) + 1e-6) + 1)
    ticks = tuple(10.0**decade for decade in decades)
    x = Axis(edges[0], edges[-1], ticks, "{:.3g}".format, "KL divergence in nats", log=True)
    y = linear(found["tokens"], "{:,.0f}".format, "tokens")
    tokens = sum(found["tokens"])
    far = sum(count for (low, _), count in zip(pairwise(edges), found["tokens"], strict=True) if low >= 0.0999)
    share = percent(far / tokens)
    return Figure(
        f"Distance from the reference, {mode}",
        histogram(
            f"KL divergence of {counted(tokens, 'token')}, {mode}", x, y, edges, found["tokens"], COLOURS.get(mode, 1)
        ),
        f"{share} of the tokens are 0.1 nats or more from what the reference would say there; a second hill on the "
        "right would be a part of the text that the bundle gets wrong.",
    )
