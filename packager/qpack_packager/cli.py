"""The `qpack` command. Imports what a command needs when it runs, so that `qpack --help` costs nothing."""

import json
from pathlib import Path
from typing import Literal

import click

from qpack_packager.cli_flags import (
    BUNDLE,
    FORMAT,
    KERNEL_CACHE,
    LEGACY,
    MODEL,
    model_options,
    model_text,
    serving_options,
)
from qpack_schemas.errors import QualityError, UnsupportedError, UsageError
from qpack_schemas.report import errors_reported


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="qpack-llm", prog_name="qpack")
def main() -> None:
    """Packages Qwen checkpoints into bundles that boot without a compiler, a network or a surprise."""


@main.command()
@MODEL
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Where the bundle is to be.")
@click.option("--resume", is_flag=True, help="Go on where an interrupted build of this output was; stay resumable.")
@click.option("--eval", "eval_text", type=click.Path(path_type=Path), help="Measure the bundle on this text.")
@click.option("--max-ppl-ratio", type=float, help="The gate: perplexity over the checkpoint's.")
@click.option("--max-kl", type=float, help="The gate: mean KL divergence from the checkpoint, in nats per token.")
@click.option("--keep-failed", is_flag=True, help="Keep a bundle that misses the gate; exit code 3 all the same.")
@KERNEL_CACHE
@model_options
@click.option("--progress", type=click.Choice(["auto", "plain", "json"]), default="auto", show_default=True)
@FORMAT
def build(
    model: Path,
    output: Path,
    resume: bool,
    eval_text: Path | None,
    max_ppl_ratio: float | None,
    max_kl: float | None,
    keep_failed: bool,
    kernel_cache: Path | None,
    progress: Literal["auto", "plain", "json"],
    output_format: str,
    **flags,
) -> None:
    """Builds a bundle from the checkpoint directory MODEL.

    Exit code 3 if it misses the gate that --max-ppl-ratio and --max-kl set; then there is no bundle."""
    needs = {
        "packager": True,
        "kernels": any(name != "cpu" for name in flags["target"]),
        "runtime": eval_text is not None,
        "quality": eval_text is not None or flags["method"] == "gptq",
    }
    extra = ",".join(name for name, needed in needs.items() if needed)
    with errors_reported(extra=extra, as_json=output_format == "json"):
        from qpack_packager.build import build as build_bundle
        from qpack_packager.evaluate.build_gate import Evaluation
        from qpack_packager.progress import Progress

        bundle_id = build_bundle(
            model_text(model, flags),
            output,
            serving_options(flags),
            Progress(progress),
            kernel_cache=kernel_cache,
            resume=resume,
            evaluation=Evaluation.wanted(eval_text, max_ppl_ratio, max_kl, keep_failed=keep_failed),
        )
        if output_format == "json":
            click.echo(json.dumps({"bundle": str(output), "bundle_id": bundle_id}))
        else:
            from qpack_packager.commands.inspect import summary

            click.echo(summary(output))


@main.command("tuning-kit")
@MODEL
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Where the kit is to be.")
@KERNEL_CACHE
@model_options
@click.option("--progress", type=click.Choice(["auto", "plain", "json"]), default="auto", show_default=True)
@FORMAT
def tuning_kit(
    model: Path,
    output: Path,
    kernel_cache: Path | None,
    progress: Literal["auto", "plain", "json"],
    output_format: str,
    **flags,
) -> None:
    """Makes the kernels that `qpack-runtime tune` measures.

    Several tiles for each int4 weight shape of MODEL and each --target. What is measured goes into a tuning file, which
    `build --tuning` chooses tiles by. Reads no weights."""
    with errors_reported(extra="packager,kernels", as_json=output_format == "json"):
        from qpack_packager.commands.tuning_kit import report
        from qpack_packager.cuda.tuning_kit import make_kit
        from qpack_packager.progress import Progress

        kit = make_kit(
            model_text(model, flags), output, serving_options(flags), Progress(progress), kernel_cache=kernel_cache
        )
        click.echo(report(output, kit, output_format))


@main.command()
@MODEL
@model_options
@FORMAT
def plan(model: Path, output_format: str, **flags) -> None:
    """Shows what `build` would make of MODEL.

    Its bytes, buffers and tensors, which devices it fits and how fast it could be there. Reads no weights."""
    with errors_reported(extra="packager", as_json=output_format == "json"):
        from qpack_packager.commands.plan import report
        from qpack_packager.prepare import prepare

        click.echo(report(prepare(model_text(model, flags), serving_options(flags)), output_format))


