"""The last check of a boot: a prompt of one token and a decode step, through the smallest buckets."""

from qpack_runtime.boot import Booted
from qpack_runtime.generate import require_token
from qpack_schemas.errors import Finding, IntegrityError, QpackError

PROBE_TOKEN = 0


def run_first_step(booted: Booted) -> None:
    """Leaves slot 0 as any later prompt finds it. Raises IntegrityError if the model computes no token: its weights
    are wrong, however well the files agree with the manifest."""
    try:
        require_token(booted.engine.prefill(0, [PROBE_TOKEN]))
        require_token(booted.engine.decode([0])[0])
    except QpackError as error:
        finding = Finding("weights", error.message)
        raise IntegrityError("the model does not decode:", [finding], where=str(booted.bundle.path)) from None
    booted.engine.runs.clear()  # what is counted from here on are requests'
