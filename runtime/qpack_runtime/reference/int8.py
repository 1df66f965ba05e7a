"""int8 codes and scales back to numbers."""

import numpy as np

GROUP = 128  # weights along K that share a scale


def dequantize(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """int8 [..., K] and scales [..., K/128] -> float32 [..., K] = code * scale, padding included."""
    return codes.astype(np.float32) * np.repeat(scales.astype(np.float32), GROUP, axis=-1)
