"""Numbers made of codes on their way in: made in two ways that share no step, and compared."""

import numpy as np

from qpack_schemas.errors import InputError


def expect_same(ours: np.ndarray, wanted: np.ndarray, first: int, format_name: str, where: str) -> None:
    """Raises InputError naming the first weight of float32 [n, K], lines `first` and on, in which they differ. What is
    NaN in both is left to whoever refuses it."""
    if np.array_equal(ours, wanted, equal_nan=True):
        return
    different = ~((ours == wanted) | (np.isnan(ours) & np.isnan(wanted)))
    line, column = np.argwhere(different)[0]
    raise InputError(
        f"as codes, weight [{first + line}, {column}] is {ours[line, column]}; {format_name} makes it "
        f"{wanted[line, column]}; {int(different.sum())} of {different.size} weights differ",
        where=where,
        remedy="build from the unquantized checkpoint",
    )
