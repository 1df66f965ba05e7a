"""Commands about a checkpoint: what becomes of it, and making it."""

import json
from pathlib import Path
from typing import Literal

import click

from qpack_packager.cli.flags import (
    FORMAT,
    KERNEL_CACHE,
    MODEL,
    RECIPE,
    model_options,
    model_text,
    serving_options,
    show,
)
from qpack_schemas.errors import UnsupportedError
from qpack_schemas.report import errors_reported


@click.command()
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

        bundle = build_bundle(
            model_text(model, flags),
            output,
            serving_options(flags),
            Progress(progress),
            kernel_cache=kernel_cache,
            resume=resume,
            evaluation=Evaluation.wanted(eval_text, max_ppl_ratio, max_kl, keep_failed=keep_failed),
            recipe=click.get_current_context().meta.get(RECIPE),
        )
        if output_format == "json":
            click.echo(json.dumps({"bundle": str(output), "bundle_id": bundle.bundle_id}))
        else:
            from qpack_packager.commands.inspect import summary

            show(summary(bundle), output_format)


@click.command()
@MODEL
@model_options
@FORMAT
def plan(model: Path, output_format: str, **flags) -> None:
    """Shows what `build` would make of MODEL.

    Its bytes, buffers and tensors, which devices it fits and how fast it could be there. Reads no weights."""
    with errors_reported(extra="packager", as_json=output_format == "json"):
        from qpack_packager.commands.plan import report
        from qpack_packager.prepare import prepare

        show(report(prepare(model_text(model, flags), serving_options(flags)), output_format), output_format)


@click.command()
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
        show(shown, output_format)
        command.exit(0 if graphable else UnsupportedError.exit_code)


@click.command("tuning-kit")
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
        show(report(output, kit, output_format), output_format)
