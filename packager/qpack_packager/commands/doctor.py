"""`qpack doctor`: can this model become CUDA graphs? Per instruction, what makes it static, and what is refused."""

import json
from collections import Counter
from collections.abc import Iterator

from qpack_packager.commands.typeset import columns, wrapped
from qpack_packager.cuda.lowering.lower import LoweredTarget, lower_target, shared_of
from qpack_packager.cuda.lowering.refusals import STATIC, Refusal, refusals
from qpack_packager.cuda.lowering.tiles import Tuning
from qpack_packager.cuda.targets import COMMON, Target
from qpack_packager.prepare import Prepared
from qpack_schemas.program import Kind


def report(prepared: Prepared, output_format: str) -> tuple[str, bool]:
    """The diagnosis as text or JSON, and whether the model is graphable."""
    lowered = prepared.lowered
    shared = shared_of(lowered)
    found: dict[Kind, list[Refusal]] = {
        kind: list(refusals(program, shared)) for kind, program in lowered.programs.items()
    }
    graphable = not any(found.values())
    target = lower_target(lowered.programs, shared, Target(COMMON[-1]), Tuning()) if graphable else None
    if output_format == "json":
        return json.dumps(_facts(prepared, found, target), ensure_ascii=True), graphable
    return "\n".join(_lines(prepared, found, target)), graphable


def _facts(prepared: Prepared, found: dict[Kind, list[Refusal]], target: LoweredTarget | None) -> dict[str, object]:
    return {
        "graphable": target is not None,
        "programs": {
            kind: {
                "instructions": dict(sorted(Counter(i.op for i in program.code).items())),
                "launches": len(target.tables[kind].launches) if target else None,
                "refused": [vars(refusal) for refusal in found[kind]],
            }
            for kind, program in prepared.lowered.programs.items()
        },
        "static": {op: STATIC[op] for op in _operations(prepared)},
    }


def _lines(prepared: Prepared, found: dict[Kind, list[Refusal]], target: LoweredTarget | None) -> Iterator[str]:
    for kind, program in prepared.lowered.programs.items():
        counts = Counter(instruction.op for instruction in program.code)
        refused = {refusal.op: refusal for refusal in reversed(found[kind])}
        launches = f", {len(target.tables[kind].launches)} launches a step" if target else ""
        yield f"{kind} program: {len(program.code)} instructions{launches}"
        rows = [("", "times", "")]
        for op in dict.fromkeys(instruction.op for instruction in program.code):
            verdict = "refused" if op in refused else "static"
            rows.append((op, str(counts[op]), verdict))
        yield from columns(rows, right={1})
        for refusal in refused.values():
            text = f"{refusal.op}: {refusal.size} is {refusal.value}, kernels need {refusal.needs}"
            yield from wrapped("refused", text)
        yield ""
    yield "Why a replay needs nothing from the host:"
    for op in _operations(prepared):
        yield from wrapped(f"{op:13}", STATIC[op])
    yield ""
    yield "graphable: yes" if target else "graphable: no; the bundle runs on CPUs only"


def _operations(prepared: Prepared) -> list[str]:
    """Every operation once, in the order of first use."""
    return list(dict.fromkeys(i.op for program in prepared.lowered.programs.values() for i in program.code))
