"""What all commands have in common: examples in their help, and usage errors as JSON where that is asked for."""

from typing import Any

import click

from qpack_packager.cli.examples import EXAMPLES
from qpack_packager.cli.flags import AS_JSON
from qpack_schemas.errors import UsageError
from qpack_schemas.report import error_json


class Program(click.Group):
    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        examples = [f"  {example}" for example in EXAMPLES[name or cmd.name or ""]]
        cmd.epilog = "\n".join(["\b", "Examples:", *examples])  # \b: lines stay as they are
        super().add_command(cmd, name)

    def invoke(self, ctx: click.Context) -> Any:
        as_json = "--format=json" in ctx.args or ("--format", "json") in zip(ctx.args, ctx.args[1:], strict=False)
        ctx.meta[AS_JSON] = as_json
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if as_json:
                command = error.ctx.command_path if error.ctx else ctx.command_path
                found = UsageError(error.format_message(), remedy=f"{command} --help")
                click.echo(error_json(found, error.exit_code))
            raise
