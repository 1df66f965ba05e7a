"""The `qpack-runtime` command."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from qpack_runtime.cli_flags import BUNDLE, FORMAT, Numbers, boot_options
from qpack_runtime.cli_program import Program
from qpack_runtime.serve.command import serve
from qpack_schemas.errors import InputError, UsageError
from qpack_schemas.report import errors_reported
from qpack_schemas.terminal import painted

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")  # options of `generate`


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="qpack-llm", prog_name="qpack-runtime")
def main() -> None:
    """Boots bundles made by `qpack build` and decodes with them."""


main.add_command(serve)


@main.command()
@BUNDLE
@click.option("--prompt", help="Text to continue.")
@click.option("--messages", type=click.Path(path_type=Path, allow_dash=True), help="JSON file of a chat; - is stdin.")
@click.option("--max-tokens", type=click.IntRange(1), default=128, show_default=True)
@click.option(
    "--temperature", type=float, default=0.0, show_default=True, help="0 is greedy: the filters play no part."
)
@click.option("--top-k", type=int, default=0, show_default=True, help="0 is off.")
@click.option("--top-p", type=float, default=1.0, show_default=True, help="1 is off.")
@click.option("--min-p", type=float, default=0.0, show_default=True, help="0 is off.")
@click.option("--repetition-penalty", type=float, default=1.0, show_default=True, help="1 is off.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same tokens.")
@boot_options
@FORMAT
def generate(
    bundle: Path,
    prompt: str | None,
    messages: Path | None,
    max_tokens: int,
    output_format: str,
    **choices: Any,
) -> None:
    """Decodes one answer.

    Text appears as it is made; `--format json` gives ids, text, buckets and timings at the end."""
    with errors_reported(extra="runtime", as_json=output_format == "json"):
        if (prompt is None) == (messages is None):
            raise UsageError("give either --prompt or --messages")
        if any("\ud800" <= c <= "\udfff" for c in prompt or ""):
            raise UsageError("--prompt is not UTF-8", remedy="check the terminal's encoding")
        from qpack_runtime.sampling_options import SamplingOptions

        options = SamplingOptions(**{name: choices.pop(name) for name in SAMPLING})
        from qpack_runtime.boot import boot
        from qpack_runtime.generate import generate as generate_tokens

        booted = boot(bundle, **choices)
        if prompt is not None:
            ids = booted.tokenizer.encode(prompt).ids
        else:
            assert messages is not None
            ids = booted.tokenizer.encode(_render(bundle, messages), add_special_tokens=False).ids
        shown, generation = 0, None
        for generation in generate_tokens(booted, ids, max_tokens=max_tokens, options=options):
            if output_format == "text":
                click.echo(generation.text[shown:], nl=False)
                sys.stdout.flush()
                shown = len(generation.text)
        assert generation is not None  # there is at least one token
        timings = {
            **{f"boot_{phase}_s": round(seconds, 6) for phase, seconds in booted.seconds.items()},
            "prefill_s": round(generation.prefill_seconds, 6),
            "decode_s": round(generation.decode_seconds, 6),
        }
        if output_format == "json":
            facts = {
                "bundle_id": booted.bundle.bundle_id,
                "device": booted.device,
                "prompt_ids": generation.prompt_ids,
                "output_ids": generation.output_ids,
                "text": generation.text,
                "finish_reason": generation.finish_reason,
                "buckets": dict(sorted(booted.engine.runs.items())),
                "timings": timings,
                "notes": booted.notes,
                **booted.facts,
            }
            click.echo(json.dumps(facts, ensure_ascii=True))
        else:
            click.echo()
            click.echo(painted(_summary(generation, booted, timings), sys.stderr), err=True)


@main.command()
@BUNDLE
@click.option("--allow-ptx", is_flag=True, help="Count PTX, which the driver compiles at boot, as runnable.")
@FORMAT
@click.pass_context
def doctor(context: click.Context, bundle: Path, allow_ptx: bool, output_format: str) -> None:
    """Says whether BUNDLE can boot on this host's GPU, and what would slow it down.

    Driver, architecture, memory, clocks, link and persistence, each with its remedy. Exit code 0 if it can boot,
    otherwise the code that a boot would end with."""
    with errors_reported(extra="runtime,cuda", as_json=output_format == "json"):
        from qpack_runtime.cuda.doctor import as_json, as_text, diagnose

        found = diagnose(bundle, allow_ptx=allow_ptx)
        click.echo(as_json(found) if output_format == "json" else painted(as_text(found), sys.stdout))
        context.exit(max(one.exit_code for one in found))


@main.command()
@click.argument("kit", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="The tuning file. What it holds of other GPUs and weights stays.",
)
@FORMAT
def tune(kit: Path, output: Path, output_format: str) -> None:
    """Measures the tiles of KIT, made by `qpack tuning-kit`, on this host's GPU.

    The fastest of each weight shape goes into a file for `qpack build --tuning`. Exit code 4 if no target of the kit
    runs here, 5 if the kit is damaged."""
    with errors_reported(extra="runtime", as_json=output_format == "json"):
        from qpack_runtime.cuda import tune as tuning

        tuned = tuning.tune(kit, output, lambda line: click.echo(line, err=True))
        click.echo(tuning.as_json(tuned, output) if output_format == "json" else tuning.as_text(tuned, output))


@main.command()
@BUNDLE
@click.option("--batch", type=Numbers(), default=(), help="Sequences of a step.  [default: the buckets' rows]")
@click.option(
    "--context", type=Numbers(), default=(), help="Tokens in the cache of each.  [default: half of the buckets']"
)
@click.option("--prefill", type=Numbers(), default=(), help="Tokens of a prompt.  [default: the buckets' rows]")
@click.option("--steps", type=click.IntRange(1), default=64, show_default=True, help="Decode steps that are measured.")
@boot_options
@click.option("--compare", type=click.Path(path_type=Path), help="A report in JSON, to be put beside this one.")
@FORMAT
def bench(
    bundle: Path,
    batch: tuple[int, ...],
    context: tuple[int, ...],
    prefill: tuple[int, ...],
    steps: int,
    compare: Path | None,
    output_format: str,
    **choices: Any,
) -> None:
    """Measures how fast BUNDLE decodes on this host.

    Time of a step, tokens per second, and the share of what the host's memory allows, as measured too. Nothing else
    should run meanwhile. Every eighth as many prompts as decode steps are measured."""
    with errors_reported(extra="runtime", as_json=output_format == "json"):
        from qpack_runtime.bench.compare import compare as compared
        from qpack_runtime.bench.compare import read_report
        from qpack_runtime.bench.report import as_text
        from qpack_runtime.bench.run import Wanted
        from qpack_runtime.bench.run import bench as measured

        other = read_report(compare) if compare is not None else None  # now: measuring takes long
        wanted = Wanted(batch, context, prefill, steps)
        report = measured(bundle, choices, wanted, lambda line: click.echo(line, err=True))
        if other is not None:
            report["x-compare"] = compared(report, other)
        as_json = output_format == "json"
        click.echo(json.dumps(report, ensure_ascii=True) if as_json else painted(as_text(report), sys.stdout))


@main.command()
@BUNDLE
@click.option(
    "--windows",
    required=True,
    type=click.Path(path_type=Path),
    help="A .npy file, int32 [windows, length] of token ids.",
)
@boot_options
def logits(bundle: Path, windows: Path, **choices: Any) -> None:
    """Writes the logits behind every token of given windows to stdout, for `qpack eval`.

    A line of JSON says what follows: for each position of each batch of windows three int32 (first window, windows,
    position) and float32 [windows, vocab], all little-endian."""
    with errors_reported(extra="runtime"):
        if sys.stdout.isatty():
            raise UsageError("logits are no text for a terminal", remedy="send stdout to a file or a pipe")
        from qpack_runtime.boot import boot
        from qpack_runtime.logits import read_windows, write_logits

        booted = boot(bundle, **choices)
        write_logits(booted, read_windows(windows, booted.engine), sys.stdout.buffer)


def _render(bundle: Path, messages: Path) -> str:
    from qpack_runtime.chat import load_messages, render

    try:
        return render(bundle, load_messages(messages))
    except UnicodeDecodeError as error:  # of stdin; files say so themselves
        raise InputError(f"is not UTF-8: {error.reason}", where="stdin", remedy="convert it to UTF-8") from None


def _summary(generation, booted, timings) -> str:
    boot_seconds = sum(booted.seconds.values())
    steps = max(len(generation.output_ids) - 1, 1)
    buckets = ", ".join(f"{name} x {count}" for name, count in sorted(booted.engine.runs.items()))
    return (
        f"booted in {boot_seconds:.2f} s; {len(generation.prompt_ids)} prompt tokens in {timings['prefill_s']:.3f} s; "
        f"{len(generation.output_ids)} tokens, {timings['decode_s'] / steps * 1000:.1f} ms each "
        f"({generation.finish_reason})\nbuckets: {buckets}" + "".join(f"\nnote: {note}" for note in booted.notes)
    )


if __name__ == "__main__":  # as the packager starts it, with its own interpreter
    main(prog_name="qpack-runtime")