@main.command()
@MODEL
@model_options
@FORMAT
@click.pass_context
def doctor(command: click.Context, model: Path, output_format: str, **flags) -> None:
    """Says whether MODEL can become CUDA graphs.

    Per instruction: what makes it static, and what is refused and why. Exit code 4 if anything is refused."""
    with errors_reported(extra="packager", as_json=output_format == "json"):
        from qpack_packager.commands.doctor import report
        from qpack_packager.prepare import prepare

        shown, graphable = report(prepare(model_text(model, flags), serving_options(flags)), output_format)
        click.echo(shown)
        command.exit(0 if graphable else UnsupportedError.exit_code)


@main.command()
@BUNDLE
@FORMAT
def kernels(bundle: Path, output_format: str) -> None:
    """Shows what the compiled kernels of BUNDLE say of their speed.

    Registers, spills, instructions per weight, launches, and the step time that follows. Needs Triton's disassembler,
    no GPU."""
    with errors_reported(extra="packager,kernels", as_json=output_format == "json"):
        from qpack_packager.commands.kernels import report

        click.echo(report(bundle, output_format))


@main.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--fix", is_flag=True, help="Write what can be repaired without a guess.")
@click.option("--diff", "show_diff", is_flag=True, help="Show what a repair changes, with --fix or without.")
@click.option("--ascii", "ascii_json", is_flag=True, help="JSON must be ASCII; with --fix, write \\u escapes.")
@click.option("--encoding", multiple=True, metavar="GLOB=NAME", help="The encoding of files whose name is like GLOB.")
@click.option(
    "--legacy-encoding",
    multiple=True,
    type=click.Choice(LEGACY),
    help="What old files tend to be in: decides between several of these.",
)
@click.option("--strict", is_flag=True, help="Warnings count, too.")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "json", "sarif", "github"]),
    default="text",
    show_default=True,
)
@click.option("--output", type=click.Path(path_type=Path), help="Write the report there.  [default: stdout]")
@click.pass_context  # fmt: skip
def check(
    context: click.Context,
    paths: tuple[Path, ...],
    fix: bool,
    show_diff: bool,
    ascii_json: bool,
    encoding: tuple[str, ...],
    legacy_encoding: tuple[str, ...],
    strict: bool,
    output_format: str,
    output: Path | None,
) -> None:
    """Checks the text files of models.

    That they are UTF-8, and sound JSON, YAML or Jinja. PATHS are files, directories or bundles; the default is the
    working directory. Exit code 1 if there are findings, also those that --fix has repaired."""
    with errors_reported(extra="packager", as_json=output_format == "json"):
        if show_diff and output_format != "text":
            raise UsageError("--diff needs --format text", remedy="leave one of the two out")
        from qpack_packager.check.run import Wishes, write_report
        from qpack_packager.check.run import check as check_files
        from qpack_packager.declared_encodings import DeclaredEncodings

        declared = DeclaredEncodings.parse(encoding)
        report = check_files(paths or (Path("."),), Wishes(fix, show_diff, ascii_json, declared, legacy_encoding))
        write_report(report, output_format, output)
        context.exit(0 if report.is_clean(strict=strict) else 1)


@main.command()
@BUNDLE
@FORMAT
def validate(bundle: Path, output_format: str) -> None:
    """Checks every byte and every rule of BUNDLE.

    Exit code 5 if it is damaged, 7 if it needs another version of qpack."""
    with errors_reported(extra="packager", as_json=output_format == "json"):
        from qpack_schemas.bundle import open_bundle

        opened = open_bundle(bundle)
        files = len(opened.manifest["files"]) + 1
        if output_format == "json":
            click.echo(json.dumps({"valid": True, "bundle_id": opened.bundle_id, "files": files}))
        else:
            click.echo(f"{bundle} is whole: {files} files, bundle_id {opened.bundle_id}")


