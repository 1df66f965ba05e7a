"""A symmetric matrix and a factor of its inverse, in the memory of one of them.

A symmetric matrix holds everything twice: the factor is computed in the upper half, block by block, while the matrix
stays in the lower one, from where the upper is written anew where damping was too little. Only the blocks on the
diagonal belong to both; those of the matrix are kept aside.
"""

import torch

BLOCK = 256  # lines and columns: what is kept aside, and what a step needs, is as large as so many lines


class Halves:
    """Of a symmetric matrix, float64 [K, K], whose memory this takes over: it is permuted, then factored."""

    def __init__(self, matrix: torch.Tensor, order: torch.Tensor):
        """`order` is int64 [K]: which line and column of the matrix comes first, and so on."""
        self.matrix, self.order = matrix, order
        self._permute(order)
        self._spans = [(first, min(first + BLOCK, len(matrix))) for first in range(0, len(matrix), BLOCK)]
        self._corners = [matrix[first:last, first:last].clone() for first, last in self._spans]

    def factor_inverse(self, damping: float) -> bool:
        """Puts U with (H + damping I)^-1 = U^T U where the upper half was; False if there is none in float32.

        The Cholesky factor that begins in the last corner, H + damping I = V V^T, is upper, and U = V^-1: with lines
        and columns in reverse it would be the usual one. The inverse itself is not needed."""
        if self._cholesky(damping):
            self._invert()
            return all(self.matrix[first:last, first:].float().isfinite().all() for first, last in self._spans)
        return False

    def rewind(self) -> None:
        """The permuted matrix is whole again."""
        for (first, last), corner in zip(self._spans, self._corners, strict=True):
            self.matrix[first:last, first:last] = corner
            self.matrix[first:last, last:] = self.matrix[last:, first:last].T

    def give_back(self) -> None:
        """The matrix is what it was."""
        self.rewind()
        self._permute(torch.argsort(self.order))

    def products(self, lines: torch.Tensor) -> torch.Tensor:
        """float64 [N, K], in the matrix's own order -> l H l^T of each, float64 [N]."""
        ordered = lines[:, self.order]
        total = lines.new_zeros(len(lines))
        for (first, last), corner in zip(self._spans, self._corners, strict=True):
            half = ordered[:, :first] @ self.matrix[first:last, :first].T
            total += ((2 * half + ordered[:, first:last] @ corner) * ordered[:, first:last]).sum(1)
        return total

    def _permute(self, order: torch.Tensor) -> None:
        for columns in self.matrix.split(BLOCK, 1):
            columns.copy_(columns[order])
        for lines in self.matrix.split(BLOCK):
            lines.copy_(lines[:, order])

    def _cholesky(self, damping: float) -> bool:
        """V in the upper half, the blocks on its diagonal inverted already; False if the matrix isn't definite."""
        for first, last in reversed(self._spans):
            done, strip = self.matrix[:last, last:], self.matrix[:last, first:last]
            strip.addmm_(done, self.matrix[first:last, last:].T, alpha=-1)
            corner = strip[first:]
            corner.diagonal().add_(damping)
            lower, failed = torch.linalg.cholesky_ex(corner.flip(0, 1))
            if failed:
                return False
            unit = torch.eye(last - first, dtype=corner.dtype)
            corner.copy_(torch.linalg.solve_triangular(lower, unit, upper=False).flip(0, 1))
            strip[:first] = strip[:first] @ corner.T
        return True

    def _invert(self) -> None:
        """V^-1 in its place, from the last lines up: -D V[here, behind] U[behind, behind], D the inverse of a block on
        the diagonal."""
        for place, (first, last) in reversed(list(enumerate(self._spans))):
            product = self.matrix.new_empty(last - first, len(self.matrix) - last)
            for begin, end in self._spans[place + 1 :]:
                torch.mm(
                    self.matrix[first:last, last:end],
                    self.matrix[last:end, begin:end],
                    out=product[:, begin - last : end - last],
                )
            self.matrix[first:last, last:].addmm_(self.matrix[first:last, first:last], product, beta=0, alpha=-1)
