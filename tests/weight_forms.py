"""Layers in other forms of weights than a build without imports and rules gives them: with zero points and float16
scales, or int8. In programs alone, or in a bundle with weights to them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from qpack_packager.quantize import int8
from qpack_runtime.arenas import Arenas, numeric
from qpack_runtime.reference.marlin import dequantize
from qpack_schemas.bundle import Bundle
from qpack_schemas.bundle_rules import FORMS, shared_buffers
from qpack_schemas.program import Buffer, Instruction, Kind, Program, align
from qpack_schemas.tensor_file import CODES, TensorSpan

Buffers = dict[str, Buffer]
Programs = Mapping[Kind, Program]
Change = Callable[[Instruction, Program, Buffers], Instruction]


def with_zeros(instruction: Instruction, program: Program, shared: Buffers) -> Instruction:
    scale = shared[instruction.inputs["scale"]]
    names = {name: f"{instruction.inputs['q']}:{name}" for name in ("scale", "zero")}
    shared[names["scale"]] = Buffer("weights", "float16", scale.shape)
    shared[names["zero"]] = Buffer("weights", "int8", scale.shape)
    return replace(instruction, inputs={**instruction.inputs, **names})


def as_int8(instruction: Instruction, program: Program, shared: Buffers) -> Instruction:
    n = program.buffers[instruction.outputs["y"]].shape[1]
    groups = int(shared[instruction.inputs["scale"]].shape[0])
    names = {name: f"{instruction.inputs['q']}:int8.{name}" for name in ("q", "scale")}
    shared[names["q"]] = Buffer("weights", "int8", (n, 128 * groups))
    shared[names["scale"]] = Buffer("weights", "bfloat16", (n, groups))
    return replace(instruction, op="linear_int8", inputs={**instruction.inputs, **names})


def changed(programs: Programs, shared: Mapping[str, Buffer], change: Change) -> tuple[Programs, Buffers]:
    """Every int4 linear but the head. `shared`: weights and the buffers that outlive a step, by name."""
    added = dict(shared)
    made: dict[Kind, Program] = {}
    for kind, program in programs.items():
        logits = program.code[-1].inputs["logits"]
        code = [
            change(one, program, added) if one.op == "linear_int4" and one.outputs["y"] != logits else one
            for one in program.code
        ]
        made[kind] = replace(program, code=tuple(code))
    return made, added


def changed_bundle(bundle: Bundle, change: Change, folder: Path) -> Bundle:
    """`bundle` with its programs changed. Zero points are random; the file with the new weights lies in `folder`."""
    arenas, rng = Arenas(bundle, numeric), np.random.default_rng(0)
    programs, shared = changed(bundle.programs, shared_buffers(bundle.manifest), change)
    arrays: dict[str, np.ndarray] = {}
    tensors = dict(bundle.manifest["tensors"])
    for old, new in zip(bundle.programs["decode"].code, programs["decode"].code, strict=True):
        if old == new:
            continue
        words, scale = (arenas.weights[old.inputs[name]] for name in ("q", "scale"))
        if new.op == "linear_int8":
            n, _ = shared[new.inputs["q"]].extent(1)
            quantized = int8.quantize(np.ascontiguousarray(dequantize(words, scale).T[:n]))
            made = {"q": quantized.codes, "scale": quantized.scales}
        else:
            moved = scale.astype(np.float32) * (1 + rng.random(scale.shape) / 100)  # no bfloat16 any more
            made = {"scale": moved.astype(np.float16), "zero": rng.integers(5, 12, scale.shape, np.int8)}
        for operand, array in made.items():
            name, form = new.inputs[operand], FORMS[new.op, operand]
            assert array.dtype == numeric(shared[name].dtype), name
            assert array.shape == shared[name].extent(1), name
            arrays[name] = array
            tensors[name] = {
                **tensors[old.inputs["q"]], "dtype": shared[name].dtype, "shape": list(array.shape), "form": form,
            }  # fmt: skip
    file = folder / "changed.bin"
    places: dict[str, tuple[Path, TensorSpan]] = {}
    with file.open("wb") as out:
        for name, array in arrays.items():
            places[name] = file, TensorSpan(CODES[shared[name].dtype], array.shape, out.tell(), array.nbytes)
            out.write(array.tobytes().ljust(align(array.nbytes), b"\0"))
    return replace(
        bundle,
        manifest={**bundle.manifest, "tensors": tensors},
        programs=programs,
        tensors={**bundle.tensors, **places},
    )
