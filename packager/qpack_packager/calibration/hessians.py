"""What the inputs of a matrix look like: the second moments of all tokens, which is all that GPTQ wants to know."""

from collections.abc import Callable, Iterable

import torch


class Hessian:
    """H = 2/n sum x x^T, float64 [K, K], of the n inputs seen: rounding W to Q costs tr((W - Q) H (W - Q)^T) / 2."""

    def __init__(self, k: int):
        self.tokens, self._sum = 0, torch.zeros(k, k, dtype=torch.float64)

    def see(self, inputs: torch.Tensor) -> None:
        """float32 [..., K]. A window's products are added up in float32, windows in float64."""
        lines = inputs.reshape(-1, len(self._sum))
        self._sum += lines.T @ lines
        self.tokens += len(lines)

    @property
    def value(self) -> torch.Tensor:
        return self._sum * (2 / self.tokens)


def see_inputs(
    linear: torch.nn.Linear,
    windows: Iterable[torch.Tensor],
    run: Callable[[torch.Tensor], object],
) -> Hessian:
    """The Hessian of what reaches `linear` while `run` takes each window through its layer, no further than there."""
    hessian = Hessian(linear.in_features)

    def stop(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        hessian.see(inputs[0])
        raise _ReachedError

    handle = linear.register_forward_pre_hook(stop)
    try:
        for window in windows:
            try:
                run(window)
            except _ReachedError:
                continue
            raise AssertionError("the layer doesn't use its own matrix")
    finally:
        handle.remove()
    return hessian


class _ReachedError(Exception):
    """Ends a forward pass."""
