"""The arguments of every kernel in order, read from the sources: the packager itself never imports Triton."""

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

KERNELS = Path(__file__).parents[1] / "kernels"


@cache
def arguments(function: str) -> Mapping[str, bool]:
    """Argument -> whether it is a compile-time constant whatever the model, for `module.function`."""
    module, name = function.split(".")
    tree = ast.parse((KERNELS / f"{module}.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return {argument.arg: argument.annotation is not None for argument in node.args.args}
    raise LookupError(f"there is no kernel {function}")
