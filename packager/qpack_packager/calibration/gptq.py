"""GPTQ (Frantar et al. 2022, arXiv:2210.17323) in the grid of the bundle: int4 in groups of 128 with signed scales.

Columns are rounded one after the other, those with the largest inputs first, and what rounding one changes in the
output is made good by the columns that are still free. The scales of all groups are chosen before that, so the order
leaves no trace in what is stored.
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import torch

from qpack_packager.calibration.halves import Halves
from qpack_packager.quantize.groups import GROUP, Quantized

LEAST_DAMPING, MOST_DAMPING = 0.01, 1.0  # of the mean diagonal
GRID = tuple(0.7 + step / 32 for step in range(16))  # multiples of the smallest scale that clips nothing


class NotDefiniteError(Exception):
    """A Hessian that no damping makes positive definite."""


@dataclass(frozen=True)
class Factor:
    """A damped Hessian H over its columns in `order`, as U with H^-1 = U^T U, and H itself, in the memory of one."""

    halves: Halves
    damping: float  # the share of the mean diagonal

    @property
    def order(self) -> torch.Tensor:
        """int64 [K], the columns by falling diagonal."""
        return self.halves.order

    @property
    def upper(self) -> torch.Tensor:
        """float64 [K, K], U; what is below the diagonal isn't 0."""
        return self.halves.matrix

    @property
    def costs(self) -> torch.Tensor:
        """float32 [K]: what a squared rounding error of a column costs once all later ones have done their best."""
        return torch.empty(len(self.order)).scatter_(0, self.order, self.upper.diagonal().float() ** -2)


def damping_for(inputs: int, tokens: int) -> float:
    """The share of the mean diagonal that is added at first: 0.01, as in the paper, or K / n where n tokens are so few
    that this is more. About so uncertain is what they say of K inputs; believed, it would be fitted to the text."""
    return min(max(LEAST_DAMPING, inputs / tokens), MOST_DAMPING)


def factor(hessian: torch.Tensor, damping: float = LEAST_DAMPING) -> Factor:
    """float64 [K, K] -> its factor, with `damping` or the first of ten times, a hundred times as much with which there
    is one. Inputs that are always 0 are left with the damping alone, so that their weights are rounded to nearest. The
    factor takes over the memory of `hessian`. Raises NotDefiniteError, and leaves it as it was."""
    if not all(lines.isfinite().all() for lines in hessian.split(GROUP)):
        raise NotDefiniteError("it holds NaN or infinity")
    mean = float(hessian.diagonal().mean()) or 1.0
    halves = Halves(hessian, torch.argsort(hessian.diagonal(), descending=True, stable=True))
    while not halves.factor_inverse(damping * mean):
        if damping >= MOST_DAMPING:
            halves.give_back()
            raise NotDefiniteError(f"even with {damping:g} of its mean diagonal added, it is not positive definite")
        halves.rewind()
        damping = min(10 * damping, MOST_DAMPING)
    return Factor(halves, damping)


def quantize(weight: torch.Tensor, factored: Factor) -> Quantized:
    """float32 [N, K] -> codes uint8 [N, K'] and scales [N, K'/128] in whole groups; behind K the codes are 8, which is
    0. Lines don't depend on each other."""
    n, k = weight.shape
    width = -(-k // GROUP) * GROUP
    columns, costs = torch.zeros(width, n), torch.zeros(width)
    columns[:k], costs[:k] = weight.T, factored.costs
    groups = list(zip(columns.split(GROUP), costs.split(GROUP), strict=True))
    scales = torch.stack([least_cost(*group) for group in groups])
    steps = round_columns(columns, scales, factored)
    error, whole = torch.zeros(2, n, dtype=torch.float64)
    for (group, _), rounded, scale in zip(groups, steps.split(GROUP), scales, strict=True):
        error += (rounded * scale - group).double().square_().sum(0)
        whole += group.double().square_().sum(0)
    return Quantized(
        np.ascontiguousarray(steps.add_(8).T.numpy().view(np.uint8)),
        np.ascontiguousarray(scales.T.numpy().astype(ml_dtypes.bfloat16)),
        error.numpy(),
        whole.numpy(),
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
    """float32 [K', N] and [K'/128, N] -> whole steps -8..7, int8 [K', N].

    The formulas are those of the paper's section 3.3: of column j the error e = (w - q) / U[j, j] is taken, and
    e U[j, i] from each later column i; from those of the same block as they are reached, from the others together."""
    free, steps = columns[factored.order], torch.zeros(columns.shape, dtype=torch.int8)
    for first in range(0, len(free), GROUP):
        last = min(first + GROUP, len(free))
        lower = factored.upper[first:last, first:].to(columns.dtype).T.contiguous()
        errors = columns.new_empty(last - first, columns.shape[1])
        for j, place in enumerate(factored.order[first:last].tolist()):
            column, scale = free[first + j] - lower[j, :j] @ errors[:j], scales[place // GROUP]
            step = nearest(column, scale)
            errors[j], steps[place] = (column - step * scale) / lower[j, j], step
        free[last:].addmm_(lower[last - first :], errors, alpha=-1)
    return steps


def nearest(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Whole steps -8..7 of the scales [N], float32 as `values` [..., N]."""
    return (values / torch.where(scales == 0, 1.0, scales)).round_().clamp_(-8, 7)
