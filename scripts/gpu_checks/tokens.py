"""Piece `tokens`: whole programs, greedy, against the reference executor.

Both decode the same prompts, one alone and three in a step with padding. Where the reference's best two logits are
closer together than the tolerance, either token is right; the reference then goes on from the device's.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from qpack_runtime.cuda.executor import CudaExecutor
from qpack_runtime.engine import Choice, Engine
from qpack_runtime.reference.executor import ReferenceExecutor
from qpack_schemas.bundle import open_bundle

from .outcome import Outcome, Settings
from .parity import SMALL_BYTES
from .steps import GREEDY, random_tokens

# Of logits, relative to the largest of the row. A float32 model differs by the order of its sums; with 16 bits every
# rounding that falls the other way moves the rest of the model, and the cache keeps it.
TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
PROMPTS = (1, 5, 17, 40)  # tokens


class Pair:
    """The device and the reference, in step. `worst` is the largest difference of logits, relative as the tolerance."""

    def __init__(self, path: Path, settings: Settings):
        self.bundle = open_bundle(path, digests=False)
        self.device = CudaExecutor(self.bundle, allow_ptx=settings.allow_ptx)
        self.reference = ReferenceExecutor(self.bundle)
        self.engines = Engine(self.device, self.bundle.manifest), Engine(self.reference, self.bundle.manifest)
        self.tolerance = TOLERANCE[self.bundle.manifest["model"]["dtype"]]
        self.worst = 0.0
        self.tokens = self.close = 0
        self.failures: list[str] = []

    def prefill(self, slot: int, prompt: Sequence[int]) -> None:
        mine, theirs = (engine.prefill(slot, prompt, GREEDY) for engine in self.engines)
        last = list(self.engines[0].chunks(len(prompt)))[-1]
        self._compare([slot], [mine], [theirs], self._bucket("prefill", last, len(prompt)))

    def decode(self, slots: Sequence[int]) -> None:
        needed = max(self.engines[0].positions[slot] for slot in slots) + 1
        mine, theirs = (engine.decode(slots) for engine in self.engines)
        self._compare(slots, mine, theirs, self._bucket("decode", len(slots), needed))

    def _compare(self, slots: Sequence[int], mine: list[Choice], theirs: list[Choice], bucket: str) -> None:
        got, wanted = self.device.value(bucket, "logits"), self.reference.io(bucket)["logits"]
        for row, (slot, one, other) in enumerate(zip(slots, mine, theirs, strict=True)):
            where = f"{bucket}, slot {slot}, position {self.engines[0].positions[slot]}"
            size = float(np.abs(wanted[row]).max())
            far = float(np.abs(got[row] - wanted[row]).max()) / size
            if not far <= self.tolerance:  # NaN too
                self.failures.append(f"{where}: logits differ by {far:.3g} of the largest, {self.tolerance} is allowed")
            self.worst = max(self.worst, far)
            self.tokens += 1
            if one.token != other.token:
                self.close += 1
                second, first = np.sort(wanted[row])[-2:]
                if first - second > 2 * self.tolerance * size:
                    self.failures.append(f"{where}: token {one.token}, the reference chose {other.token} clearly")
                self.reference.state("slot_token")[slot] = one.token

    def _bucket(self, kind: str, rows: int, context: int) -> str:
        """What the engine takes: the smallest that fits."""
        fitting = [
            (bucket["rows"], bucket["context"], bucket["name"])
            for bucket in self.bundle.manifest["buckets"]
            if bucket["program"] == kind and bucket["rows"] >= rows and bucket["context"] >= context
        ]
        return min(fitting)[2]


def check_tokens(path: Path, settings: Settings) -> Outcome:
    """The outcome for the bundle at `path`; left out if its weights are large."""
    size = open_bundle(path, digests=False).manifest["memory"]["weights_bytes"]
    if size > SMALL_BYTES:
        what = f"left out: the weights take {size:,} bytes, more than the reference decodes in the time of a check"
        return Outcome(what, left_out=True)
    pair = Pair(path, settings)
    manifest = pair.bundle.manifest
    most = max(bucket["rows"] for bucket in manifest["buckets"] if bucket["program"] == "decode")
    longest = manifest["context"] - 2
    for group in ([0], list(range(min(len(PROMPTS) - 1, most)))):
        for slot in group:
            length = min(PROMPTS[(slot + len(group)) % len(PROMPTS)], settings.prompt, longest)
            pair.prefill(slot, random_tokens(pair.bundle, length, seed=slot))
        room = manifest["context"] - max(pair.engines[0].positions[slot] for slot in group)
        for _ in range(min(settings.tokens, room)):
            pair.decode(group)
    what = f"{pair.tokens} tokens agree with the reference, {pair.close} of them only as near ties"
    return Outcome(
        f"{what}; logits differ by at most {pair.worst:.2g} of the largest ({pair.tolerance} is allowed)",
        pair.failures,
    )
