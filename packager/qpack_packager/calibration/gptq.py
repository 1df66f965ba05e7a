"""GPTQ (Frantar et al. 2022, arXiv:2210.17323) in the grid of the bundle: int4 in groups of 128 with signed scales.

Columns are rounded one after the other, those with the largest inputs first, and what rounding one changes in the
output is made good by the columns that are still free. The scales of all groups are chosen before that, so the order
leaves no trace in what is stored.
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import torch

from qpack_packager.quantize.groups import GROUP, Quantized

LEAST_DAMPING, MOST_DAMPING = 0.01, 1.0  # of the mean diagonal
GRID = tuple(0.7 + step / 32 for step in range(16))  # multiples of the smallest scale that clips nothing


class NotDefiniteError(Exception):
    """A Hessian that no damping makes positive definite."""


@dataclass(frozen=True)
class Factor:
    """A damped Hessian H over its columns in `order`, as U with H^-1 = U^T U."""

    order: torch.Tensor  # int64 [K'], the columns by falling diagonal, padding last
    upper: torch.Tensor  # float32 [K', K'], U
    damping: float

    @property
    def costs(self) -> torch.Tensor:
        """float32 [K']: what a squared rounding error of a column costs once all later ones have done their best."""
        return torch.empty_like(self.order, dtype=torch.float32).scatter_(0, self.order, self.upper.diagonal() ** -2)


def damping_for(inputs: int, tokens: int) -> float:
    """The share of the mean diagonal that is added at first: 0.01, as in the paper, or K / n where n tokens are so few
    that this is more. About so uncertain is what they say of K inputs; believed, it would be fitted to the text."""
    return min(max(LEAST_DAMPING, inputs / tokens), MOST_DAMPING)


def factor(hessian: torch.Tensor, damping: float = LEAST_DAMPING) -> Factor:
    """float64 [K, K] -> its factor, of whole groups, with `damping` or the first of ten times, a hundred times as much
    with which there is one. Inputs that are always 0 are left with the damping alone, so that their weights are rounded
    to nearest. Raises NotDefiniteError.

    With the columns in reverse H = L L^T; L^-1, turned round again, is U: the inverse itself is not needed."""
    if not hessian.isfinite().all():
        raise NotDefiniteError("it holds NaN or infinity")
    k, width = len(hessian), -(-len(hessian) // GROUP) * GROUP
    mean = float(hessian.diagonal().mean()) or 1.0
    falling = torch.argsort(hessian.diagonal(), descending=True, stable=True)
    order = torch.cat([falling, torch.arange(k, width)])
    damped = torch.zeros(width, width, dtype=torch.float64)
    damped[-k:, -k:] = hessian[falling.flip(0)][:, falling.flip(0)]
    undamped = damped.diagonal().clone()
    while True:
        damped.diagonal()[:] = undamped + damping * mean
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not failed and (upper := invert(lower).flip(0, 1).float()).isfinite().all():
            return Factor(order, upper, damping)
        if damping >= MOST_DAMPING:
            raise NotDefiniteError(f"even with {damping:g} of its mean diagonal added, it is not positive definite")
        damping = min(10 * damping, MOST_DAMPING)


def invert(lower: torch.Tensor) -> torch.Tensor:
    """The inverse of a triangle, float64 [K, K], by halves: products take less time than solving for all columns."""
    half = len(lower) // 2
    if half < GROUP:
        return torch.linalg.solve_triangular(lower, torch.eye(len(lower), dtype=lower.dtype), upper=False)
    inverse = torch.zeros_like(lower)
    inverse[:half, :half], inverse[half:, half:] = invert(lower[:half, :half]), invert(lower[half:, half:])
    inverse[half:, :half] = -inverse[half:, half:] @ lower[half:, :half] @ inverse[:half, :half]
    return inverse


def quantize(weight: torch.Tensor, factored: Factor) -> Quantized:
    """float32 [N, K] -> codes uint8 [N, K'] and scales [N, K'/128]; behind K the codes are 8, which is 0. Lines don't
    depend on each other."""
    n, k = weight.shape
    columns = torch.zeros(len(factored.order), n)
    columns[:k] = weight.T
    groups = zip(columns.split(GROUP), factored.costs.split(GROUP), strict=True)
    scales = torch.stack([least_cost(group, costs) for group, costs in groups])
    steps = round_columns(columns, scales, factored)
    return Quantized(
        np.ascontiguousarray((steps + 8).to(torch.uint8).T.numpy()),
        np.ascontiguousarray(scales.T.numpy().astype(ml_dtypes.bfloat16)),
        ((steps * scales.repeat_interleave(GROUP, 0) - columns).double() ** 2).sum(0).numpy(),
        (columns.double() ** 2).sum(0).numpy(),
    )


def least_cost(group: torch.Tensor, costs: torch.Tensor) -> torch.Tensor:
    """float32 [128, N] and the costs [128] of its lines -> the scales [N], float32 that bfloat16 holds exactly.

    The larger extreme is turned towards code -8, the side with one more code."""
    high, low = group.amax(0), group.amin(0)
    larger, smaller = torch.maximum(high, -low), torch.minimum(high, -low)
    whole = torch.where(high >= -low, -1.0, 1.0) * torch.maximum(larger / 8.5, smaller / 7.5)
    unit = torch.ldexp(torch.ones_like(whole), torch.frexp(larger).exponent.clamp(-126, 126))  # keeps squares finite
    values, scales, least = group / unit, torch.zeros_like(whole), torch.full_like(whole, torch.inf)
    for part in GRID:
        candidate = (whole * part).bfloat16().float()
        cost = costs @ (nearest(values, candidate / unit) * (candidate / unit) - values).square_()
        better = cost < least
        least, scales = torch.where(better, cost, least), torch.where(better, candidate, scales)
    return scales + 0.0  # one zero for groups of zeros


def round_columns(columns: torch.Tensor, scales: torch.Tensor, factored: Factor) -> torch.Tensor:
    """float32 [K', N] and [K'/128, N] -> whole steps -8..7, float32 [K', N].

    The formulas are those of the paper's section 3.3: of column j the error e = (w - q) / U[j, j] is taken, and
    e U[j, i] from each later column i; from those of the same block as they are reached, from the others together."""
    order, diagonal, lower = factored.order.tolist(), factored.upper.diagonal().tolist(), factored.upper.T.contiguous()
    free, steps = columns[factored.order], torch.empty_like(columns)
    for first in range(0, len(order), GROUP):
        last = first + GROUP
        errors = columns.new_empty(GROUP, columns.shape[1])
        for j in range(first, last):
            column, scale = free[j] - lower[j, first:j] @ errors[: j - first], scales[order[j] // GROUP]
            step = steps[order[j]] = nearest(column, scale)
            errors[j - first] = (column - step * scale) / diagonal[j]
        free[last:] -= lower[last:, first:last] @ errors
    return steps


def nearest(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Whole steps -8..7 of the scales [N], float32 as `values` [..., N]."""
    return (values / torch.where(scales == 0, 1.0, scales)).round_().clamp_(-8, 7)
