# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
"""The two launches of `sample` in Triton's interpreter, on the buffers of the reference, and the reference itself."""

from types import SimpleNamespace

import numpy as np
import torch

import interpreter
from qpack_packager.cuda.kernels.sample import sample_chunks
from qpack_packager.cuda.kernels.sample_merge import sample_merge
from qpack_runtime.reference.sampling import sample
from qpack_runtime.sampling_options import SamplingOptions, write_options
from qpack_schemas.sampling import BIAS_LIMIT, CHUNK_IDS, GRAMMAR, INTS, TOP_LOGPROBS_LIMIT

interpreter.install()

SLOTS = 8  # the last is scratch
SCRATCH = SLOTS - 1
POISON = 0x7B
OUTPUTS = {
    "ids": ((), np.int32),
    "status": ((), np.int32),
    "logprobs": ((), np.float32),
    "top_ids": ((TOP_LOGPROBS_LIMIT,), np.int32),
    "top_logprobs": ((TOP_LOGPROBS_LIMIT,), np.float32),
}


def poisoned(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    return np.frombuffer(bytearray([POISON]) * (int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(shape)


class Sampler:
    """The static buffers of `sample`, garbage where nobody has written. C, RC and K are constants of the kernels."""

    def __init__(self, vocab: int, width: int, *, C: int = 64, RC: int = 32, K: int = 256):
        self.vocab, self.width = vocab, width
        chunks = -(-width // CHUNK_IDS)
        self.sizes = {"C": C, "RC": RC, "LIST": BIAS_LIMIT, "TOP": TOP_LOGPROBS_LIMIT, "NC": chunks}
        self.sizes |= {"VOCAB": vocab, "WIDTH": width, "SCRATCH": SCRATCH}
        self.only_chunks = {"CHUNK": CHUNK_IDS}
        self.only_merge = {"NCP": 1 << (chunks - 1).bit_length(), "K": K}
        self.slots = [
            np.full((SLOTS, 6), -1, np.int32),
            np.full((SLOTS, 6), np.nan, np.float32),
            np.full((SLOTS, BIAS_LIMIT), 2**31 - 1, np.int32),
            np.full((SLOTS, BIAS_LIMIT), np.nan, np.float32),
            np.full((SLOTS, width // 32), 0x5A5A5A5A, np.int32),
            np.zeros((SLOTS, width), np.int16),
        ]
        self.ints, self.floats, self.bias_ids, self.bias_values, self.grammar, self.counts = self.slots

    def seat(self, slot: int, options: SamplingOptions, allowed=None) -> None:
        """Writes a request's options; `allowed` bool [width] is its grammar."""
        write_options(options, slot, self.ints, self.floats, self.bias_ids, self.bias_values, vocab=self.vocab)
        if allowed is not None:
            self.ints[slot, INTS.index("flags")] |= GRAMMAR
            self.grammar[slot] = np.packbits(allowed, bitorder="little").view(np.int32)

    def expected(self, logits, slots, positions, last=None) -> SimpleNamespace:
        result = {name: poisoned((len(logits), *shape), dtype) for name, (shape, dtype) in OUTPUTS.items()}
        token, position = np.full(SLOTS, -7, np.int32), np.full(SLOTS, -8, np.int32)
        sample(logits, slots, positions, *self.slots, token, position, **result, vocab=self.vocab, last=last)
        return SimpleNamespace(**result, slot_token=token, slot_position=position)

    def launch(self, logits, slots, positions, last=None, *, guard: int = 0) -> SimpleNamespace:
        """What the kernels write. Every output and scratch buffer has `guard` more rows, which must stay poisoned."""
        rows, chunks = len(logits), self.sizes["NC"]
        result = {name: poisoned((rows + guard, *shape), dtype) for name, (shape, dtype) in OUTPUTS.items()}
        token, position = np.full(SLOTS, -7, np.int32), np.full(SLOTS, -8, np.int32)
        per_chunk = {
            "best": ((2,), np.int64),
            "masses": ((), np.int64),
            "tops": ((4,), np.int32),
            "raw": ((2,), np.float32),
            "floors": ((), np.int64),
            "candidates": ((self.sizes["C"],), np.int64),
            "raw_candidates": ((self.sizes["RC"],), np.int64),
        }
        scratch = {name: poisoned((rows + guard, chunks, *shape), kind) for name, (shape, kind) in per_chunk.items()}
        first = poisoned((rows + guard, self.only_merge["K"]), np.int64)
        inputs = [*tensors([logits, slots, positions]), None if last is None else torch.from_numpy(last)]
        inputs += tensors(self.slots)
        work = tensors(scratch.values())
        with np.errstate(all="ignore"):
            sample_chunks[(rows, chunks)](*inputs, *work, **self.sizes, **self.only_chunks)
            sample_merge[(rows,)](
                *inputs, *tensors([token, position]), *work, *tensors([first]), *tensors(result.values()),
                **self.sizes, **self.only_merge,
            )  # fmt: skip
        for name, array in {**result, **scratch, "first": first}.items():
            assert (array[rows:].view(np.uint8) == POISON).all(), f"{name} is written outside its rows"
        return SimpleNamespace(
            **{name: array[:rows] for name, array in result.items()}, slot_token=token, slot_position=position
        )

    def check(self, logits, slots, positions, last=None, *, guard: int = 0) -> SimpleNamespace:
        """Launches, compares with the reference, and returns what both wrote."""
        slots, positions = np.array(slots, np.int32), np.array(positions, np.int32)
        last = None if last is None else np.array(last, np.int32)
        inputs = [array.copy() for array in (logits, slots, positions, *self.slots)]
        expected = self.expected(logits, slots, positions, last)
        actual = self.launch(logits, slots, positions, last, guard=guard)
        for name in ("status", "ids", "top_ids", "slot_token", "slot_position"):
            np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name), err_msg=name)
        for name in ("logprobs", "top_logprobs"):
            np.testing.assert_allclose(
                getattr(actual, name), getattr(expected, name), rtol=2e-6, atol=2e-6, err_msg=name
            )
        for before, after in zip(inputs, (logits, slots, positions, *self.slots), strict=True):
            assert np.array_equal(before, after, equal_nan=before.dtype == np.float32)
        return expected


def tensors(arrays) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in arrays]
