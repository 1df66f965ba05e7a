"""Flags that several `qpack-runtime` commands take."""

from collections.abc import Callable
from pathlib import Path

import click

BUNDLE = click.argument("bundle", type=click.Path(path_type=Path))
FORMAT = click.option(
    "--format", "output_format", type=click.Choice(["text", "json"]), default="text", show_default=True
)
# What `boot` takes beside the bundle, by its own names.
_BOOT = (
    click.option(
        "--device",
        type=click.Choice(["cpu", "cuda", "reference"]),
        help="What computes.  [default: cpu; reference where this installation has no CPU kernels, and a note says so]",
    ),
    click.option(
        "--mode",
        type=click.Choice(["fast", "exact"]),
        help="cpu: int8 or float32 activations in products with quantized weights.  [default: fast]",
    ),
    click.option("--threads", type=click.IntRange(1), help="cpu: threads of a step.  [default: the physical cores]"),
    click.option(
        "--code-path",
        type=click.Choice(["avx512", "avx2", "neon", "portable"]),
        help="cpu: the instruction set.  [default: the best that the processor has]",
    ),
    click.option("--allow-eager", is_flag=True, help="cuda: launch kernel by kernel where the driver makes no graph."),
    click.option("--allow-ptx", is_flag=True, help="cuda: let the driver compile kernels for a newer GPU at boot."),
    click.option(
        "--verify",
        type=click.Choice(["full", "quick"]),
        default="full",
        show_default=True,
        help="full: the digest of every file; quick: their sizes.",
    ),
    click.option("--require-signature", is_flag=True, help="Boot only what a key of --pubkey has signed."),
    click.option(
        "--pubkey",
        "pubkeys",
        multiple=True,
        type=click.Path(path_type=Path),
        help="A public key in PEM whose signature counts; of several, one is enough.",
    ),
    click.option("--min-version", metavar="VERSION", help="The oldest version that may have been signed."),
)


def boot_options(command: Callable) -> Callable:
    """The flags of a boot, as keyword arguments of `boot`: `command` gets them as `device` and so on."""
    for option in reversed(_BOOT):
        command = option(command)
    return command


class Numbers(click.ParamType):
    """`1,2,4` -> (1, 2, 4)."""

    name = "N,N,..."

    def convert(self, value, param, ctx):
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(number) for number in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers such as 1,2,4", param, ctx)
