"""Per token: how likely the bundle holds the text's next one, and how far its distribution is from the reference's."""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from qpack_packager.evaluate.runner import LogitStream
from qpack_schemas.errors import InputError

# int64 [windows, length] of ids -> for each window float32 [length, ids], at least as many as the bundle's vocabulary.
Reference = Callable[[np.ndarray], Iterator[np.ndarray]]


@dataclass(frozen=True)
class Tokens:
    """float64 [windows, length - 1] each, NaN where a logit is not finite: what one set of logits says of the tokens
    behind the first. The last two compare with the reference, and are NaN without one."""

    log_likelihood: np.ndarray  # nats: log softmax(logits)[next token]
    divergence: np.ndarray  # nats: KL(reference || bundle) = sum of p (log p - log q)
    agreement: np.ndarray  # 1 where both hold the same token for the likeliest, else 0


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """float64, over the last axis."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def divergence(log_p: np.ndarray, log_q: np.ndarray) -> np.ndarray:
    """KL(p || q) over the last axis, in nats. What rounding takes below 0 is 0, which it can't be below (Gibbs)."""
    return np.maximum((np.exp(log_p) * (log_p - log_q)).sum(-1), 0)


def measure(
    streams: Mapping[str, LogitStream],
    windows: np.ndarray,
    reference: Reference | None,
    done: Callable[[str], None] = lambda unit: None,
) -> tuple[dict[str, Tokens], np.ndarray | None]:
    """Tokens of each stream by its name, and the log-likelihood float64 [windows, length - 1] of the reference, which
    is asked once. `done` is called after each batch of a stream.

    The streams take turns by batches, so that only one of them computes while the others wait at their pipes. Of the
    reference a batch is held, in a file without a name. Only the bundle's vocabulary counts: what a checkpoint has
    beyond it is no token. Raises InputError if the reference's logits are not finite, or of too few ids."""
    header = next(iter(streams.values())).header
    count, rows = len(windows), windows.shape[1] - 1
    batch, vocab = header["batch"], header["vocab"]
    found = {name: Tokens(*np.full((3, count, rows), np.nan)) for name in streams}
    answers = reference(windows.astype(np.int64)) if reference else None
    wanted = np.full((count, rows), np.nan)
    with tempfile.TemporaryFile() as file:
        if answers is not None:
            try:
                os.posix_fallocate(file.fileno(), 0, 4 * batch * rows * vocab)  # not later, by SIGBUS
            except OSError as error:
                error.filename = tempfile.gettempdir()
                raise
        for first in range(0, count, batch):
            together = windows[first : first + batch]
            held = None
            if answers is not None:
                held = np.memmap(file, np.float32, "r+", shape=(len(together), rows, vocab))
                for index in range(len(together)):
                    held[index] = _checked(next(answers), first + index, rows, vocab)
            for name, stream in streams.items():
                for position in range(rows):
                    logits = stream.read(first, len(together), position)
                    place = (slice(first, first + len(together)), position)
                    _enter(found[name], place, logits, together[:, position + 1], held, wanted)
                done(name)
    return found, wanted if reference else None


def _checked(logits: np.ndarray, window: int, rows: int, vocab: int) -> np.ndarray:
    if logits.shape[0] != rows + 1 or logits.shape[1] < vocab:
        message = f"the reference gives logits {list(logits.shape)}, the bundle's are [{rows + 1}, {vocab}]"
        raise InputError(message, remedy="compare with the checkpoint that the bundle was built from")
    logits = logits[:-1, :vocab]
    finite = np.all(np.isfinite(logits), axis=-1)
    if not finite.all():
        message = f"the reference's logits are not finite, at window {window}, position {int(np.argmin(finite))}"
        raise InputError(message, remedy="look for damaged weights in the reference")
    return logits


def _enter(
    into: Tokens,
    place: tuple[slice, int],
    logits: np.ndarray,
    following: np.ndarray,
    held: np.ndarray | None,
    wanted: np.ndarray,
) -> None:
    """One step: logits float32 [windows, vocab], following int32 [windows]."""
    finite = np.all(np.isfinite(logits), axis=-1)
    log_q = log_softmax(np.where(finite[:, None], logits, 0))
    each = np.arange(len(logits))
    into.log_likelihood[place] = np.where(finite, log_q[each, following], np.nan)
    if held is not None:
        log_p = log_softmax(held[:, place[1]])
        wanted[place] = log_p[each, following]
        into.divergence[place] = np.where(finite, divergence(log_p, log_q), np.nan)
        into.agreement[place] = np.where(finite, log_p.argmax(-1) == logits.argmax(-1), np.nan)
