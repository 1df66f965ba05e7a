"""`qpack inspect --format html`: everything about a bundle on one page that can be mailed, printed and kept."""

from pathlib import Path
from statistics import median

from qpack_packager.commands.quant_errors import QuantErrors, read_quant_errors
from qpack_packager.commands.sections import model_text, scheme_text
from qpack_packager.pages.memory import ARENAS, arena_parts, arenas, largest, layer_maps, work_maps
from qpack_packager.pages.quality import Measured, read_quality
from qpack_packager.pages.quantization import WORST, error_figures, fates, name_of
from qpack_packager.pages.render import render
from qpack_packager.pages.speed import decode_launches, device_speeds, roofline, seconds_text
from qpack_packager.pages.targets import launch_figure, target_facts
from qpack_packager.pages.traffic import decode_steps, traffic_figures
from qpack_schemas.bundle import Bundle, open_bundle
from qpack_schemas.bundle_files import MANIFEST


def report(path: Path) -> str:
    """The page of the bundle at `path`. Raises BundleError if it breaks a rule; bytes are not hashed."""
    bundle = open_bundle(path, digests=False)
    return inspect_page(bundle, read_quality(path))


def inspect_page(bundle: Bundle, quality: Measured | None) -> str:
    """The page, in which only the bundle and its path are told: the same bundle gives the same bytes."""
    manifest, errors = bundle.manifest, read_quant_errors(bundle)
    files = {MANIFEST: (bundle.path / MANIFEST).stat().st_size}
    files |= {entry["path"]: entry["bytes"] for entry in manifest["files"]}
    parts, steps = arena_parts(bundle), decode_steps(bundle)
    speeds = device_speeds(bundle, steps)
    targets = target_facts(bundle)
    return render(
        "inspect.html.jinja",
        bundle=bundle,
        manifest=manifest,
        model_words=model_text(manifest["model"]).removeprefix(f"{manifest['model']['architecture']}, "),
        scheme=scheme_text(manifest["quant"]["bits"], manifest["quant"]["group_size"], manifest["quant"]),
        files=files,
        total=sum(files.values()),
        arena_colours=ARENAS,
        parts=parts,
        memory_figure=arenas(bundle, parts),
        work_figures=list(work_maps(bundle)),
        layer_figures=list(layer_maps(bundle.programs["decode"])),
        largest_figure=largest(bundle),
        steps=steps,
        buckets={bucket["name"]: bucket for bucket in manifest["buckets"]},
        batch_heads=[f"#batch {step.rows}" for step in steps],
        traffic_figures=traffic_figures(bundle),
        speeds=speeds,
        speed_figure=roofline(speeds, steps, decode_launches(bundle)),
        seconds_text=seconds_text,
        fates_figure=fates(manifest["quant"]),
        errors=errors,
        error_figures=error_figures(errors) if errors else [],
        error_median=_layer_median(errors) if errors else None,
        worst=[(name_of(source), source) for source in errors.worst_first[:WORST]] if errors else [],
        targets=targets,
        launch_figure=launch_figure(targets[0]) if targets else None,
        gate=manifest.get("quality"),
        quality=quality,
    )


def _layer_median(errors: QuantErrors) -> tuple[int, float]:
    """Of the fewest bits that are used: how many those are, and the median of their relative errors."""
    bits = min(source.bits for source in errors.worst_first)
    return bits, median(source.relative_rms_error for source in errors.worst_first if source.bits == bits)