@main.command()
@BUNDLE
@click.option(
    "--format", "output_format", type=click.Choice(["text", "json", "html"]), default="text", show_default=True
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write it there.  [default: stdout]")
def inspect(bundle: Path, output_format: str, output: Path | None) -> None:
    """Shows what is in BUNDLE.

    Model, memory, buckets, tensors, quantization errors and files; as html one page with drawings, which needs nothing
    but a browser. Bytes are not hashed: `validate` does that."""
    with errors_reported(extra="packager", as_json=output_format == "json"):
        from qpack_packager.check.replace_file import replace_file

        if output_format == "html":
            from qpack_packager.pages.inspect_page import report as page

            shown = page(bundle)
        else:
            from qpack_packager.commands.inspect import report

            shown = report(bundle, output_format) + "\n"
        if output is None:
            click.echo(shown.encode("utf-8"), nl=False)
            return
        if bundle.resolve() in output.resolve().parents:
            raise UsageError(
                f"--output {output} lies in the bundle, which holds only files that its manifest lists",
                remedy="write it somewhere else",
            )
        replace_file(output, shown.encode("utf-8"))


@main.command("eval")
@BUNDLE
@click.option("--text", required=True, type=click.Path(path_type=Path), help="What it is measured on; not trained on.")
@click.option("--reference", type=click.Path(path_type=Path), help="The checkpoint that BUNDLE was built from.")
@click.option(
    "--mode",
    "modes",
    multiple=True,
    type=click.Choice(["fast", "exact"]),
    help="cpu: both may be given.  [default: fast]",
)
@click.option("--device", type=click.Choice(["cpu", "cuda", "reference"]), help="What computes.  [default: cpu]")
@click.option("--threads", type=click.IntRange(1), help="cpu: threads of a step.  [default: the physical cores]")
@click.option("--windows", type=click.IntRange(1), help="Of 512 tokens, from the text's beginning.  [default: all]")
@click.option("--max-ppl-ratio", type=float, help="The gate: perplexity over the reference's.")
@click.option("--max-kl", type=float, help="The gate: mean KL divergence from the reference, in nats per token.")
@click.option(
    "--format", "output_format", type=click.Choice(["text", "json", "html"]), default="text", show_default=True
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the report there.  [default: stdout]")
@click.pass_context
def evaluate(
    context: click.Context,
    bundle: Path,
    text: Path,
    reference: Path | None,
    modes: tuple[str, ...],
    device: str | None,
    threads: int | None,
    windows: int | None,
    max_ppl_ratio: float | None,
    max_kl: float | None,
    output_format: str,
    output: Path | None,
) -> None:
    """Measures how far BUNDLE is from its checkpoint.

    Perplexity on a text, and with --reference the KL divergence and how often both would say the same. Exit code 3 if
    the gate is missed."""
    with errors_reported(extra="packager,runtime,quality", as_json=output_format == "json"):
        from qpack_packager.checkpoint.model_text import ModelText
        from qpack_packager.commands.eval import report
        from qpack_packager.evaluate.evaluate import measure_bundle
        from qpack_packager.evaluate.gate import Gate
        from qpack_packager.evaluate.runner import Device

        quality = measure_bundle(
            bundle,
            text,
            ModelText(reference) if reference else None,
            modes=modes,
            gate=None if max_ppl_ratio is None and max_kl is None else Gate(max_ppl_ratio, max_kl),
            device=Device(device, threads),
            limit=windows,
        )
        shown = report(bundle, quality, output_format)
        if output:
            from qpack_packager.check.replace_file import replace_file

            replace_file(output, shown.encode("utf-8"))
        else:
            click.echo(shown, nl=False)
        if quality["gate"] and not quality["gate"]["passed"]:
            for finding in quality["gate"]["findings"]:
                click.echo(f"missed: {finding}", err=True)
            context.exit(QualityError.exit_code)


@main.command()
@BUNDLE
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Where the checkpoint is to be.")
@click.option(
    "--format",
    "format_name",
    required=True,
    type=click.Choice(["compressed-tensors", "gptq"]),
    help="What vLLM, SGLang and transformers read; compressed-tensors holds every bundle of int4 and int8 layers.",
)
@click.option("--progress", type=click.Choice(["auto", "plain", "json"]), default="auto", show_default=True)
def export(
    bundle: Path,
    output: Path,
    format_name: Literal["compressed-tensors", "gptq"],
    progress: Literal["auto", "plain", "json"],
) -> None:
    """Writes the weights of BUNDLE as a Hugging Face checkpoint.

    Codes and scales as they are in BUNDLE, for engines that serve on several GPUs. Every byte of BUNDLE is checked."""
    with errors_reported(extra="packager"):
        from qpack_packager.export.export import export as export_bundle
        from qpack_packager.progress import Progress

        export_bundle(bundle, output, format_name, Progress(progress))
        click.echo(f"{output} is a checkpoint in {format_name}'s format; its README.md says how to serve it")


@main.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@FORMAT
@click.pass_context
def diff(context: click.Context, a: Path, b: Path, output_format: str) -> None:
    """Compares two bundles.

    Field by field, and tensor by tensor wherever they lie. Exit code 1 if they differ."""
    with errors_reported(extra="packager", as_json=output_format == "json"):
        from qpack_packager.commands.diff import compare

        text, equal = compare(a, b, output_format)
        click.echo(text)
        context.exit(0 if equal else 1)
