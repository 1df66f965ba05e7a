"""Checks bundles on this machine's NVIDIA GPU: `python scripts/gpu_check.py BUNDLE... [--only parity,timing]`.

Needs the runtime's install only; docs/gpu-check.md says what each piece proves. Writes check.json and check.md. Exit
code 0 if nothing failed, 1 if something did, 2 for wrong flags, 4 if there is no GPU.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

from gpu_checks.alone import AloneError, alone
from gpu_checks.boots import check_capture, time_boots
from gpu_checks.determinism import check_determinism
from gpu_checks.host import check_host, describe_gpu
from gpu_checks.outcome import Outcome, Settings
from gpu_checks.parity import check_parity
from gpu_checks.report import Checked, Report
from gpu_checks.sanitizer import run_sanitizer
from gpu_checks.timing import time_steps
from gpu_checks.tokens import check_tokens
from qpack_schemas.bundle import open_bundle
from qpack_schemas.errors import QpackError
from qpack_schemas.report import errors_reported

# Each runs in a process of its own. A sanitizer run is one of the whole script, on the smallest bundle.
PIECES: dict[str, Callable[[Path, Settings], Outcome]] = {
    "host": check_host,
    "parity": check_parity,
    "tokens": check_tokens,
    "capture": check_capture,
    "determinism": check_determinism,
    "timing": time_steps,
    "boot": time_boots,
}
SANITIZER = "sanitizer"
COUNT = click.IntRange(1)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("bundles", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "--only", default="", metavar="NAMES", help=f"Of {', '.join([*PIECES, SANITIZER])}, with commas; all by default."
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("gpu-check"), show_default=True, help="Folder of the report."
)
@click.option("--steps", type=COUNT, default=500, show_default=True, help="timing: steps of each bucket and way.")
@click.option("--decode-steps", type=COUNT, default=1000, show_default=True, help="determinism: steps, twice.")
@click.option("--boots", type=COUNT, default=20, show_default=True, help="capture: boots; boot times at most 5.")
@click.option("--tokens", type=COUNT, default=64, show_default=True, help="tokens: of each prompt.")
@click.option("--prompt", type=COUNT, default=1000, show_default=True, help="Tokens of the longest prompt.")
@click.option("--allow-ptx", is_flag=True, help="Let the driver compile kernels for a newer GPU at boot.")
def main(bundles: tuple[Path, ...], only: str, out: Path, **flags) -> None:
    """Checks BUNDLES, built elsewhere, on GPU 0."""
    with errors_reported(extra="runtime,cuda"):
        raise SystemExit(check(bundles, _chosen(only), out, Settings(**flags)))


def check(paths: tuple[Path, ...], pieces: list[str], out: Path, settings: Settings) -> int:
    """Runs the pieces and writes the report; the exit code."""
    try:
        gpu = alone(describe_gpu)
    except AloneError as error:
        Report(None, settings, problem=str(error)).write(out)
        click.echo(f"error: no GPU can be checked: {error}", err=True)
        return error.exit_code
    report = Report(gpu, settings)
    for path in paths:
        report.bundles.append(Checked(path, _bundle_id(path)))
    smallest = min(report.bundles, key=lambda one: _bytes(one.path))
    for one in report.bundles:
        for name in pieces:
            if name == SANITIZER and one is not smallest:
                continue
            click.echo(f"{one.path.name}: {name} ...", err=True, nl=False)
            outcome = one.outcomes[name] = _run(name, one.path, settings)
            click.echo(f" {outcome.status} in {outcome.seconds:.1f} s: {outcome.summary}", err=True)
            report.write(out)  # what is known survives whatever comes next
    click.echo(f"{out / 'check.md'}: {report.failed} failed", err=True)
    return 1 if report.failed else 0


def _run(name: str, path: Path, settings: Settings) -> Outcome:
    begin = time.perf_counter()
    try:
        if name == SANITIZER:
            outcome = run_sanitizer(Path(__file__).resolve(), path, settings)
        else:
            outcome = alone(PIECES[name], path, settings)
    except AloneError as error:
        outcome = Outcome("did not run to its end", [str(error)])
    outcome.seconds = time.perf_counter() - begin
    return outcome


def _chosen(only: str) -> list[str]:
    known = [*PIECES, SANITIZER]
    names = [name.strip() for name in only.split(",") if name.strip()] or known
    if wrong := [name for name in names if name not in known]:
        raise click.BadParameter(f"{wrong[0]!r} is no piece; there are {', '.join(known)}", param_hint="--only")
    return [name for name in known if name in names]


def _bundle_id(path: Path) -> str:
    """Whatever is wrong with a bundle is for its pieces to say."""
    try:
        return open_bundle(path, digests=False).bundle_id
    except QpackError:
        return "none: it can't be opened"


def _bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


if __name__ == "__main__":
    sys.exit(main())
