"""What the inputs of a matrix look like: the second moments of all tokens, which is all that GPTQ wants to know."""

from collections.abc import Callable, Iterable
from itertools import islice

import torch

from qpack_packager.calibration.forward import StreamedModel

BLOCK = 128  # lines of the Hessian that a thread adds to at a time


class Hessian:
    """H = 2/n sum x x^T, float64 [K, K], of the n inputs seen: rounding W to Q costs tr((W - Q) H (W - Q)^T) / 2."""

    def __init__(self, k: int):
        self.tokens, self._sum = 0, torch.zeros(k, k, dtype=torch.float64)

    def see(self, windows: list[torch.Tensor], model: StreamedModel) -> None:
        """float32 [L, K] each. A window's products are added up in float32, windows in float64, in their order."""

        def add(first: int) -> None:
            last = first + BLOCK
            for window in windows:  # H is symmetric: what's left of the diagonal can wait
                self._sum[first:last, first:] += window[:, first:last].T @ window[:, first:]

        for _ in model.each(add, range(0, len(self._sum), BLOCK)):
            pass
        self.tokens += sum(map(len, windows))

    def finish(self) -> torch.Tensor:
        """H, in the memory that it was added up in."""
        self._sum *= 2 / self.tokens
        for first in range(0, len(self._sum), BLOCK):
            last = first + BLOCK
            self._sum[last:, first:last] = self._sum[first:last, last:].T
        return self._sum


def see_inputs(
    linear: torch.nn.Linear,
    run: Callable[[torch.Tensor], object],
    windows: Iterable[torch.Tensor],
    model: StreamedModel,
) -> Hessian:
    """The second moments of what reaches `linear` while `run` takes each window through its layer, no further."""
    hessian, rest = Hessian(linear.in_features), iter(windows)

    def stop(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        raise _ReachedError(inputs[0])

    def inputs_of(window: torch.Tensor) -> torch.Tensor:
        try:
            run(window)
        except _ReachedError as reached:
            return reached.inputs.reshape(-1, linear.in_features)
        raise AssertionError("the layer doesn't use its own matrix")

    handle = linear.register_forward_pre_hook(stop)
    try:
        while batch := list(islice(rest, model.threads)):
            hessian.see(list(model.each(inputs_of, batch)), model)
    finally:
        handle.remove()
    return hessian


class _ReachedError(Exception):
    """Ends a forward pass and carries what it was wanted for."""

    def __init__(self, inputs: torch.Tensor):
        super().__init__()
        self.inputs = inputs
