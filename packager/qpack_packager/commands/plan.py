"""`qpack plan`: what `build` would make of a checkpoint, known from its headers and texts without reading a weight."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import cast

from qpack_packager.commands.memory_use import Parts, memory_lines, memory_parts
from qpack_packager.commands.roofline import tokens_per_second
from qpack_packager.commands.sections import (
    bucket_lines,
    model_text,
    rule_lines,
    scheme_text,
    serving_lines,
    tensor_lines,
    vocabulary_lines,
)
from qpack_packager.commands.typeset import bytes_text, columns, percent, wrapped
from qpack_packager.cuda.lowering.lower import lower_target, shared_of
from qpack_packager.cuda.lowering.refusals import refusals
from qpack_packager.cuda.lowering.tiles import Tuning
from qpack_packager.cuda.targets import COMMON, Target
from qpack_packager.describe import describe_model, describe_quant
from qpack_packager.devices import DEVICES, Device
from qpack_packager.prepare import Prepared
from qpack_packager.quantize.groups import GROUP
from qpack_packager.weights.shards import plan_weights
from qpack_schemas.manifest import Memory, Quant
from qpack_schemas.memory import account
from qpack_schemas.traffic import Traffic, decode_traffic

NOT_GRAPHABLE = "no CUDA target can be built for this model: `qpack doctor` says why"


def report(prepared: Prepared, output_format: str) -> str:
    """The plan as text for people or as one JSON object. That a device is too small is no error here."""
    lowered, serving = prepared.lowered, prepared.serving
    tensors = lowered.layout
    files = {
        path: max(span.begin + span.bytes for span in plan.spans.values())
        for path, plan in plan_weights(tensors).items()
    }
    memory = account(sum(files.values()), lowered.buffers, lowered.programs, serving.buckets)
    weights = [(name, module.form, tensor) for module in lowered.modules for name, tensor in module.tensors.items()]
    parts = memory_parts(memory, weights, lowered.buffers, lowered.programs.values())
    steps, launches = _steps(prepared), _launches(prepared)
    if output_format == "json":
        return json.dumps(_facts(prepared, files, memory, parts, steps, launches), ensure_ascii=True)
    return "\n".join(_lines(prepared, memory, parts, steps, launches))


def _launches(prepared: Prepared) -> int | None:
    """Kernels of a decode step, the same on every GPU; None if the model is none for the kernels."""
    lowered, shared = prepared.lowered, shared_of(prepared.lowered)
    if any(refusal for program in lowered.programs.values() for refusal in refusals(program, shared)):
        return None
    target = lower_target(lowered.programs, shared, Target(COMMON[-1]), Tuning())
    return len(target.tables["decode"].launches)


def _notes(prepared: Prepared, launches: int | None) -> list[str]:
    return [*prepared.checkpoint.notes, *([NOT_GRAPHABLE] if launches is None else [])]


def _steps(prepared: Prepared) -> list[Traffic]:
    """The smallest and the largest decode step, every sequence halfway through the context."""
    lowered, serving = prepared.lowered, prepared.serving
    batches = [bucket["rows"] for bucket in serving.buckets if bucket["program"] == "decode"]
    return [
        decode_traffic(lowered.programs["decode"], shared_of(lowered), rows, max(1, serving.context // 2))
        for rows in sorted({min(batches), max(batches)})
    ]


def _facts(
    prepared: Prepared,
    files: Mapping[str, int],
    memory: Memory,
    parts: Parts,
    steps: Sequence[Traffic],
    launches: int | None,
) -> dict[str, object]:
    serving = prepared.serving
    devices = [
        {
            **asdict(device),
            "fits": memory["minimum_device_bytes"] <= device.memory_bytes,
            "tokens_per_second": {str(step.rows): round(tokens_per_second(step, device), 1) for step in steps},
            "expected_tokens_per_second": {
                str(step.rows): round(tokens_per_second(step, device, launches), 1) for step in steps if launches
            },
        }
        for device in DEVICES
    ]
    return {
        "model": describe_model(prepared),
        "quant": describe_quant(prepared),
        "slots": serving.slots,
        "context": serving.context,
        "buckets": list(serving.buckets),
        "memory": memory,
        "memory_parts": parts,
        "weight_files": files,
        "decode_steps": [{**asdict(step), "total": step.total} for step in steps],
        "decode_launches": launches,
        "devices": devices,
        "notes": _notes(prepared, launches),
    }


def _lines(
    prepared: Prepared, memory: Memory, parts: Parts, steps: Sequence[Traffic], launches: int | None
) -> Iterator[str]:
    serving, quant = prepared.serving, cast(Quant, describe_quant(prepared))
    yield from wrapped("model", model_text(describe_model(prepared)))
    yield from serving_lines(serving.slots, serving.context, serving.dtype, serving.buckets)
    yield from rule_lines(quant.get("rules", []))
    yield from vocabulary_lines(quant, tied=prepared.lowered.tied)
    for note in _notes(prepared, launches):
        yield from wrapped("note", note)
    yield ""
    yield from tensor_lines(quant["tensors"], f"to {scheme_text(4, GROUP, quant)}", quant["kept"], quant["dropped"])
    yield ""
    yield from memory_lines(memory, parts)
    yield ""
    yield from bucket_lines(serving.buckets, memory)
    yield ""
    yield from _step_lines(steps)
    yield ""
    yield from _device_lines(memory, steps, launches)


def _step_lines(steps: Sequence[Traffic]) -> list[str]:
    rows: list[tuple[str, ...]] = [("", "weights", "KV cache", "recurrent", "together")]
    for step in steps:
        sizes = (step.weights, step.kv, step.recurrent, step.total)
        rows.append((f"batch {step.rows}", *map(bytes_text, sizes)))
    return [
        f"Decode step: bytes moved, each sequence halfway at {steps[0].positions:,} positions",
        *columns(rows, right={1, 2, 3, 4}),
    ]


def _device_lines(memory: Memory, steps: Sequence[Traffic], launches: int | None) -> list[str]:
    needs = memory["minimum_device_bytes"]
    rows = [("", "memory", "takes", "GB/s", *(f"batch {step.rows}" for step in steps))]
    for device in DEVICES:
        share, bandwidth = needs / device.memory_bytes, f"{device.bytes_per_second / 1e9:,.0f}"
        speeds = [_speed(step, device, launches) if share <= 1 else "-" for step in steps]
        takes = percent(share) if share <= 1 else "too big"
        rows.append((device.name, f"{device.memory_bytes / 1e9:.0f} GB", takes, bandwidth, *speeds))
    between = f" (with {launches:,} launches of 1.3 us)" if launches else ""
    return [
        f"Devices: tokens/s at most, by bandwidth{between}",
        *columns(rows, right=range(1, 4 + len(steps))),
        "  A batch is all its sequences together. A Jetson shares memory with the host.",
    ]


def _speed(step: Traffic, device: Device, launches: int | None) -> str:
    most = _short(tokens_per_second(step, device))
    return f"{most} ({_short(tokens_per_second(step, device, launches))})" if launches else most


def _short(rate: float) -> str:
    return f"{rate:,.0f}" if rate < 100_000 else f"{rate / 1000:,.0f}k"
