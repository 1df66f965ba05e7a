"""What `qpack tuning-kit` says of the kit that it has made."""

import json
from pathlib import Path

from qpack_packager.commands.typeset import counted
from qpack_schemas.tuning_kit import KitDocument


def report(output: Path, kit: KitDocument, output_format: str) -> str:
    """Targets with their weights, tiles and kernels, and what to do next."""
    facts = [
        {
            "target": name,
            "weights": len(target["weights"]),
            "tiles": sum(len(weight["candidates"]) for weight in target["weights"].values()),
            "kernels": len(target["kernels"]),
        }
        for name, target in kit["targets"].items()
    ]
    if output_format == "json":
        return json.dumps({"kit": str(output), "checksum": kit["checksum"], "targets": facts}, ensure_ascii=True)
    lines = [
        f"{one['target']}: {counted(one['tiles'], 'tile')} of {counted(one['weights'], 'weight shape')}, "
        f"{counted(one['kernels'], 'kernel')}"
        for one in facts
    ]
    return "\n".join([*lines, f"next, on the device: qpack-runtime tune {output} -o tuning.json"])
