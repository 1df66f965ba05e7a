"""A checkpoint's model in float32, one decoder layer in memory at a time, made of transformers' own classes."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import transformers

from qpack_packager.calibration.activations import read_windows, write_windows
from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.lowering.qwen import EMBEDDING, HEAD
from qpack_schemas.errors import InputError

BLOCK_WEIGHTS = 1 << 22  # of the head, read and multiplied at a time by each thread: 16 MiB
_CLASSES = {"qwen2": ("Qwen2Config", "Qwen2Model"), "qwen3": ("Qwen3Config", "Qwen3Model"),
            "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5TextModel")}  # fmt: skip
Item = TypeVar("Item")
Result = TypeVar("Result")


class StreamedModel:
    """Hidden states between the layers lie in files of `folder`, which the caller owns.

    Each window is computed by one thread, and several at a time: no product is split, so that their number changes no
    bit, and nobody waits for the slowest part of one on a busy host."""

    def __init__(self, checkpoint: Checkpoint, folder: Path, threads: int | None = None):
        transformers.logging.set_verbosity_error()  # it advises kernels for GPUs
        torch.set_num_threads(1)
        self.checkpoint, self.folder = checkpoint, folder
        self.threads = threads or len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(self.threads, "windows")
        document: Any = checkpoint.config_document
        sizes = document.get("text_config") or document
        config_class, model_class = (getattr(transformers, name) for name in _CLASSES[checkpoint.config.family])
        self.config = config_class(**{key: value for key, value in sizes.items() if key != "model_type"})
        with torch.device("meta"):  # shapes and the choice of attention, no memory
            self._skeleton = model_class(self.config)
        self._rotary = type(self._skeleton.rotary_emb)(self.config)

    @property
    def layers(self) -> int:
        return len(self.checkpoint.config.layers)

    def embed(self, windows: np.ndarray) -> Iterator[torch.Tensor]:
        """Integers [n, L] -> float32 [L, hidden] of each window. Only the lines of its tokens are read."""
        for window in windows:
            ids, places = np.unique(window, return_inverse=True)
            lines = np.concatenate([self.checkpoint.lines(EMBEDDING, int(i), int(i) + 1) for i in ids])
            yield _tensor(lines[places])

    def layer(self, index: int) -> torch.nn.Module:
        """Layer `index` with its weights. Raises InputError for a tensor that is absent or of another shape."""
        with torch.device("meta"):
            layer = type(self._skeleton.layers[0])(self.config, index)
        return self._load(layer, f"model.layers.{index}.")

    def norm(self) -> torch.nn.Module:
        """The one behind the last layer."""
        with torch.device("meta"):
            norm = type(self._skeleton.norm)(self.config.hidden_size, eps=self.config.rms_norm_eps)
        return self._load(norm, "model.norm.")

    def step(self, layer: torch.nn.Module, window: torch.Tensor) -> torch.Tensor:
        """What the layer makes of a window, float32 [L, hidden]."""
        positions = torch.arange(len(window))[None]
        cosines_and_sines = self._rotary(window, positions)
        return layer(window[None], position_embeddings=cosines_and_sines, position_ids=positions)[0]

    def each(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """`function` of all items on the threads, in their order, without gradients; as many in memory as threads."""

        def one(item: Item) -> Result:
            with torch.no_grad():  # which each thread has to say for itself
                return function(item)

        rest = iter(items)
        while batch := list(islice(rest, self.threads)):
            yield from self._pool.map(one, batch)

    def logits(self, windows: np.ndarray) -> Iterator[np.ndarray]:
        """Integers [n, L] -> float32 [L, vocab] of each window, padding ids included."""
        shape = (*windows.shape, self.config.hidden_size)
        path = self.folder / "hidden.npy"
        write_windows(path, self.embed(windows), shape)
        for index in range(self.layers):
            write_windows(path, self.each(partial(self.step, self.layer(index)), read_windows(path)), shape)
        for window in self.each(self.norm(), read_windows(path)):
            yield self._head(window)
        path.unlink()

    def _head(self, hidden: torch.Tensor) -> np.ndarray:
        name = HEAD if HEAD in self.checkpoint.tensors else EMBEDDING
        vocab, width = self.checkpoint.tensors[name].shape
        logits, step = torch.empty(len(hidden), vocab), max(1, BLOCK_WEIGHTS // width)

        def multiply(first: int) -> None:
            last = min(first + step, vocab)
            logits[:, first:last] = hidden @ _tensor(self.checkpoint.lines(name, first, last)).T

        for _ in self.each(multiply, range(0, vocab, step)):
            pass
        return logits.numpy()

    def _load(self, module: torch.nn.Module, prefix: str) -> Any:
        tensors: dict[str, torch.Tensor] = {}
        for name, empty in module.state_dict().items():
            source = self.checkpoint.tensors.get(prefix + name)
            if source is None or source.shape != tuple(empty.shape):
                has = "is missing" if source is None else f"has shape {list(source.shape)}"
                raise InputError(f"tensor {prefix + name!r} {has}, config.json asks for {list(empty.shape)}")
            tensors[name] = _tensor(self.checkpoint.lines(prefix + name, 0, source.shape[0]))
        module.load_state_dict(tensors, assign=True)
        return module.eval()


def _tensor(values: np.ndarray) -> torch.Tensor:
    """float32, in memory that torch has allocated, see activations.py."""
    tensor = torch.empty(values.shape)
    tensor.numpy()[...] = values
    return tensor
