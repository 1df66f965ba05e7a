"""`qpack-runtime logits`: the tokens of a text are fed through the decode program, and what the model made of each goes
to a pipe, for a process that measures the bundle's quality."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from qpack_runtime.boot import Booted
from qpack_runtime.engine import Engine
from qpack_runtime.sampling_options import SamplingOptions
from qpack_schemas.errors import FitError, InputError

FRAME = struct.Struct("<3i")  # first window, windows, position; then float32 [windows, vocab], little-endian


def read_windows(path: Path, engine: Engine) -> np.ndarray:
    """int32 [windows, length] of token ids from a .npy file.

    Raises InputError for anything else, FitError if a window is longer than the bundle's context."""
    try:
        with path.open("rb") as file:
            windows = np.lib.format.read_array(file, allow_pickle=False)
    except ValueError as error:
        raise InputError(f"is no .npy file: {error}", where=str(path)) from None
    shape = windows.shape
    if len(shape) != 2 or windows.dtype != np.int32 or shape[0] < 1 or shape[1] < 2:
        message = f"holds {windows.dtype} {list(shape)}, not int32 [windows, length] with at least 2 tokens each"
        raise InputError(message, where=str(path))
    if shape[1] > engine.context:
        raise FitError(
            f"its windows have {shape[1]} tokens, the bundle's context is {engine.context}",
            where=str(path),
            remedy="cut shorter windows, or build with a larger --context",
        )
    wrong = (windows < 0) | (windows >= engine.vocab)
    if wrong.any():
        window, position = np.argwhere(wrong)[0].tolist()
        message = f"token {windows[window, position]} of window {window} is not in the vocabulary of {engine.vocab} ids"
        raise InputError(message, where=str(path))
    return windows


def write_logits(booted: Booted, windows: np.ndarray, out: BinaryIO) -> None:
    """One line of JSON, then a frame for each position of each batch of windows: FRAME and the logits behind it."""
    engine = booted.engine
    batch = min(engine.decode_rows, len(windows))
    header = {
        "bundle_id": booted.bundle.bundle_id,
        "device": booted.device,
        "mode": booted.facts.get("mode"),
        "facts": booted.facts,
        "notes": booted.notes,
        "windows": len(windows),
        "rows": windows.shape[1] - 1,
        "batch": batch,
        "vocab": engine.vocab,
    }
    out.write(json.dumps(header, ensure_ascii=True).encode("ascii") + b"\n")
    for first in range(0, len(windows), batch):
        together = windows[first : first + batch]
        for position, logits in enumerate(forced_logits(engine, together)):
            out.write(FRAME.pack(first, len(together), position))
            out.write(np.ascontiguousarray(logits, "<f4").data)
    out.flush()


def forced_logits(engine: Engine, windows: np.ndarray) -> Iterator[np.ndarray]:
    """Position by position the logits float32 [windows, vocab] behind that token of every window, as the model gives
    them; the array is filled anew each time. The last token is fed to nobody, so there is no position behind it.

    windows int32 [windows, length], at most as many as a decode step has rows: each has a slot. What the model would
    choose plays no part: the next token is the only one that the grammar's mask allows. Behind a row whose logits are
    not finite a sequence can't go on, and its further rows are NaN."""
    logits = np.empty((len(windows), engine.vocab), np.float32)
    alive: list[int] = []
    for slot, (token, following) in enumerate(windows[:, :2].tolist()):
        engine.admit(slot, SamplingOptions(), grammar=True)
        _allow_only(engine, slot, following)
        pending = engine.launch_chunk(slot, 0, [token])
        (choice,) = engine.read(pending)
        logits[slot] = engine.logits(pending)[0]
        alive += [slot] if not choice.status else []
    yield logits
    for following in windows.T[2:].tolist():
        logits[:] = np.nan
        if alive:
            for slot in alive:
                _allow_only(engine, slot, following[slot])
            pending = engine.launch_decode(alive)
            choices = engine.read(pending)
            logits[alive] = engine.logits(pending)
            alive = [slot for slot, choice in zip(alive, choices, strict=True) if not choice.status]
        yield logits


def _allow_only(engine: Engine, slot: int, token: int) -> None:
    def write(mask: np.ndarray) -> None:  # int32 [V / 32]
        mask[:] = 0
        mask.view(np.uint32)[token >> 5] = 1 << (token & 31)

    engine.restrict(slot, write)
