"""Hidden states of all windows in a .npy file, written and read one window after the other: in memory there is one."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch

from qpack_schemas.errors import InputError


def write_windows(path: Path, windows: Iterable[torch.Tensor], shape: tuple[int, int, int]) -> None:
    """float32 [L, hidden] each, `shape` [n, L, hidden] together. Nothing is at `path` unless all of them are."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for window in windows:
            file.write(window.contiguous().numpy().data)
    os.replace(partial, path)


def read_windows(path: Path) -> Iterator[torch.Tensor]:
    """Each window in memory that torch has allocated: how that is aligned decides how a product is summed up, so that
    other memory would not give the same bits every time. Raises InputError if the file ends early."""
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        shape, _, _ = np.lib.format.read_array_header_1_0(file)
        for _ in range(shape[0]):
            window = torch.empty(shape[1:])
            if file.readinto(window.numpy().data.cast("B")) != 4 * window.numel():
                raise InputError("ends early", where=str(path), remedy="begin the build anew, without --resume")
            yield window
