"""A recipe: the flags of `qpack build` in a YAML file, validated by a schema. Flags win over it.

Some come with qpack, in recipes/, each with the measurement that chose it; they go by their name.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from qpack_packager.textfix.fix import fix
from qpack_schemas.errors import BundleError, InputError, UsageError
from qpack_schemas.schema_check import check_schema

SCHEMA = "recipe.v1.schema.json"
SHIPPED = Path(__file__).parent / "recipes"


class _Loader(yaml.SafeLoader):
    """Takes 1e-9 for a number, as YAML 1.2 does and everyone means it; PyYAML reads 1.1, where that is a string."""


_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))


def find_recipe(name: str) -> Path:
    """The file of that path, or the recipe of that name that comes with qpack. Raises UsageError if neither is."""
    if Path(name).is_file():
        return Path(name)
    names = sorted(path.stem for path in SHIPPED.glob("*.yaml"))
    if name not in names:
        raise UsageError(
            f"--recipe {name} is neither a file nor a recipe of qpack", remedy=f"those are: {', '.join(names)}"
        )
    return SHIPPED / f"{name}.yaml"


def read_recipe(path: Path) -> dict[str, Any]:
    """Name of a flag of `build`, with underscores -> its value, as the recipe at `path` says.

    Raises InputError naming the place of everything that is wrong."""
    fixed = fix(path.name, path.read_bytes())
    if fixed.data is None:
        problem = next(p for p in fixed.problems if p.severity == "error" and not p.fixable)
        raise InputError(f"line {problem.line}: {problem.message}", where=str(path))
    recipe = yaml.load(fixed.data.decode("utf-8"), _Loader) or {}
    if findings := check_schema(recipe, SCHEMA, path.name):
        shown = "\n".join(f"  {finding}" for finding in findings[: BundleError.SHOWN])
        raise InputError(f"the recipe is wrong:\n{shown}", where=str(path))
    return {
        **{name: tuple(value) if isinstance(value, list) else value for name, value in recipe.items()},
        "encoding": [f"{glob}={name}" for glob, name in recipe.get("encodings", {}).items()],
        "legacy_encoding": recipe.get("legacy_encodings", []),
        "module": [f"{glob}={form}" for glob, form in recipe.get("modules", {}).items()],
        "eval_text": recipe.get("eval"),
    }
