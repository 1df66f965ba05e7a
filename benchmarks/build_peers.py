"""From checkpoint to int4, ours and others', on this host: `python benchmarks/build_peers.py [--json]`.

Wall clock, processor time and peak memory of `qpack build`, of llama.cpp's converter and llama-quantize (Q4_0, --pure),
and of llm-compressor (W4A16, groups of 128), all rounding to nearest. Every step is a process of its own. llama.cpp's
converter and llm-compressor run in the Python named by --python, with these packages:

    llmcompressor==0.14.0.1 torch==2.13.0 sentencepiece

llama.cpp is the source in llama-cpp-python's sdist, vendor/llama.cpp, and a llama-quantize that was built of it.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from building.contenders import NAMES, Tools, contender
from building.measure import measure
from building.models import SHAPES, weight_bytes, write_checkpoint
from building.table import as_text, report
from peers.host import describe
from qpack_schemas.errors import QpackError
from qpack_schemas.report import errors_reported


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Of all contenders in turn.")
@click.option("--model-shape", "shape", type=click.Choice(list(SHAPES)), default="qwen3-0.6b", show_default=True)
@click.option("--contenders", default=",".join(NAMES), show_default=True, metavar="NAMES", help="With commas.")
@click.option("--python", default=sys.executable, help="That has the others' packages.  [default: this one]")
@click.option("--llama-source", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--llama-quantize", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--work", type=click.Path(path_type=Path, file_okay=False),
    help="Folder for checkpoint and builds; the checkpoint stays, and is used again. Otherwise a temporary one.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def main(
    rounds: int, shape: str, contenders: str, python: str, llama_source: Path | None, llama_quantize: Path | None,
    work: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Builds a model of random weights with each contender in turn, and says what it took."""
    names, threads = chosen(contenders), len(os.sched_getaffinity(0))
    tools = Tools(python, llama_source, llama_quantize)
    with errors_reported(extra="packager,runtime"), _folder(work) as folder:
        checkpoint = folder / shape
        players = [contender(name, checkpoint, tools, threads) for name in names]
        if not checkpoint.exists():
            say("writing the checkpoint")
            write_checkpoint(checkpoint, shape)
        measured = measure(players, checkpoint, folder, rounds, say)
        if set(measured.left_out) >= set(names):
            reasons = "\n".join(f"  {name}: {reason}" for name, reason in measured.left_out.items())
            raise QpackError(f"no contender could be measured:\n{reasons}")
        model = {"shape": shape, "bytes": weight_bytes(checkpoint)}
        result = report(measured, players, describe(threads), model, rounds)
        click.echo(json.dumps(result, indent=1) if as_json else as_text(result))


def chosen(text: str) -> list[str]:
    """The names in a list with commas, each once. Raises BadParameter for one that is none."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if wrong := [name for name in names if name not in NAMES]:
        raise click.BadParameter(
            f"{wrong[0]!r} is no contender; there are {', '.join(NAMES)}", param_hint="--contenders"
        )
    return names or list(NAMES)


def say(line: str) -> None:
    click.echo(line, err=True)


@contextmanager
def _folder(work: Path | None) -> Iterator[Path]:
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
        yield work.resolve()
    else:
        with TemporaryDirectory(prefix="build-peers-") as name:
            yield Path(name)


if __name__ == "__main__":
    sys.exit(main())
