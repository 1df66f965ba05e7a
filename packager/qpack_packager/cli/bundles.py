"""Commands about a bundle: whether it is whole, what is in it, how good it is, and the way out of it."""

import json
import sys
from pathlib import Path
from typing import Literal

import click

from qpack_packager.cli.completion import folders
from qpack_packager.cli.flags import BUNDLE, FORMAT, corpus, encoding_options, model_text, show
from qpack_schemas.errors import QualityError
from qpack_schemas.report import errors_reported
from qpack_schemas.terminal import painted

REPORT_FORMAT = click.option(
    "--format", "output_format", type=click.Choice(["text", "json", "html"]), default="text", show_default=True
)
REPORT_OUTPUT = click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write it there.  [default: stdout]"
)


@click.command()
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


@click.command()
@BUNDLE
@REPORT_FORMAT
@REPORT_OUTPUT
def inspect(bundle: Path, output_format: str, output: Path | None) -> None:
    """Shows what is in BUNDLE.

    Model, memory, buckets, tensors, quantization errors and files; as html one page with drawings, which needs nothing
    but a browser. Bytes are not hashed: `validate` does that."""
    with errors_reported(extra="packager", as_json=output_format == "json"):
        if output:
            from qpack_schemas.outputs import refuse_in_bundle

            refuse_in_bundle(output)
        if output_format == "html":
            from qpack_packager.pages.inspect_page import report as page

            shown = page(bundle)
        else:
            from qpack_packager.commands.inspect import report

            shown = report(bundle, output_format) + "\n"
        _give_out(shown, output_format, output)


@click.command()
@click.argument("a", type=click.Path(path_type=Path), shell_complete=folders)
@click.argument("b", type=click.Path(path_type=Path), shell_complete=folders)
@FORMAT
@click.pass_context
def diff(context: click.Context, a: Path, b: Path, output_format: str) -> None:
    """Compares two bundles.

    Field by field, and tensor by tensor wherever they lie. Exit code 1 if they differ."""
    with errors_reported(extra="packager", as_json=output_format == "json"):
        from qpack_packager.commands.diff import compare

        text, equal = compare(a, b, output_format)
        show(text, output_format)
        context.exit(0 if equal else 1)


@click.command()
@BUNDLE
@FORMAT
def kernels(bundle: Path, output_format: str) -> None:
    """Shows what the compiled kernels of BUNDLE say of their speed.

    Registers, spills, instructions per weight, launches, and the step time that follows. Needs Triton's disassembler,
    no GPU."""
    with errors_reported(extra="packager,kernels", as_json=output_format == "json"):
        from qpack_packager.commands.kernels import report

        show(report(bundle, output_format), output_format)


@click.command("eval")
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
@encoding_options
@REPORT_FORMAT
@REPORT_OUTPUT
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
    **flags,
) -> None:
    """Measures how far BUNDLE is from its checkpoint.

    Perplexity on a text, and with --reference the KL divergence and how often both would say the same. Exit code 3 if
    the gate is missed."""
    with errors_reported(extra="packager,runtime,quality", as_json=output_format == "json"):
        from qpack_packager.commands.eval import check_place, report
        from qpack_packager.evaluate.evaluate import measure_bundle
        from qpack_packager.evaluate.gate import Gate
        from qpack_packager.evaluate.runner import Device

        if output:
            check_place(output)
        quality = measure_bundle(
            bundle,
            corpus(text, flags),
            model_text(reference, flags) if reference else None,
            modes=modes,
            gate=None if max_ppl_ratio is None and max_kl is None else Gate(max_ppl_ratio, max_kl),
            device=Device(device, threads),
            limit=windows,
        )
        shown = report(bundle, quality, output_format)
        _give_out(shown, output_format, output)
        if quality["gate"] and not quality["gate"]["passed"]:
            for finding in quality["gate"]["findings"]:
                click.echo(painted(f"missed: {finding}", sys.stderr), err=True)
            context.exit(QualityError.exit_code)


@click.command()
@BUNDLE
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Where it is to be.")
@click.option(
    "--format",
    "format_name",
    required=True,
    type=click.Choice(["compressed-tensors", "gptq", "oci"]),
    help="compressed-tensors, gptq: what vLLM, SGLang and transformers read; the first holds every bundle of int4 and "
    "int8 layers. oci: an image layout, for registries without a network.",
)
@click.option("--progress", type=click.Choice(["auto", "plain", "json"]), default="auto", show_default=True)
def export(
    bundle: Path,
    output: Path,
    format_name: Literal["compressed-tensors", "gptq", "oci"],
    progress: Literal["auto", "plain", "json"],
) -> None:
    """Writes BUNDLE in a form that other programs read.

    A Hugging Face checkpoint has codes and scales as they are in BUNDLE, for engines that serve on several GPUs. Every
    byte of BUNDLE is checked."""
    with errors_reported(extra="packager"):
        if format_name == "oci":
            _export_layout(bundle, output)
            return
        from qpack_packager.export.export import export as export_bundle
        from qpack_packager.progress import Progress

        export_bundle(bundle, output, format_name, Progress(progress))
        click.echo(f"{output} is a checkpoint in {format_name}'s format; its README.md says how to serve it")


def _export_layout(bundle: Path, output: Path) -> None:
    from qpack_delivery.oci.image_layout import bytes_to_copy, write_image_layout
    from qpack_packager.bundle_writer import refuse_existing, writing
    from qpack_schemas.bundle import open_bundle

    refuse_existing(output)
    opened = open_bundle(bundle)
    with writing(output) as writer:
        needed = bytes_to_copy(opened, writer.folder)
        writer.check_disk(needed, f"the export needs {needed:,} bytes")
        digest = write_image_layout(opened, writer.folder)
    click.echo(f"{output} is an OCI image layout, its manifest {digest}")


def _give_out(shown: str, output_format: str, output: Path | None) -> None:
    """A report on stdout, or whole in a file."""
    if output is None:
        text = painted(shown, sys.stdout) if output_format == "text" else shown
        click.echo(text.encode("utf-8"), nl=False)
        return
    from qpack_packager.check.replace_file import replace_file

    try:
        replace_file(output, shown.encode("utf-8"))
    except OSError as error:  # which names the hidden file that was to take its place, or none
        error.filename, error.filename2 = str(output), None
        raise
