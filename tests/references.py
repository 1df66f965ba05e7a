"""What a bundle is measured against, in tests: logits of transformers, window by window."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oracle import transformers_model

Reference = Callable[[np.ndarray], Iterator[np.ndarray]]


def transformers_reference(checkpoint: Path, state: dict[str, np.ndarray] | None = None) -> Reference:
    """The checkpoint in float32, as it is or with the tensors of `state`."""
    model: Any = transformers_model(checkpoint, state)

    def logits(windows: np.ndarray) -> Iterator[np.ndarray]:
        for window in windows:
            with torch.no_grad():
                yield model(torch.from_numpy(window)[None], use_cache=False).logits[0].numpy()

    return logits
