"""Groups of a quantized weight: columns that share a scale. A bundle's groups are 128 neighbouring columns."""

import numpy as np

from qpack_packager.checkpoint.source_tensor import SourceTensor
from qpack_packager.quantize.groups import GROUP
from qpack_schemas.errors import InputError, UnsupportedError


def is_one(tensor: SourceTensor) -> bool:
    """One number for the whole weight."""
    return tensor.shape in ((), (1,), (1, 1))


def of_lines(tensor: SourceTensor, first: int, last: int) -> np.ndarray:
    """[last - first, G] of what a weight has one of for each group of each line, or one for all."""
    if is_one(tensor):
        return np.broadcast_to(tensor.read().reshape(1, 1), (last - first, 1))
    return tensor.lines(first, last).reshape(last - first, -1)


def even_groups(columns: int, scales: SourceTensor, count: int, sizes: set[int], where: str) -> np.ndarray:
    """int64 [columns], the group of each, where all but the last are of one size. There are `count` groups, and
    config.json has these `sizes` at `where`, -1 for one group of all columns. Raises InputError if none fits."""
    for size in sorted(columns if size == -1 else size for size in sizes):
        if -(-columns // size) == count:
            return np.arange(columns) // size
    raise InputError(
        f"has {count} groups of {columns} columns; in config.json the group size is "
        f"{' or '.join(map(str, sorted(sizes))) or 'absent'} ({where})",
        where=scales.where,
        remedy="take config.json and weights from the same download",
    )


def listed_groups(index: SourceTensor, columns: int, count: int) -> np.ndarray:
    """int64 [columns], the group of each as `index` says it. Raises InputError if it names a group without scales."""
    index.expect((columns,), "int32", "int64")
    groups = index.read().astype(np.int64)
    if groups.size and not (groups.min() >= 0 and groups.max() < count):
        raise InputError(
            f"names groups {groups.min()} to {groups.max()}; there are scales for {count}",
            where=index.where,
            remedy="the checkpoint is damaged; download it again",
        )
    return groups


def bundle_groups(groups: np.ndarray, tensor: SourceTensor) -> np.ndarray:
    """int64 [K], the group of each column -> [ceil(K / 128)], the group of each 128 of them. Raises UnsupportedError
    naming two columns of 128 neighbours that are in different groups."""
    firsts = groups[::GROUP]
    wrong = np.flatnonzero(groups != np.repeat(firsts, GROUP)[: len(groups)])
    if wrong.size:
        column = int(wrong[0])
        first = column - column % GROUP
        in_order = bool((np.diff(groups) >= 0).all())
        raise UnsupportedError(
            f"columns {first} and {column} are in groups {groups[first]} and {groups[column]}; in a bundle "
            f"{GROUP} neighbouring columns share a scale",
            where=tensor.where,
            remedy=f"quantize it with groups of {GROUP}, of a multiple of that, or one for all columns"
            if in_order
            else "export it with desc_act=False; act_group_aware=True keeps most of what that gains",
        )
    return firsts
