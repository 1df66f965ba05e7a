"""Servers under load on this host, side by side: `python benchmarks/serve_load.py BUNDLE [FILE.gguf] [URL]...`.

A bundle is served by `qpack-runtime serve`, a GGUF file by llama.cpp's llama-server (serving/servers.py says how to
make it), and a URL is any server that speaks OpenAI's API, such as one that runs already. Without any of them, a bundle
and a GGUF file of one model with the shape of Qwen3-0.6B are made in the folder --work and measured.

The client is a process of its own at low priority. It sends over raw sockets and reads the answers when all are over
(serving/exchange.py); `client_cpu_share` of the report says what share of a core it took from the server.
"""

import json
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from peers.host import describe
from qpack_runtime.cpu.host import default_threads
from qpack_schemas.errors import UsageError
from qpack_schemas.report import errors_reported
from serving.overhead import overhead
from serving.plan import Plan
from serving.rounds import measure
from serving.sender import send
from serving.servers import Server, Shape, llama, ours, running
from serving.table import as_text

SLOTS = 8  # of a server, where no bundle says how many


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("targets", nargs=-1, metavar="[BUNDLE|FILE.gguf|URL]...")
@click.option("--requests", type=click.IntRange(1), default=32, show_default=True, help="Of a round.")
@click.option("--prompt-tokens", type=click.IntRange(1), default=128, show_default=True, help="Random ids.")
@click.option("--prompts", type=click.Path(path_type=Path, dir_okay=False), help="Texts instead, one a line.")
@click.option("--answer-tokens", type=click.IntRange(1), default=64, show_default=True)
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Requests a second, at random times.")
@click.option(
    "--clients",
    type=click.IntRange(1),
    help="Each sends its next request when an answer ends.  [default: all at once]",
)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Of all servers in turn.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of prompts and arrivals.")
@click.option("--end-id", "end_ids", type=int, multiple=True, help="Ruled out in answers.  [default: the bundle's]")
@click.option("--threads", type=click.IntRange(1), default=default_threads, help="Of each server that is started.")
@click.option("--llama-server", type=click.Path(path_type=Path), help="The program.  [default: from PATH]")
@click.option("--work", type=click.Path(path_type=Path, file_okay=False), help="Where models are made; they stay.")
@click.option("--check-determinism", "check", is_flag=True, help="Each answer must be the one the request gets alone.")
@click.option("--overhead", "with_overhead", is_flag=True, help="Also measure a bundle's executor, without a server.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def main(
    targets: tuple[str, ...], rounds: int, threads: int, llama_server: Path | None, work: Path | None, check: bool,
    with_overhead: bool, form: str, rate: float | None, clients: int | None, **asked: Any,
) -> None:  # fmt: skip
    """Sends requests to each server in turn, and says how fast they were answered."""
    with errors_reported(extra="packager,runtime"), ExitStack() as stack:
        if rate is not None and clients is not None:
            raise UsageError("--rate and --clients are two ways to send a load", remedy="give one of them")
        targets = targets or _made(work, llama_server, threads)
        bundles = [Path(target) for target in targets if (Path(target) / "manifest.json").is_file()]
        if with_overhead and not bundles:
            raise UsageError("--overhead measures the executor of a bundle", remedy="name one")
        manifest = json.loads((bundles[0] / "manifest.json").read_text(encoding="utf-8")) if bundles else None
        if manifest is not None and not asked["end_ids"]:
            asked["end_ids"] = tuple(manifest["model"]["eos_token_ids"])
        plan = Plan(rate=rate, clients=min(clients or asked["requests"], asked["requests"]), **asked)
        shape = Shape(
            manifest["slots"] if manifest else SLOTS,
            manifest["context"] if manifest else plan.prompt_tokens + plan.answer_tokens,
            threads,
        )
        servers = [_open(stack, target, shape, plan, llama_server) for target in dict.fromkeys(targets)]
        rows = measure(servers, plan, rounds, check=check, say=_say)
        costs = _overhead(bundles[0], servers, shape, plan, rounds) if with_overhead else None
        result = {
            "host": describe(threads), "rounds": rounds, "load": _described(plan), "same_answers": check,
            "servers": [{"name": server.name, **server.facts} for server in servers], "rows": rows, "overhead": costs,
        }  # fmt: skip
        click.echo(json.dumps(result, indent=1) if form == "json" else as_text(result))


def _made(work: Path | None, llama_server: Path | None, threads: int) -> tuple[str, ...]:
    if work is None:
        raise UsageError("nothing to measure is named", remedy="name a bundle, or a folder for models with --work")
    from serving.models import make_models

    return tuple(str(path) for path in make_models(work, _program(llama_server), threads))


def _open(stack: ExitStack, target: str, shape: Shape, plan: Plan, llama_server: Path | None) -> Server:
    path = Path(target)
    if target.startswith("http"):
        return running(target)
    if (path / "manifest.json").is_file():
        _say(f"booting {path.name}")
        return stack.enter_context(ours(path, shape, queue=plan.requests))
    if path.suffix == ".gguf":
        _say(f"llama-server loads {path.name}")
        return stack.enter_context(llama(path, _program(llama_server), shape))
    raise UsageError(f"{target!r} is no bundle, no .gguf file and no http://HOST:PORT")


def _program(named: Path | None) -> Path:
    found = named or shutil.which("llama-server")
    if found is None:
        remedy = "name it with --llama-server; benchmarks/serving/servers.py says how to make it"
        raise UsageError("there is no llama-server in PATH", remedy=remedy)
    return Path(found).resolve()


def _overhead(bundle: Path, servers: Sequence[Server], shape: Shape, plan: Plan, rounds: int) -> dict[str, Any]:
    _say("the executor alone, and the server with one sequence in each slot")
    server = next(server for server in servers if server.name == f"qpack {bundle.name}")
    return overhead(
        bundle, server, shape, plan.prompt_tokens, rounds,
        lambda number, tokens: send(plan.wave(server, rounds + 1 + number, shape.slots, tokens)),
    )  # fmt: skip


def _described(plan: Plan) -> dict[str, Any]:
    return {
        "requests": plan.requests, "prompt_tokens": plan.prompt_tokens, "answer_tokens": plan.answer_tokens,
        "prompts": plan.prompts and plan.prompts.name, "arrivals": plan.arrivals, "seed": plan.seed,
    }  # fmt: skip


def _say(line: str) -> None:
    click.echo(line, err=True)


if __name__ == "__main__":
    sys.exit(main())
