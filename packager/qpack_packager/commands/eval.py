"""`qpack eval` as text: what was measured, a column a mode, and how many tokens are how far from the reference."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile

from qpack_packager.commands.typeset import bar, columns, counted, percent, wrapped
from qpack_packager.evaluate.figures import Figures
from qpack_packager.evaluate.quality import Quality, encode, rounded
from qpack_schemas.errors import UsageError
from qpack_schemas.outputs import refuse_in_bundle


def check_place(output: Path) -> None:
    """What writing a report at `output` would end with, before minutes of work for it. Raises UsageError or OSError."""
    refuse_in_bundle(output)
    if not output.parent.is_dir():
        raise UsageError("is no directory", where=str(output.parent), remedy="make it first, or name another output")
    if output.is_symlink() or (output.exists() and not output.is_file()):
        raise UsageError("is a link or no regular file", where=str(output), remedy="name another output")
    try:
        with TemporaryFile(dir=output.parent):
            pass
    except OSError as error:
        error.filename = str(output.parent)
        raise


def report(bundle: Path, quality: Quality, output_format: str) -> str:
    """Text for people, quality.json, or a page of its own."""
    if output_format == "json":
        return encode(quality).decode("ascii")
    if output_format == "html":
        from qpack_packager.evaluate.report_page import page

        return page(bundle, rounded(quality))
    return "\n".join([*_lines(bundle, rounded(quality)), ""])  # rounded once: the same digits as in the JSON


def _lines(bundle: Path, quality: Quality) -> Iterator[str]:
    modes = quality["modes"]
    yield str(bundle)
    windows = f"{counted(quality['windows'], 'window')} of {quality['window_length']} tokens"
    yield from wrapped("text", f"{windows}, {quality['tokens']:,} predicted; sha256 {quality['text_sha256'][:16]}")
    yield from wrapped("device", f"{quality['device']}, {quality['instructions']}")
    yield ""
    yield from columns([["", *modes], *_rows(quality)], right=range(1, len(modes) + 1))
    for mode, figures in modes.items():
        yield from _places(mode, figures)
        yield from _histogram(mode, figures)
    if quality["modules"]:
        yield from ["", "Largest quantization errors: rms relative to the weights"]
        yield from columns(
            [
                (f"{one['tensor']} {one['part']}".rstrip(), f"int{one['bits']}", percent(one["relative_rms_error"]))
                for one in quality["modules"]
            ],
            right={2},
        )
    if (gate := quality["gate"]) is not None:
        yield from ["", "The gate: passed" if gate["passed"] else "The gate: missed"]
        limits = (("perplexity ratio", gate["max_ppl_ratio"]), ("mean KL in nats", gate["max_kl"]))
        yield from columns([(what, f"at most {limit:.6g}") for what, limit in limits if limit is not None])


def _rows(quality: Quality) -> Iterator[list[str]]:
    """Name and the value of each mode; rows that no mode has are left out."""
    modes, reference = quality["modes"].values(), quality["reference"]
    yield ["perplexity", *(_give_or_take(one["perplexity"], one["perplexity_stderr"]) for one in modes)]
    if reference is None:
        return
    same = _give_or_take(reference["perplexity"], reference["perplexity_stderr"])
    yield ["of the reference", *(same for _ in modes)]
    yield ["ratio", *(_give_or_take(one["ppl_ratio"], one["ppl_ratio_stderr"]) for one in modes)]
    yield ["mean KL in nats", *(_give_or_take(one["kl_mean"], one["kl_stderr"]) for one in modes)]
    yield ["99 % of tokens below", *(_number(one["kl_p99"]) for one in modes)]
    yield ["largest", *(_number(one["kl_max"]) for one in modes)]
    shares = (one["top1_agreement"] for one in modes)
    yield ["same likeliest token", *("-" if share is None else percent(share) for share in shares)]


def _places(mode: str, figures: Figures) -> Iterator[str]:
    if figures["nonfinite_tokens"]:
        yield from ["", f"{mode}: {counted(figures['nonfinite_tokens'], 'token')} without finite logits, first at"]
        yield from columns(
            [(f"window {place['window']}", f"position {place['position']}") for place in figures["nonfinite"]]
        )


def _histogram(mode: str, figures: Figures) -> Iterator[str]:
    if (histogram := figures["kl_histogram"]) is None:
        return
    edges, tokens = histogram["edges"], histogram["tokens"]
    yield from ["", f"Tokens by their KL divergence from the reference in nats, {mode}"]
    names = [f"below {edges[0]:.2g}", *(f"from {edge:.2g}" for edge in edges)]
    used = [place for place, count in enumerate(tokens) if count]
    shown = range(used[0], used[-1] + 1)
    yield from columns(
        [(names[place], f"{tokens[place]:,}", bar(tokens[place], max(tokens))) for place in shown], right={1}
    )


def _give_or_take(value: float | None, error: float | None) -> str:
    return _number(value) + ("" if error is None else f" +- {error:.2g}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"
