"""One weight rounded by what its inputs look like, and how much that changes its outputs."""

from dataclasses import dataclass

import numpy as np
import torch

from qpack_packager.calibration import gptq
from qpack_packager.quantize import rtn
from qpack_packager.quantize.groups import GROUP, Quantized

LINES = 4096  # that are rounded at a time


@dataclass(frozen=True)
class Rounded:
    """Errors are ||X (W - Q)^T|| / ||X W^T|| of the inputs X that the Hessian is made of; None if it isn't finite."""

    quantized: Quantized  # lines [N, K']
    output_error: float | None
    rtn_output_error: float | None  # what rounding to nearest would have made of it


def round_weight(weight: np.ndarray, hessian: torch.Tensor, factored: gptq.Factor | None) -> Rounded:
    """float32 [N, K] and its inputs' Hessian, float64 [K, K]. Without a factor it's rounded to nearest, and so is each
    line whose outputs that changes less: GPTQ decides column by column, and may find itself at the end of the codes."""
    parts: list[Quantized] = []
    costs = np.zeros(3)  # of what is taken, of rounding to nearest, of losing the weight whole
    for first in range(0, len(weight), LINES):
        lines = np.ascontiguousarray(weight[first : first + LINES])
        plain = rtn.quantize(np.pad(lines, ((0, 0), (0, -lines.shape[1] % GROUP))))
        made = gptq.quantize(torch.from_numpy(lines), factored) if factored else plain
        cost, plain_cost = (_cost(lines - restored(one, lines.shape[1]), hessian) for one in (made, plain))
        parts.append(_choose(made, plain, cost <= plain_cost))
        costs += [np.fmin(cost, plain_cost).sum(), plain_cost.sum(), _cost(lines, hessian).sum()]
    quantized = Quantized(*map(np.concatenate, zip(*(vars(part).values() for part in parts), strict=True)))
    if not np.isfinite(costs).all():
        return Rounded(quantized, None, None)
    ours, plain_error = np.sqrt(np.maximum(costs[:2], 0) / (costs[2] or 1))
    return Rounded(quantized, float(ours), float(plain_error))


def restored(quantized: Quantized, k: int) -> np.ndarray:
    """float32 [N, K]: the weights that the codes stand for."""
    steps = quantized.codes.astype(np.float32) - 8
    return (steps * np.repeat(quantized.scales.astype(np.float32), GROUP, axis=1))[:, :k]


def _cost(lines: np.ndarray, hessian: torch.Tensor) -> np.ndarray:
    """float32 [N, K] -> l H l^T of each line, float64 [N]."""
    exact = torch.from_numpy(lines).double()
    return (exact @ hessian * exact).sum(1).numpy()


def _choose(made: Quantized, plain: Quantized, better: np.ndarray) -> Quantized:
    """`made` in the lines where it is better."""
    pairs = zip(vars(made).values(), vars(plain).values(), strict=True)
    return Quantized(*(np.where(better.reshape(-1, *[1] * (a.ndim - 1)), a, b) for a, b in pairs))
