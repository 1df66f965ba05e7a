"""The static buffers of the `sample` instruction with seats in them, to call it the way an executor does."""

from types import SimpleNamespace

import numpy as np

from qpack_runtime.reference.sampling import sample
from qpack_runtime.sampling_options import SamplingOptions, write_options
from qpack_schemas.sampling import BIAS_LIMIT, GRAMMAR, INTS, TOP_LOGPROBS_LIMIT

VOCAB, WIDTH, SLOTS = 50, 64, 5  # 14 padded ids; the last slot is scratch
SCRATCH = SLOTS - 1


class SamplerBuffers:
    """The buffers of `sample` as an executor binds them, full of garbage where nobody has written."""

    def __init__(self, *seats: SamplingOptions):
        self.ints = np.full((SLOTS, 6), -1, np.int32)
        self.floats = np.full((SLOTS, 6), np.nan, np.float32)
        self.bias_ids = np.full((SLOTS, BIAS_LIMIT), 2**31 - 1, np.int32)
        self.bias_values = np.full((SLOTS, BIAS_LIMIT), np.nan, np.float32)
        self.grammar = np.full((SLOTS, WIDTH // 32), 0x5A5A5A5A, np.int32)
        self.counts = np.zeros((SLOTS, WIDTH), np.int16)
        self.slot_token, self.slot_position = np.full(SLOTS, -7, np.int32), np.full(SLOTS, -8, np.int32)
        for slot, options in enumerate(seats):
            self.seat(slot, options)

    def seat(self, slot, options, allowed=None):
        write_options(options, slot, self.ints, self.floats, self.bias_ids, self.bias_values, vocab=VOCAB)
        if allowed is not None:
            self.ints[slot, INTS.index("flags")] |= GRAMMAR
            self.grammar[slot] = np.packbits(np.isin(np.arange(WIDTH), allowed), bitorder="little").view(np.int32)

    def run(self, logits, slots, positions, last=None):
        rows = len(logits)
        outputs = {
            "ids": np.full(rows, -1, np.int32),
            "status": np.full(rows, -1, np.int32),
            "logprobs": np.full(rows, np.nan, np.float32),
            "top_ids": np.full((rows, TOP_LOGPROBS_LIMIT), -1, np.int32),
            "top_logprobs": np.full((rows, TOP_LOGPROBS_LIMIT), np.nan, np.float32),
        }
        sample(
            logits, np.array(slots, np.int32), np.array(positions, np.int32), self.ints, self.floats, self.bias_ids,
            self.bias_values, self.grammar, self.counts, self.slot_token, self.slot_position, **outputs, vocab=VOCAB,
            last=None if last is None else np.array(last, np.int32),
        )  # fmt: skip
        return SimpleNamespace(**outputs)


def random_logits(rows, seed=0, scale=2.0):
    """Rows of logits whose padded ids would win every comparison."""
    logits = (np.random.default_rng(seed).standard_normal((rows, WIDTH)) * scale).astype(np.float32)
    logits[:, VOCAB:] = [1e30, np.inf, *[np.nan] * (WIDTH - VOCAB - 2)]
    return logits
