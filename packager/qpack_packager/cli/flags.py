"""Flags that several `qpack` commands take, and what they mean together."""

import sys
from pathlib import Path

import click
from click.core import ParameterSource

from qpack_packager.cli.completion import folders, recipes, targets
from qpack_schemas.report import errors_reported
from qpack_schemas.terminal import painted

FORMAT = click.option(
    "--format", "output_format", type=click.Choice(["text", "json"]), default="text", show_default=True
)
BUNDLE = click.argument("bundle", type=click.Path(path_type=Path), shell_complete=folders)
FORMS = ["bf16", "int8", "int4"]
GPTQ_ONLY = {"calibration": None, "max_fallbacks": 0}  # and without it
RECIPE = "qpack.recipe"  # where a command's context keeps the path of its recipe
AS_JSON = "qpack.json"  # and where whether it was asked for JSON, known before its flags are parsed
LEGACY = ["gb18030", "cp950", "cp932", "euc_jp", "cp949"]
MODEL = click.argument("model", type=click.Path(path_type=Path), shell_complete=folders)
KERNEL_CACHE = click.option(
    "--kernel-cache",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="QPACK_KERNEL_CACHE",
    help="Keeps compiled kernels between builds.  [default: qpack/kernels in the user's cache]",
)


def show(report: str, output_format: str) -> None:
    """A report on stdout; text for people as a terminal shows it best, anything else as it is."""
    click.echo(painted(report, sys.stdout) if output_format == "text" else report)


class Numbers(click.ParamType):
    """`1,2,4` -> (1, 2, 4)."""

    name = "N,N,..."

    def convert(self, value, param, ctx):
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(number) for number in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers such as 1,2,4", param, ctx)


class FormRule(click.ParamType):
    """`*.down_proj.weight=int8` -> the glob and the form."""

    name = "GLOB=FORM"

    def convert(self, value, param, ctx):
        if isinstance(value, tuple):
            return value
        glob, _, form = value.rpartition("=")
        if not glob or form not in FORMS:
            self.fail(f"{value!r} is not GLOB=FORM with a form of {', '.join(FORMS)}", param, ctx)
        return glob, form


def _apply_recipe(context: click.Context, option: click.Parameter, name: str | None) -> None:
    """What the recipe says becomes the default of the flags, so that flags win."""
    if name is not None:
        with errors_reported(extra="packager", as_json=context.meta.get(AS_JSON, False)):
            from qpack_packager.recipe import find_recipe, read_recipe

            path = find_recipe(name)
            context.default_map = read_recipe(path)
            context.meta[RECIPE] = path


def encoding_options(command):
    """What no one can know from the bytes of text files."""
    legacy = click.option("--legacy-encoding", multiple=True, type=click.Choice(LEGACY),
                          help="Usual at your site; settles what the bytes leave open.")  # fmt: skip
    return click.option("--encoding", multiple=True, metavar="GLOB=NAME", help="The encoding of text files like GLOB.")(
        legacy(command)
    )


def model_options(command):
    """The flags that decide how a checkpoint is read and what its bundle can serve; the same for `build` and `plan`."""
    for option in (
        encoding_options,
        click.option("--dtype", type=click.Choice(["bfloat16", "float16", "float32"]), default="bfloat16",
                     show_default=True, help="Of activations, KV cache and convolution state."),
        click.option("--module", multiple=True, type=FormRule(),
                     help="How weights of layers are stored, bf16, int8 or int4; the first that fits."),
        click.option("--max-fallbacks", type=click.IntRange(0), default=0, show_default=True,
                     help="gptq: modules that may be rounded to nearest if they can't be calibrated."),
        click.option("--calibration", type=click.Path(path_type=Path), help="gptq: a text like those to be served."),
        click.option("--method", type=click.Choice(["rtn", "gptq"]), default="rtn", show_default=True,
                     help="How int4 is made: rounded to nearest, or calibrated."),
        click.option("--embedding", type=click.Choice(["bf16", "int8"]), default="int8", show_default=True,
                     help="How the embedding is stored; bf16: as in the checkpoint."),
        click.option("--lm-head", type=click.Choice(["bf16", "int8", "int4"]), default="int8", show_default=True,
                     help="How the head is stored; bf16: as in the checkpoint."),
        click.option("--tuning", type=click.Path(path_type=Path, exists=True, dir_okay=False),
                     help="Tiles measured on a device by `qpack-runtime tune`."),
        click.option("--target", multiple=True, default=["cpu"], show_default=True, shell_complete=targets,
                     help="Machines the bundle must run on: cpu, cuda:sm_89 and the like; cuda: common GPUs."),
        click.option("--slots", type=int, help="Sequences at once.  [default: the largest batch]"),
        click.option("--prefill", type=Numbers(), default="16,64,256", show_default=True,
                     help="Rows of a prompt chunk."),
        click.option("--context", type=Numbers(), default=(),
                     help="Positions.  [default: 512,2048, at most the model's]"),
        click.option("--batch", type=Numbers(), default="1,2,4,8", show_default=True, help="Rows of a decode step."),
    ):  # fmt: skip
        command = option(command)
    return click.option(
        "--recipe", metavar="FILE|NAME", is_eager=True, expose_value=False, callback=_apply_recipe,
        shell_complete=recipes,
        help="YAML file that says what the flags say, or one of qpack's by its name; flags win.",
    )(command)  # fmt: skip


def serving_options(flags):
    """Of the values of `model_options`, those that shape a bundle."""
    from qpack_packager.serving import Options

    if flags["method"] == "rtn" and _source("method") is ParameterSource.COMMANDLINE:
        # Against a recipe's gptq: what is of use to that alone goes with it, unless it is a flag, too.
        unused = (name for name in GPTQ_ONLY if _source(name) is ParameterSource.DEFAULT_MAP)
        flags = {**flags, **{name: GPTQ_ONLY[name] for name in unused}}
    names = (
        "batch", "context", "prefill", "slots", "dtype", "target", "tuning", "lm_head", "embedding", "module", "method",
        "calibration", "max_fallbacks",
    )  # fmt: skip
    return Options(*(flags[name] for name in names))


def _source(name: str) -> ParameterSource | None:
    return click.get_current_context().get_parameter_source(name)


def model_text(model: Path, flags):
    """The text files of MODEL, read as the values of `encoding_options` say."""
    from qpack_packager.checkpoint.model_text import ModelText
    from qpack_packager.declared_encodings import DeclaredEncodings

    return ModelText(model, DeclaredEncodings.parse(flags["encoding"]), flags["legacy_encoding"])


def corpus(text: Path, flags):
    """Any text, read likewise."""
    from qpack_packager.declared_encodings import DeclaredEncodings
    from qpack_packager.evaluate.windows import Corpus

    return Corpus(text, DeclaredEncodings.parse(flags["encoding"]), flags["legacy_encoding"])
