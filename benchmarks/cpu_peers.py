"""This runtime and others on this host's CPUs, in one run: `python benchmarks/cpu_peers.py [--format json]`.

Needs benchmarks/requirements.txt in an environment of its own, and about 5 GB of disk and of memory. The model has the
shape of Qwen3-0.6B and random weights: what decides the speed, and none of the knowledge.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import click

from peers.checkpoint import write_checkpoint
from peers.comparison import measure
from peers.host import describe
from peers.table import as_text, report
from peers.worker import NAMES
from qpack_runtime.cpu.host import default_threads
from qpack_schemas.errors import QpackError
from qpack_schemas.report import errors_reported


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--threads", type=click.IntRange(1), default=default_threads, help="Of each contender; one per core.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Of all contenders in turn.")
@click.option("--contenders", default=",".join(NAMES), show_default=True, metavar="NAMES", help="With commas.")
@click.option(
    "--work", type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the models; it stays, and what is in it is used again. Otherwise a temporary one.",
)  # fmt: skip
@click.option("--keep", is_flag=True, help="Leave the temporary folder, and tell where it is.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def main(threads: int, rounds: int, contenders: str, work: Path | None, keep: bool, form: str) -> None:
    """Times decode steps and prompts of every contender, round robin."""
    names = chosen(contenders)
    with errors_reported(extra="packager,runtime"), _folder(work, keep) as folder:
        checkpoint = folder / "checkpoint"
        if not checkpoint.exists():
            say("writing the checkpoint")
            write_checkpoint(checkpoint)
        vocab = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))["vocab_size"]
        measured = measure(checkpoint, folder, names, vocab=vocab, threads=threads, rounds=rounds, say=say)
        if set(measured.left_out) >= set(names):
            reasons = "\n".join(f"  {name}: {reason}" for name, reason in measured.left_out.items())
            raise QpackError(f"no contender could be measured:\n{reasons}")
        result = report(measured, describe(threads), rounds)
        click.echo(json.dumps(result, indent=1) if form == "json" else as_text(result))


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
def _folder(work: Path | None, keep: bool) -> Iterator[Path]:
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
        yield work.resolve()
    elif keep:
        folder = Path(mkdtemp(prefix="cpu-peers-"))
        say(f"the models are in {folder} and stay there: --work {folder} uses them again")
        yield folder
    else:
        with TemporaryDirectory(prefix="cpu-peers-") as name:
            yield Path(name)


if __name__ == "__main__":
    sys.exit(main())
