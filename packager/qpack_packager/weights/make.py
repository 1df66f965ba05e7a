"""The tensors of one module: read in blocks of lines, rounded on every processor, packed, handed on piece by piece.

Peak memory is a few blocks, and the packed codes of two int4 modules, since the next is begun while one is written; of
imported ones also the codes that they come from. No weight is ever there whole as floats, unless its method needs it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol, TypeVar

import ml_dtypes
import numpy as np

from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.lowering.modules import Module
from qpack_packager.quantize import int8, rtn
from qpack_packager.quantize.groups import GROUP, Quantized, relative_rms
from qpack_packager.quantize.marlin import TILE_N, pack, permute_scales
from qpack_packager.rope_table import rope_table
from qpack_packager.weights.imported import import_lines, import_log
from qpack_packager.weights.lines import read_lines, read_source, spans
from qpack_schemas.errors import InputError

BLOCK_WEIGHTS = 1 << 19  # that are read and rounded at a time, and more only if 64 lines are more
AHEAD = 2  # blocks that each worker may be ahead of the writer
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
Item = TypeVar("Item")
Result = TypeVar("Result")


class Calibrated(Protocol):
    """A method that rounds int4 modules by what their inputs look like."""

    def quantize(self, module: Module, weight: np.ndarray) -> tuple[Quantized, dict[str, object]]:
        """float32 [N, K] of the joined sources -> lines [N, K'], and what the log should say beside the errors."""
        ...

    def keeps(self, module: Module) -> bool:
        """Whether `module` may be left as an interrupted build made it: nothing that depends on it is still to come."""
        ...


@dataclass
class Made:
    """The tensors of one module, in the order of its layout: each in pieces that follow each other along the first
    axis, made as they are taken. `log` is what quantization cost, once the last piece is taken."""

    tensors: Mapping[str, Iterable[np.ndarray]]
    log: dict[str, object] | None = None


class Maker:
    """Makes modules of a checkpoint on `pool`. int4 is rounded to nearest, or as `calibrated` does it."""

    def __init__(self, checkpoint: Checkpoint, pool: Executor, workers: int, calibrated: Calibrated | None = None):
        self.checkpoint, self.pool, self.workers, self.calibrated = checkpoint, pool, workers, calibrated

    def make(self, module: Module) -> Made:
        """Begins with it: whoever asks for the next module before taking this one's pieces keeps the workers busy.
        Pieces raise InputError for NaN and infinity, naming the tensor."""
        if module.form == "rope_table":
            context, _, half = module.shape
            return Made({module.name: [rope_table(context, 2 * half, module.theta)]})
        if module.form == "dense":
            ((name, _),) = module.tensors.items()
            return Made({name: self._dense(module)})
        made = Made({})
        if module.form == "int8":
            made.tensors = self._int8(module, made)
        elif module.imported:
            made.tensors = self._imported(module, made)
        else:
            made.tensors = self._int4(module, made)
        return made

    def keeps(self, module: Module) -> bool:
        """Whether what an interrupted build made of `module` may be taken over."""
        return self.calibrated is None or self.calibrated.keeps(module)

    def _dense(self, module: Module) -> Iterator[np.ndarray]:
        (stored,) = module.tensors.values()
        dtype, shape = DTYPES[stored.dtype], stored.extent(1)
        for rows, begin, end in spans(module):
            for first, last in _blocks(end - begin, module.shape, 1):
                lines = read_source(rows, self.checkpoint, first, last)
                if not np.isfinite(lines).all():
                    raise _not_finite(rows.tensor)
                yield lines.astype(dtype, copy=False).reshape(-1, *shape[1:])
        if missing := shape[0] - module.shape[0]:
            yield np.zeros((missing, *shape[1:]), dtype)

    def _int8(self, module: Module, made: Made) -> dict[str, Iterable[np.ndarray]]:
        codes, scale = module.tensors
        done: list[Quantized] = []
        rounded = self._rounded(module, int8.quantize)

        def pieces() -> Iterator[np.ndarray]:
            for quantized in rounded:
                done.append(replace(quantized, codes=np.empty(0)))
                yield quantized.codes
            made.log = _log(module, "rtn", 8, done)

        return {codes: pieces(), scale: (part.scales for part in done)}

    def _int4(self, module: Module, made: Made) -> dict[str, Iterable[np.ndarray]]:
        codes, scale = module.tensors
        n, k = module.padded
        words, scales = np.empty((k // 16, 2 * n), np.int32), np.empty((k // GROUP, n), ml_dtypes.bfloat16)
        method, extras = "rtn", dict[str, object]()

        def place(quantized: Quantized, first: int) -> Quantized:
            last = first + len(quantized.codes)
            words[:, 2 * first : 2 * last] = pack(quantized.codes.T)
            scales[:, first:last] = permute_scales(np.ascontiguousarray(quantized.scales.T))
            return Quantized(np.empty(0), np.empty(0), quantized.squared_error, quantized.squared_weight)

        rounded = self._rounded(module, rtn.quantize, place) if self.calibrated is None else iter(())

        def pieces() -> Iterator[np.ndarray]:
            nonlocal method, extras
            if self.calibrated is None:
                done = list(rounded)
            else:
                quantized, extras = self._calibrated(module, self.calibrated)
                method = "rtn" if extras.get("fallback") else "gptq"
                done = [place(quantized, 0)]
            made.log = _log(module, method, 4, done) | extras
            yield words

        return {codes: pieces(), scale: [scales]}

    def _calibrated(self, module: Module, method: Calibrated) -> tuple[Quantized, dict[str, object]]:
        """The lines with those behind the sources, up to whole tiles, all zero."""
        n, k = module.shape
        weight = read_lines(module, self.checkpoint, 0, n)[:, :k]
        self._check_finite(module, 0, weight)
        quantized, extras = method.quantize(module, weight)
        more = ((0, module.padded[0] - n), (0, 0))
        return Quantized(
            np.pad(quantized.codes, more, constant_values=8),
            np.pad(quantized.scales.view(np.uint16), more).view(ml_dtypes.bfloat16),
            np.pad(quantized.squared_error, more[0]),
            np.pad(quantized.squared_weight, more[0]),
        ), extras

    def _imported(self, module: Module, made: Made) -> dict[str, Iterable[np.ndarray]]:
        n, _ = module.padded
        stored = [np.empty(buffer.extent(1), buffer.dtype) for buffer in module.tensors.values()]
        checkpoint = self.checkpoint.holding(rows.tensor for rows in module.sources)

        def place(block: tuple[int, int]) -> None:
            first, last = block
            for whole, part in zip(stored, import_lines(module, checkpoint, first, last), strict=True):
                width = whole.shape[1] // n
                whole[:, width * first : width * last] = part

        placed = _in_order(self.pool, self.workers * AHEAD, place, _blocks(n, module.padded, TILE_N))

        def tensors() -> Iterator[np.ndarray]:
            for _ in placed:
                pass
            made.log = import_log(module)
            yield from stored

        made_arrays = tensors()
        return {name: _one(made_arrays) for name in module.tensors}

    def _rounded(
        self,
        module: Module,
        quantize: Callable[[np.ndarray], Quantized],
        then: Callable[[Quantized, int], Quantized] = lambda quantized, first: quantized,
    ) -> Iterator[Quantized]:
        """Block after block of the padded lines, some at a time on every worker."""

        def one(block: tuple[int, int]) -> Quantized:
            lines = read_lines(module, self.checkpoint, *block)
            try:
                return then(quantize(lines), block[0])
            except ValueError:
                self._check_finite(module, block[0], lines)
                raise

        return _in_order(self.pool, self.workers * AHEAD, one, _blocks(module.padded[0], module.padded, TILE_N))

    @staticmethod
    def _check_finite(module: Module, first: int, lines: np.ndarray) -> None:
        wrong = np.flatnonzero(~np.isfinite(lines).all(-1))
        if wrong.size:
            line = first + int(wrong[0])
            raise _not_finite(next(rows.tensor for rows, begin, end in spans(module) if begin <= line < end))


def _not_finite(tensor: str) -> InputError:
    return InputError("holds NaN or infinity", where=tensor, remedy="the checkpoint is damaged")


def _one(arrays: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    yield next(arrays)


def _blocks(lines: int, shape: tuple[int, ...], multiple: int) -> Iterator[tuple[int, int]]:
    """`lines` cut into ranges of about BLOCK_WEIGHTS, each a multiple of `multiple` lines."""
    width = int(np.prod(shape[1:], dtype=np.int64))
    step = max(1, BLOCK_WEIGHTS // max(1, width) // multiple) * multiple
    for first in range(0, lines, step):
        yield first, min(first + step, lines)


def _in_order(
    pool: Executor, ahead: int, function: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[Result]:
    """Results in the order of `items`, at most `ahead` of them waiting: a whole map would hold all of them. Those are
    begun at once."""
    left = iter(items)
    waiting = deque[Future[Result]](pool.submit(function, item) for item in islice(left, ahead))

    def results() -> Iterator[Result]:
        try:
            while waiting:
                waiting.extend(pool.submit(function, item) for item in islice(left, 1))
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    return results()


def _log(module: Module, method: str, bits: int, done: list[Quantized]) -> dict[str, object]:
    error, weight = (
        np.concatenate([getattr(part, name) for part in done]) for name in ("squared_error", "squared_weight")
    )
    return {
        "module": module.name,
        "method": method,
        "bits": bits,
        "shape": list(module.shape),
        "padded": list(module.padded),
        "sources": [
            {
                "tensor": rows.tensor,
                "part": rows.part,
                "relative_rms_error": relative_rms(error[begin:end], weight[begin:end]),
            }
            for rows, begin, end in spans(module)
        ],
    }
