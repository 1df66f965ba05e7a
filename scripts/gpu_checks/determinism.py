"""Piece `determinism`: the same steps give the same bits, whatever bucket they run in and whatever runs beside them."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from qpack_runtime.cuda.executor import CudaExecutor
from qpack_runtime.engine import Engine
from qpack_schemas.bundle import Bundle, open_bundle
from qpack_schemas.manifest import Bucket

from .outcome import Line, Outcome, Settings
from .steps import GREEDY, Launch, buckets_of, decode, prefill, random_tokens

COMPARED_STEPS = 32  # of each bucket with the others
EAGER_STEPS = 64  # of graphs with single launches


class Tracer:
    """Decodes, and tells the bits: per sequence its tokens and the sha256 of its last logits."""

    def __init__(self, bundle: Bundle, executor: CudaExecutor):
        self.bundle, self.executor = bundle, executor
        self.engine, self.slots = Engine(executor, bundle.manifest), bundle.manifest["slots"]

    def decode(self, bucket: Bucket, slots: Sequence[int], steps: int, launch: Launch) -> dict[int, tuple[str, str]]:
        """slot -> digests of its ids and its logits. Slot s decodes the prompt of seed s from the beginning."""
        for slot in slots:
            length = min(2 + 3 * slot, bucket["context"] - steps)
            self.engine.prefill(slot, random_tokens(self.bundle, length, seed=slot), GREEDY)
        ids = np.stack(
            [decode(self.executor, bucket, slots, self.slots, launch)["ids"][: len(slots)] for _ in range(steps)]
        )
        logits = self.executor.value(bucket["name"], "logits")
        return {slot: (_digest(ids[:, row]), _digest(logits[row])) for row, slot in enumerate(slots)}

    def prompt(self, bucket: Bucket, tokens: Sequence[int]) -> str:
        """The digest of the logits behind a prompt that is cut into chunks of the bucket."""
        self.engine.admit(0, GREEDY)
        for start in range(0, len(tokens), bucket["rows"]):
            part = tokens[start : start + bucket["rows"]]
            prefill(self.executor, bucket, 0, start, part, self.executor.launch)
        return _digest(self.executor.value(bucket["name"], "logits"))


def check_determinism(path: Path, settings: Settings) -> Outcome:
    """The outcome for the bundle at `path`."""
    bundle = open_bundle(path, digests=False)
    executor = CudaExecutor(bundle, allow_ptx=settings.allow_ptx)
    tracer = Tracer(bundle, executor)
    failures: list[str] = []
    steps = _repeat(tracer, settings, failures)
    lines = _compare_buckets(tracer, settings, failures)
    what = (
        f"{steps} decode steps gave the same bits twice, and all {len(lines)} buckets give each sequence the same bits"
    )
    return Outcome("the bits differ" if failures else what, failures, {"Bits by bucket": lines})


def _repeat(tracer: Tracer, settings: Settings, failures: list[str]) -> int:
    """All of the steps twice in the bucket of the most rows, in blocks that fit its context; the first also eagerly."""
    bucket, graph = buckets_of(tracer.bundle, "decode")[-1], tracer.executor.launch
    slots = list(range(bucket["rows"]))
    done = 0
    while done < settings.decode_steps:
        block = min(settings.decode_steps - done, bucket["context"] // 2)
        once, again = (tracer.decode(bucket, slots, block, graph) for _ in range(2))
        failures += _differences(f"{bucket['name']}, steps {done} to {done + block}, twice", once, again)
        if done == 0:
            few = min(block, EAGER_STEPS)
            graphs = once if few == block else tracer.decode(bucket, slots, few, graph)
            eager = tracer.decode(bucket, slots, few, tracer.executor.launch_eagerly)
            failures += _differences(f"{bucket['name']}, graph and single launches", graphs, eager)
        done += block
    return done


def _compare_buckets(tracer: Tracer, settings: Settings, failures: list[str]) -> list[Line]:
    """Every bucket with the smallest: sequences alone, then together, in another order and beside padding."""
    graph, lines = tracer.executor.launch, list[Line]()
    decoders, prefills = buckets_of(tracer.bundle, "decode"), buckets_of(tracer.bundle, "prefill")
    steps = min(COMPARED_STEPS, settings.decode_steps, min(bucket["context"] for bucket in decoders) // 2)
    alone: dict[int, tuple[str, str]] = {}
    for slot in range(max(bucket["rows"] for bucket in decoders)):
        alone |= tracer.decode(decoders[0], [slot], steps, graph)
    for bucket in decoders:
        rows = list(range(bucket["rows"]))[::-1]
        found: dict[int, tuple[str, str]] = {}
        for slots in [rows[:-1], rows] if len(rows) > 1 else [rows]:
            found = tracer.decode(bucket, slots, steps, graph)
            failures += _differences(f"{bucket['name']}, {len(slots)} rows", {s: alone[s] for s in slots}, found)
        lines.append({"bucket": bucket["name"], "what": f"{steps} steps", "logits": found[0][1][:16]})
    length = min(settings.prompt, min(bucket["context"] for bucket in prefills) - 2)
    tokens = random_tokens(tracer.bundle, length, seed=0)
    digests = {bucket["name"]: tracer.prompt(bucket, tokens) for bucket in prefills}
    (first, wanted), *_ = digests.items()
    failures += [f"{name}: other logits than {first}" for name, digest in digests.items() if digest != wanted]
    return lines + [{"bucket": n, "what": f"{length} tokens", "logits": d[:16]} for n, d in digests.items()]


def _differences(what: str, wanted: dict[int, tuple[str, str]], got: dict[int, tuple[str, str]]) -> list[str]:
    names = "tokens", "logits of the last step"
    return [
        f"{what}: slot {slot} has other {name}"
        for slot in wanted
        for name, one, other in zip(names, wanted[slot], got[slot], strict=True)
        if one != other
    ]


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
