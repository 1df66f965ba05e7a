"""The command about text files, which needs no model."""

from pathlib import Path

import click

from qpack_packager.cli.flags import (
    LEGACY,
)
from qpack_schemas.errors import UsageError
from qpack_schemas.outputs import refuse_in_bundle
from qpack_schemas.report import errors_reported


@click.command()
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
        if output:
            refuse_in_bundle(output)
        report = check_files(paths or (Path("."),), Wishes(fix, show_diff, ascii_json, declared, legacy_encoding))
        write_report(report, output_format, output)
        context.exit(0 if report.is_clean(strict=strict) else 1)
