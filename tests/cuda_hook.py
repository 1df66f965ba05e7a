"""What the stub libcuda computes with: every kernel that it runs, in Triton's interpreter, on the stub's memory."""

import ctypes
import importlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from triton.runtime.interpreter import InterpretedFunction, interpreter_builder

import interpreter
from cuda_client import fnv
from qpack_schemas.manifest import Target

KERNELS = "qpack_packager.cuda.kernels"
TYPES = {
    "*fp32": torch.float32, "*bf16": torch.bfloat16, "*fp16": torch.float16, "*i64": torch.int64, "*i32": torch.int32,
    "*i16": torch.int16, "*i8": torch.int8,
}  # fmt: skip


class Interpreter:
    """Runs the kernels of one target of a bundle; to be passed to Stub.set_hook.

    A kernel is known by the digest of its image, so that a module that was mixed up with another shows."""

    def __init__(self, folder: Path, target: Target, *, backwards: bool = False):
        interpreter.install()
        self.holds: Callable[[int, int], bool] = lambda address, count: True  # whether a kernel may touch these bytes
        self.backwards = backwards  # from the last program of the grid to the first
        self.launches: Counter[str] = Counter()  # kernel -> launches
        self.programs: Counter[str] = Counter()
        self._run = {
            name: (fnv((folder / kernel["file"]).read_bytes()), kernel["block"], _binder(kernel))
            for name, kernel in target["kernels"].items()
        }

    def __call__(self, name: str, image: int, dims: tuple[int, ...], arguments: bytes) -> None:
        expected, block, bind = self._run[name]
        assert image == expected, f"{name} was loaded from the file of another kernel"
        assert dims[3:] == (block, 1, 1), f"{name} runs in blocks of {dims[3:]}"
        self.launches[name] += 1
        self.programs[name] += dims[0] * dims[1] * dims[2]
        function, values = bind(arguments)
        # Padding rows may hold anything, so what they overflow to is nobody's concern.
        with (
            np.errstate(all="ignore"),
            _guarded(self.holds),
            _backwards() if self.backwards else nullcontext(),
        ):
            function[dims[:3]](**values)


def _binder(kernel: Mapping[str, Any]) -> Callable[[bytes], tuple[InterpretedFunction, dict[str, Any]]]:
    """Argument bytes -> the Triton function and its arguments by name."""
    module, _, name = kernel["function"].rpartition(".")
    function = getattr(importlib.import_module(f"{KERNELS}.{module}"), name)
    assert isinstance(function, InterpretedFunction), f"{name} was imported without TRITON_INTERPRET"
    params, constants = dict(kernel["params"]), dict(kernel["constants"])
    assert {*params, *constants} == set(inspect.signature(function.fn).parameters), name

    def bind(arguments: bytes) -> tuple[InterpretedFunction, dict[str, Any]]:
        values, at = dict(constants), 0
        for param, kind in params.items():
            size = 4 if kind == "i32" else 8
            at = -(-at // size) * size
            value = int.from_bytes(arguments[at : at + size], "little", signed=kind == "i32")
            values[param] = value if kind == "i32" else _pointer(value, kind, f"{name}'s {param}")
            at += size
        at = -(-at // 8) * 8
        assert arguments[at:] == bytes(16), f"{name} gets no null pointers for its two scratch buffers"
        return function, values

    return bind


def _pointer(address: int, kind: str, what: str) -> torch.Tensor:
    """One element at an address: the interpreter asks for no more than the address, and copies the whole of it."""
    assert address % 16 == 0, f"{what} is not aligned to 16 bytes"
    item = torch.empty((), dtype=TYPES[kind]).element_size()
    return torch.frombuffer((ctypes.c_char * item).from_address(address), dtype=TYPES[kind])


@contextmanager
def _guarded(holds: Callable[[int, int], bool]) -> Iterator[None]:
    """Every load and store that is not masked must stay within an allocation: elsewhere it would end this process."""
    builder: Any = interpreter_builder
    load, store = builder.create_masked_load, builder.create_masked_store

    def check(pointers: Any, mask: Any) -> None:
        used = pointers.data[np.broadcast_to(mask.data, pointers.data.shape)]
        if used.size:
            first, size = int(used.min()), pointers.get_element_ty().primitive_bitwidth // 8
            if not holds(first, int(used.max()) + size - first):
                raise IndexError(f"a kernel touches bytes from {first:#x} on that nobody allocated")

    def guarded_load(pointers: Any, mask: Any, *rest: Any) -> Any:
        check(pointers, mask)
        return load(pointers, mask, *rest)

    def guarded_store(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        check(pointers, mask)
        return store(pointers, value, mask, *rest)

    builder.create_masked_load, builder.create_masked_store = guarded_load, guarded_store
    try:
        yield
    finally:
        del builder.create_masked_load, builder.create_masked_store


@contextmanager
def _backwards() -> Iterator[None]:
    builder: Any = interpreter_builder
    whole = builder.set_grid_idx

    def mirrored(*place: int) -> None:
        whole(*(extent - 1 - index for extent, index in zip(builder.grid_dim, place, strict=True)))

    builder.set_grid_idx = mirrored
    try:
        yield
    finally:
        del builder.set_grid_idx
