"""The `qpack` command. Imports what a command needs when it runs, so that `qpack --help` costs nothing."""

import click

from qpack_packager.cli.bundles import diff, evaluate, export, inspect, kernels, validate
from qpack_packager.cli.models import build, doctor, plan, tuning_kit
from qpack_packager.cli.program import Program
from qpack_packager.cli.registry import pull, push
from qpack_packager.cli.texts import check
from qpack_packager.cli.trust import sign, verify


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="qpack-llm", prog_name="qpack")
def main() -> None:
    """Packages Qwen checkpoints into bundles that boot without a compiler, a network or a surprise."""


for command in (
    build,
    plan,
    doctor,
    tuning_kit,
    check,
    validate,
    inspect,
    diff,
    kernels,
    evaluate,
    export,
    sign,
    verify,
    push,
    pull,
):
    main.add_command(command)
