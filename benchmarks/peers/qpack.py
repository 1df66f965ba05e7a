"""This runtime: the bundle that `qpack build --lm-head int4` makes, on device cpu."""

from importlib.metadata import version
from pathlib import Path
from typing import Literal

import numpy as np

from qpack_packager.build import build
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.progress import Progress
from qpack_packager.serving import Options
from qpack_runtime.boot import boot
from qpack_runtime.generate import require_token

from .contender import MOST_POSITIONS, MOST_PROMPT, MOST_SEQUENCES, prompt

OPTIONS = Options(batches=(1, 4, MOST_SEQUENCES), contexts=(MOST_POSITIONS,), prefills=(MOST_PROMPT,), lm_head="int4")


class Qpack:
    def __init__(self, checkpoint: Path, work: Path, threads: int, mode: Literal["fast", "exact"]):
        bundle = work / "bundle"
        if not bundle.exists():
            build(ModelText(checkpoint), bundle, OPTIONS, Progress("plain"))
        booted = boot(bundle, "cpu", mode=mode, threads=threads)
        self._engine, self._executor = booted.engine, booted.executor
        self._prefill = next(b["name"] for b in booted.bundle.manifest["buckets"] if b["program"] == "prefill")
        self._seated: dict[int, int] = {}  # slot -> tokens of its prompt
        self._slots = range(0)
        self.facts = {
            "version": f"qpack {version('qpack-llm')}",
            "chosen": ", ".join(f"{name} {value}" for name, value in booted.facts.items()),
        }

    def logits(self, tokens: list[int]) -> np.ndarray:
        self._seated.pop(0, None)
        require_token(self._engine.prefill(0, tokens))
        return self._executor.io(self._prefill)["logits"][0].copy()

    def fill(self, batch: int, positions: int) -> None:
        tokens, self._slots = prompt(positions, self._engine.vocab), range(batch)
        for slot in self._slots:
            if self._seated.get(slot) == positions:  # decode steps wrote behind the prompt only
                require_token(self._engine.prefill_chunk(slot, positions - 1, tokens[-1:]))
            else:
                require_token(self._engine.prefill(slot, tokens))
                self._seated[slot] = positions

    def step(self) -> None:
        for choice in self._engine.decode(self._slots):
            require_token(choice)

    def prefill(self, tokens: int) -> None:
        self._seated.pop(0, None)
        require_token(self._engine.prefill(0, prompt(tokens, self._engine.vocab)))
