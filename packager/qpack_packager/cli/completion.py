"""What a shell proposes where click does not know better than a file: folders, recipes and targets."""

from click import Context, Parameter
from click.shell_completion import CompletionItem


def folders(context: Context, parameter: Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="dir")]


def recipes(context: Context, parameter: Parameter, incomplete: str) -> list[CompletionItem]:
    """Files, too; first, since bash forgets what it was told before."""
    from qpack_packager.recipe import SHIPPED

    names = sorted(path.stem for path in SHIPPED.glob("*.yaml"))
    return [CompletionItem(incomplete, type="file"), *_matching(names, incomplete)]


def targets(context: Context, parameter: Parameter, incomplete: str) -> list[CompletionItem]:
    from qpack_packager.cuda.targets import ARCHITECTURES

    return _matching(["cpu", "cuda", *(f"cuda:sm_{sm}" for sm in ARCHITECTURES)], incomplete)


def _matching(names: list[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
