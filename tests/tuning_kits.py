"""Tuning kits, quickly: as in cuda_bundles, their kernels have the arguments of the real ones and do nothing."""

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cuda_bundles
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.cuda.tuning_kit import make_kit
from qpack_packager.progress import Progress
from qpack_packager.serving import Options
from qpack_schemas.manifest import seal
from qpack_schemas.strict_json import load_strict
from qpack_schemas.tuning_kit import KIT

COMPILE = "qpack_packager.cuda.package.compile_all"


def stand_in_kernels():
    """Within it, nothing is compiled."""
    return patch(COMPILE, cuda_bundles._stand_ins)


def stand_in_kit(model: Path, output: Path, options: Options) -> Path:
    with stand_in_kernels():
        make_kit(ModelText(model), output, options, Progress("plain"))
    return output


def changed(kit: Path, folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of the kit with another kit.json, whose checksum is right."""
    shutil.copytree(kit, folder)
    document = copy.deepcopy(load_strict(kit / KIT))
    change(document)
    (folder / KIT).write_bytes(seal(document))
    return folder
