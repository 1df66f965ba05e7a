"""Commands that move a bundle to a registry and from one."""

import json
from pathlib import Path
from typing import Literal

import click

from qpack_packager.cli.flags import BUNDLE, FORMAT
from qpack_schemas.errors import UsageError
from qpack_schemas.report import errors_reported

REFERENCE = click.argument("reference", metavar="REF")
PLAIN_HTTP = click.option("--plain-http", is_flag=True, help="Without TLS; never needed for this very machine.")
PROGRESS = click.option("--progress", type=click.Choice(["auto", "plain", "json"]), default="auto", show_default=True)
Mode = Literal["auto", "plain", "json"]


@click.command()
@REFERENCE
@BUNDLE
@PLAIN_HTTP
@PROGRESS
@FORMAT
def push(reference: str, bundle: Path, plain_http: bool, progress: Mode, output_format: str) -> None:
    """Puts BUNDLE into a registry as REF.

    Every byte of BUNDLE is checked first. Files that the registry has are not moved again. Credentials are those of
    `docker login`."""
    with errors_reported(extra="packager", as_json=output_format == "json"):
        from qpack_delivery.oci.push import push as push_bundle
        from qpack_delivery.oci.reference import Reference
        from qpack_packager.progress import Progress

        place = Reference.parse(reference)
        pushed = push_bundle(bundle, place, plain_http=plain_http, progress=Progress(progress))
        fixed = f"{place.registry}/{place.repository}@{pushed.digest}"
        if output_format == "json":
            facts = {
                "reference": fixed,
                "tag": place.tag,
                "digest": pushed.digest,
                "bundle_id": pushed.bundle_id,
                "bytes_moved": pushed.bytes_moved,
                "bytes_there": pushed.bytes_there,
            }
            click.echo(json.dumps(facts, ensure_ascii=True))
        else:
            click.echo(f"{fixed}\n  {_amounts(pushed.bytes_moved, pushed.bytes_there)}, bundle_id {pushed.bundle_id}")


@click.command()
@REFERENCE
@click.option(
    "-o", "--output", type=click.Path(path_type=Path),
    help="Where the bundle is to be.  [default: in this directory, as the last part of the repository]",
)  # fmt: skip
@PLAIN_HTTP
@click.option(
    "--pubkey", "pubkeys", multiple=True, type=click.Path(path_type=Path), help="One of these keys must have signed it."
)
@click.option("--min-version", help="Refuse a bundle that was signed as an older version.")
@PROGRESS
@FORMAT
def pull(
    reference: str,
    output: Path | None,
    plain_http: bool,
    pubkeys: tuple[Path, ...],
    min_version: str | None,
    progress: Mode,
    output_format: str,
) -> None:
    """Gets the bundle REF from a registry, whole or not at all.

    A bundle that is at the output already is replaced in one step and kept as OUTPUT.previous; only files that differ
    are moved. A pull that was interrupted goes on where it was."""
    with errors_reported(extra="packager", as_json=output_format == "json"):
        from qpack_delivery.oci.pull import pull as pull_bundle
        from qpack_delivery.oci.reference import Reference
        from qpack_packager.progress import Progress

        trust = None
        if min_version and not pubkeys:
            raise UsageError("--min-version is what a signature says", remedy="add --pubkey")
        if pubkeys:  # read first: a wrong file should not be found out after gigabytes
            from qpack_delivery.signing.verify import Trust

            trust = Trust(pubkeys, min_version)
        place = Reference.parse(reference)
        output = output or Path(place.name)
        pulled = pull_bundle(place, output, plain_http=plain_http, trust=trust, progress=Progress(progress))
        if output_format == "json":
            facts = {
                "reference": f"{place.registry}/{place.repository}@{pulled.digest}",
                "digest": pulled.digest,
                "bundle_id": pulled.bundle_id,
                "path": str(output),
                "previous": str(pulled.previous) if pulled.previous else None,
                "changed": pulled.changed,
                "bytes_moved": pulled.bytes_moved,
                "bytes_there": pulled.bytes_there,
            }
            click.echo(json.dumps(facts, ensure_ascii=True))
            return
        if not pulled.changed:
            click.echo(f"{output} is {place} already, bundle_id {pulled.bundle_id}")
            return
        click.echo(f"{output} is {place}\n  {_amounts(pulled.bytes_moved, pulled.bytes_there)}")
        click.echo(f"  {pulled.digest}, bundle_id {pulled.bundle_id}")
        if pulled.previous:
            click.echo(f"  the one that was there is {pulled.previous}")


def _amounts(moved: int, there: int) -> str:
    return f"{moved / 1e6:,.1f} MB moved, {there / 1e6:,.1f} MB were there"
