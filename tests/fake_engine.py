"""An engine whose model is a hash: the next token follows from the tokens that a slot has consumed and from nothing
else. So what a sequence must get is known without running anything, and a wrong state shows at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from zlib import crc32

import numpy as np

from qpack_runtime.engine import Choice, Pending
from qpack_runtime.sampling_options import SamplingOptions

VOCAB, END = 64, 7
CONTEXT = 128


class FakeTokenBytes:
    """Every token is a letter or so; END has no text."""

    longest = 1

    def __getitem__(self, token: int) -> bytes:
        return b"" if token == END else bytes([48 + token])


def next_token(consumed: Sequence[int], seed: int) -> int:
    return crc32(bytes(consumed) + seed.to_bytes(8, "little")) % VOCAB


def alone(prompt: Sequence[int], seed: int, most: int) -> list[int]:
    """What a sequence gets, computed on a fresh slot."""
    consumed, output = list(prompt), list[int]()
    while len(output) < most and END not in output:
        output.append(next_token(consumed, seed))
        consumed.append(output[-1])
    return output


@dataclass
class FakeExecutor:
    lookahead: bool = False
    same_bits: bool = True
    fallbacks: int = 0


@dataclass
class FakeEngine:
    """Checks what an executor relies on, too: distinct slots, positions that follow each other, read before prefill."""

    slots: int = 4
    rows: int = 4  # of the largest decode step
    chunk_sizes: tuple[int, ...] = (4, 16)
    executor: FakeExecutor = field(default_factory=FakeExecutor)
    context: int = CONTEXT
    vocab: int = VOCAB

    def __post_init__(self) -> None:
        self.positions = [0] * self.slots
        self.consumed: list[list[int]] = [[] for _ in range(self.slots)]
        self.seeds = [0] * self.slots
        self.chosen = [0] * self.slots
        self.unread = [0] * self.slots  # decode steps launched and not read, per slot
        self.steps: list[tuple[str, tuple[int, ...], int]] = []  # kind, slots, rows
        self.last_bucket = ""
        self.before_launch: Callable[[], object] = lambda: None
        self.masks: dict[int, np.ndarray] = {}
        self.grammars: set[int] = set()

    @property
    def prefill_rows(self) -> list[int]:
        return list(self.chunk_sizes)

    @property
    def decode_rows(self) -> int:
        return self.rows

    def admit(self, slot: int, options: SamplingOptions, *, grammar: bool = False) -> None:
        assert not self.unread[slot], "a slot was given away with a step under way"
        self.seeds[slot] = options.seed
        (self.grammars.add if grammar else self.grammars.discard)(slot)

    def restrict(self, slot: int, write: Callable[[np.ndarray], None]) -> None:
        bits = np.zeros(VOCAB // 32, np.int32)
        write(bits)
        self.masks[slot] = bits

    def launch_chunk(self, slot: int, start: int, tokens: Sequence[int]) -> Pending:
        self.last_bucket = "prefill"
        self.before_launch()
        assert not self.unread[slot]
        assert start in (0, len(self.consumed[slot])), "a prompt goes on where the slot is, or begins anew"
        assert 0 < len(tokens) <= self.chunk_sizes[-1]
        self.consumed[slot] = self.consumed[slot][:start] + list(tokens)
        self.positions[slot] = start + len(tokens)
        self.steps.append(("chunk", (slot,), len(tokens)))
        return Pending([self._choose(slot)], "prefill", (slot,), advances=False)

    def launch_decode(self, slots: Sequence[int]) -> Pending:
        self.last_bucket = "decode"
        self.before_launch()
        assert len(set(slots)) == len(slots) <= self.rows
        for slot in slots:
            self.consumed[slot].append(self.chosen[slot])
            self.positions[slot] += 1
            self.unread[slot] += 1
            assert self.positions[slot] <= self.context
        self.steps.append(("decode", tuple(slots), len(slots)))
        return Pending([self._choose(slot) for slot in slots], "decode", tuple(slots), advances=True)

    def read(self, pending: Pending) -> list[Choice]:
        for slot in pending.slots:
            self.unread[slot] -= pending.advances
        return pending.ticket

    def _choose(self, slot: int) -> Choice:
        token = next_token(self.consumed[slot], self.seeds[slot])
        if slot in self.grammars:  # the first allowed id from there on
            mask = self.masks.pop(slot)
            token = next(i % VOCAB for i in range(token, token + VOCAB) if mask[i % VOCAB >> 5] >> (i % VOCAB & 31) & 1)
        self.chosen[slot] = token
        return Choice(token, 0, 0.0)
