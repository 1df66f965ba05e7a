"""One weight rounded by what its inputs look like, and how much that changes its outputs."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from qpack_packager.calibration import gptq
from qpack_packager.quantize import rtn
from qpack_packager.quantize.groups import GROUP, Quantized

LINES = 2048  # that are rounded at a time
COSTED = 128  # whose errors are looked at together


@dataclass(frozen=True)
class Rounded:
    """Errors are ||X (W - Q)^T|| / ||X W^T|| of the inputs X that the Hessian is made of; None if it isn't finite."""

    quantized: Quantized  # lines [N, K']
    output_error: float | None
    rtn_output_error: float | None  # what rounding to nearest would have made of it


def round_weight(weight: np.ndarray, inputs: gptq.Factor | torch.Tensor) -> Rounded:
    """float32 [N, K], by the factor of its inputs' Hessian. With the Hessian alone, float64 [K, K], it's rounded to
    nearest, and so is each line whose outputs that changes less: GPTQ decides column by column, and may find itself at
    the end of the codes."""
    if isinstance(inputs, gptq.Factor):
        factored, products = inputs, inputs.halves.products
    else:
        factored, products = None, lambda lines: (lines @ inputs * lines).sum(1)
    parts: list[Quantized] = []
    costs = np.zeros(3)  # of what is taken, of rounding to nearest, of losing the weight whole
    for first in range(0, len(weight), LINES):
        lines = np.ascontiguousarray(weight[first : first + LINES])
        plain = rtn.quantize(np.pad(lines, ((0, 0), (0, -lines.shape[1] % GROUP))))
        made = gptq.quantize(torch.from_numpy(lines), factored) if factored else plain
        cost, plain_cost, whole = (_costs(lines, one, products) for one in (made, plain, None))
        parts.append(_choose(made, plain, cost <= plain_cost))
        costs += [np.fmin(cost, plain_cost).sum(), plain_cost.sum(), whole.sum()]
    quantized = Quantized(*map(np.concatenate, zip(*(vars(part).values() for part in parts), strict=True)))
    if not np.isfinite(costs).all():
        return Rounded(quantized, None, None)
    ours, plain_error = np.sqrt(np.maximum(costs[:2], 0) / (costs[2] or 1))
    return Rounded(quantized, float(ours), float(plain_error))


def restored(quantized: Quantized, k: int) -> np.ndarray:
    """float32 [N, K]: the weights that the codes stand for."""
    weights = quantized.codes.astype(np.float32)
    weights -= 8
    groups = weights.reshape(len(weights), -1, GROUP)
    groups *= quantized.scales.astype(np.float32)[..., None]
    return weights[:, :k]


def _costs(
    lines: np.ndarray, quantized: Quantized | None, products: Callable[[torch.Tensor], torch.Tensor]
) -> np.ndarray:
    """float32 [N, K] -> l H l^T of each line, less what is left of it if it's rounded; float64 [N]. A few at a time:
    they are doubles, and there more than once."""
    costs = np.empty(len(lines))
    for first in range(0, len(lines), COSTED):
        part = slice(first, first + COSTED)
        rest = lines[part]
        if quantized:
            rounded = Quantized(*(values[part] for values in vars(quantized).values()))
            rest = rest - restored(rounded, lines.shape[1])
        costs[part] = products(torch.from_numpy(rest).double()).numpy()
    return costs


def _choose(made: Quantized, plain: Quantized, better: np.ndarray) -> Quantized:
    """`made` in the lines where it is better."""
    pairs = zip(vars(made).values(), vars(plain).values(), strict=True)
    return Quantized(*(np.where(better.reshape(-1, *[1] * (a.ndim - 1)), a, b) for a, b in pairs))
