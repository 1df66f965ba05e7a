"""transformers with bfloat16 weights and activations, eager: what a model card's example runs."""

from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from .contender import prompt


class Transformers:
    def __init__(self, checkpoint: Path, work: Path, threads: int):
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self._model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).eval()
        self._vocab = self._model.config.vocab_size
        self._cache, self._next = DynamicCache(), torch.empty(0, 1, dtype=torch.long)
        self.facts = {
            "version": f"transformers {version('transformers')}, torch {version('torch')}",
            "chosen": f"attention {self._model.config._attn_implementation}, dynamic cache, "
            f"oneDNN {torch.backends.mkldnn.is_available()}, {torch.backends.cpu.get_cpu_capability()}",
        }

    def logits(self, tokens: list[int]) -> np.ndarray:
        self._cache = DynamicCache()
        return self._run(torch.tensor([tokens]))[0].float().numpy()

    def fill(self, batch: int, positions: int) -> None:
        self.prefill(positions)
        self._cache.batch_repeat_interleave(batch)
        self._next = self._next.repeat(batch, 1)

    def step(self) -> None:
        self._next = self._run(self._next).argmax(-1, keepdim=True)

    def prefill(self, tokens: int) -> None:
        self._cache = DynamicCache()
        self._next = self._run(torch.tensor([prompt(tokens, self._vocab)])).argmax(-1, keepdim=True)

    def _run(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits [B, V] behind the last of `ids` int64 [B, T]."""
        return self._model(ids, cache=self._cache, logits_to_keep=1).logits[:, -1]
