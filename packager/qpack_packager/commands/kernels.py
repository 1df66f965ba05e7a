"""`qpack kernels`: what the compiled code of a bundle says of its speed, before any GPU has run it.

Instructions per weight of the matrix products, tensor-core use, widths of loads, registers, spills, launches a step,
and the time of a step that follows from the bytes moved and the launches between them.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from qpack_packager.commands.roofline import step_seconds
from qpack_packager.commands.typeset import columns
from qpack_packager.cuda.compiler.sass import MachineCode, read_machine_code
from qpack_packager.devices import DEVICES
from qpack_schemas.bundle import Bundle, open_bundle
from qpack_schemas.bundle_rules import shared_buffers
from qpack_schemas.errors import InputError
from qpack_schemas.manifest import Kernel, Target, compiled_targets
from qpack_schemas.traffic import decode_traffic

# Rows that a program multiplies a weight with.
PRODUCTS = frozenset({"linear_int4.linear_int4_decode", "linear.linear_int8"})


def report(path: Path, output_format: str) -> str:
    """Of every target of the bundle. Raises InputError if it has none, UsageError without the disassembler."""
    bundle = open_bundle(path, digests=False)
    targets = compiled_targets(bundle.manifest["targets"])
    if not targets:
        raise InputError("has no kernels for GPUs", where=str(path), remedy="build it with --target cuda:sm_89")
    facts = {name: target_facts(bundle, name, target) for name, target in targets.items()}
    if output_format == "json":
        return json.dumps({"bundle_id": bundle.bundle_id, "targets": facts}, ensure_ascii=True)
    return "\n".join(line for name, one in facts.items() for line in _lines(name, one))


def target_facts(bundle: Bundle, name: str, target: Target) -> dict[str, object]:
    """One target: launches per program and per layer, kernels, and the predicted step on every device that runs it."""
    tables = bundle.tables[name]
    counts: dict[str, int] = {}
    for table in tables.values():
        for launch in table.launches:
            counts[launch.kernel] = counts.get(launch.kernel, 0) + 1
    kernels = [
        _kernel(bundle.path, kernel_name, kernel, counts.get(kernel_name, 0))
        for kernel_name, kernel in sorted(target["kernels"].items())
    ]
    launches = {kind: len(table.launches) for kind, table in tables.items()}
    return {
        "architecture": target["architecture"],
        "format": target["format"],
        "compilers": target["compilers"],
        "launches": launches,
        "kernels": kernels,
        "steps": list(_steps(bundle, target, launches["decode"])),
    }


def _kernel(root: Path, name: str, kernel: Kernel, launches: int) -> dict[str, object]:
    file = root / kernel["file"]
    code = read_machine_code(file.read_bytes()) if file.suffix == ".cubin" else None
    return {
        "name": name,
        "function": kernel["function"],
        "launches": launches,
        "bytes": file.stat().st_size,
        "block": kernel["block"],
        "shared_bytes": kernel["shared_bytes"],
        "registers": kernel["registers"],
        "spills": kernel["spills"],
        **(_machine_code(code, kernel) if code else {}),
    }


def _machine_code(code: MachineCode, kernel: Kernel) -> dict[str, object]:
    rows = int(kernel["constants"].get("TILE_M") or 8) if kernel["function"] in PRODUCTS else None
    per_weight = code.loop.instructions_per_weight(rows) if code.loop and rows else None
    return {
        "instructions": code.instructions,
        "tensor_instructions": code.tensor,
        "loads": {str(bits): count for bits, count in code.loads.items()},
        "instructions_per_weight": round(per_weight, 3) if per_weight else None,
    }


def _steps(bundle: Bundle, target: Target, launches: int) -> Iterator[dict[str, object]]:
    """The smallest decode step on each device of the architecture: what the bandwidth allows, and with launches."""
    shared = shared_buffers(bundle.manifest)
    rows = min(bucket["rows"] for bucket in bundle.manifest["buckets"] if bucket["program"] == "decode")
    positions = max(1, bundle.manifest["context"] // 2)
    step = decode_traffic(bundle.programs["decode"], shared, rows, positions)
    for device in DEVICES:
        if device.architecture == target["architecture"].rstrip("a"):
            yield {
                "device": device.name,
                "rows": rows,
                "positions": positions,
                "bytes": step.total,
                "roofline_us": round(1e6 * step_seconds(step, device), 1),
                "predicted_us": round(1e6 * step_seconds(step, device, launches), 1),
            }


def _lines(name: str, facts: Mapping[str, object]) -> Iterator[str]:
    launches: Mapping[str, int] = facts["launches"]  # type: ignore[assignment]
    yield f"{name}: {launches['decode']} launches a decode step, {launches['prefill']} a prefill chunk"
    if facts["format"] == "ptx":
        yield f"  {len(facts['kernels'])} kernels, which the driver of a newer GPU compiles at boot"  # type: ignore[arg-type]
        yield ""
        return
    rows = [("kernel", "times", "regs", "spills", "shared", "mma", "widest load", "per weight")]
    for kernel in facts["kernels"]:  # type: ignore[attr-defined]
        loads = kernel.get("loads") or {}
        widest = max((int(bits) for bits in loads), default=0)
        rows.append(
            (
                kernel["name"],
                str(kernel["launches"]),
                _cell(kernel["registers"]),
                _cell(kernel["spills"]),
                str(kernel["shared_bytes"]),
                _cell(kernel.get("tensor_instructions")),
                f"{widest} bits" if widest else "-",
                _cell(kernel.get("instructions_per_weight")),
            )
        )
    yield from columns(rows, right={1, 2, 3, 4, 5, 6, 7})
    yield ""
    steps = facts["steps"]
    if steps:
        rows = [("decode step", "bytes moved", "bandwidth", "with launches")]
        rows += [
            (s["device"], f"{s['bytes']:,}", f"{s['roofline_us']:,} us", f"{s['predicted_us']:,} us")
            for s in steps  # type: ignore[attr-defined]
        ]
        yield from columns(rows, right={1, 2, 3})
        yield ""


def _cell(value: object) -> str:
    return "-" if value is None else str(value)
