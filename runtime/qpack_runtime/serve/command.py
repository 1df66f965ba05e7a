"""`qpack-runtime serve`: its flags."""

import math
from pathlib import Path
from typing import Any

import click

from qpack_runtime.cli_flags import boot_options
from qpack_schemas.errors import UsageError
from qpack_schemas.report import errors_reported


class Seconds(click.FloatRange):
    """A number of seconds; click's own range lets NaN through, which compares with nothing."""

    name = "seconds"

    def convert(self, value, param, ctx):
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return seconds


class BundleOrReference(click.Path):
    """A directory, or the name of a bundle in a registry, which no Path may touch: it would lose a slash."""

    name = "bundle or oci://REF"

    def convert(self, value, param, ctx):
        return value if isinstance(value, str) and value.startswith("oci://") else super().convert(value, param, ctx)


@click.command()
@click.argument("bundle", metavar="BUNDLE|oci://REF", type=BundleOrReference(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="0.0.0.0 or :: is every address of this host.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 is a free one.")
@click.option("--model-name", help="The model's name in the API.  [default: the folder's, or the repository's]")
@click.option(
    "--queue", type=click.IntRange(1), default=64, show_default=True, help="Sequences that may wait for a slot."
)
@click.option(
    "--timeout", type=Seconds(0, min_open=True), default=600.0, show_default=True, help="Seconds of a request."
)
@click.option("--drain", type=Seconds(0), default=30.0, show_default=True, help="Seconds for answers after SIGTERM.")
@click.option(
    "--longest-wait",
    type=Seconds(0),
    default=0.1,
    show_default=True,
    help="Seconds that a piece of a new prompt may hold up running answers.",
)
@click.option("--api-key-file", type=click.Path(path_type=Path), help="A key a line, with an optional name before it.")
@click.option("--tls-certificate", type=click.Path(path_type=Path), help="PEM; needs --tls-key.")
@click.option("--tls-key", type=click.Path(path_type=Path))
@click.option("--tracing", is_flag=True, help="OpenTelemetry spans, to where the OTEL_* variables say.")
@click.option("--log-prompts", is_flag=True, help="Write prompts into the log.")
@click.option(
    "--bundle-store",
    type=click.Path(path_type=Path, file_okay=False),
    help="oci://: where pulled bundles are kept.  [default: qpack/bundles in the user's cache]",
)
@click.option("--plain-http", is_flag=True, help="oci://: without TLS; never needed for this very machine.")
@boot_options
def serve(bundle: Path | str, **choices: Any) -> None:
    """Serves BUNDLE over an OpenAI-compatible API, with a chat page at /.

    oci://REF is a bundle in a registry: what of it is not in the store is pulled first. The port is open at once;
    /readyz answers 200 when the first request is as fast as any. SIGTERM lets running answers end. Log lines on stderr
    are JSON."""
    with errors_reported(extra="runtime,tracing" if choices["tracing"] else "runtime"):
        from qpack_runtime.serve.options import ServeOptions

        own = {name: choices.pop(name) for name in ServeOptions.__dataclass_fields__ if name in choices}
        options = ServeOptions(**own)
        if (options.tls_certificate is None) != (options.tls_key is None):
            raise UsageError("--tls-certificate and --tls-key belong together")
        if isinstance(bundle, Path) and (options.bundle_store or options.plain_http):
            raise UsageError("--bundle-store and --plain-http are for oci://, and BUNDLE is a directory")
        from qpack_runtime.serve.process import serve as run
        from qpack_runtime.serve.source import source_of

        run(source_of(bundle, choices, options), choices, options)
