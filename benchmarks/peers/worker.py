"""The process of one contender: `python -m peers.worker NAME CHECKPOINT WORK THREADS`, started by process.py.

Reads calls and writes answers, a line of JSON each: {"call": "decode", "batch": 1, "context": 128, "steps": 32} gets
{"answer": [milliseconds]}, what goes wrong {"error": text} or, where a library is absent, {"absent": its name}.
"""

import ctypes
import gc
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from .contender import Contender, decode_times, prefill_times, prompt

NAMES = ("qpack-fast", "qpack-exact", "llama-q4_0", "llama-q4_0-pure", "openvino-int4", "transformers-bf16")
UNQUANTIZED = "llama-bf16"  # only shows that the file holds the same model
PROMPT = 32  # tokens behind which the logits are compared
PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def load(name: str, checkpoint: Path, work: Path, threads: int) -> Contender:
    """Imports the library of a contender and makes and loads its form of the model."""
    library, _, form = name.partition("-")
    if library == "llama":
        from .llama import Llama

        return Llama(checkpoint, work, threads, form)
    if library == "openvino":
        from .openvino_int4 import OpenVino

        return OpenVino(checkpoint, work, threads)
    if library == "transformers":
        from .torch_bf16 import Transformers

        return Transformers(checkpoint, work, threads)
    from .qpack import Qpack

    return Qpack(checkpoint, work, threads, "exact" if form == "exact" else "fast")


def answer(contender: Contender, call: str, *, vocab: int = 0, batch: int = 1, context: int = 0, times: int = 1) -> Any:
    """The answer to one line."""
    if call == "facts":
        return contender.facts
    if call == "logits":
        return contender.logits(prompt(PROMPT, vocab)).tolist()
    if call == "decode":
        return decode_times(contender, batch, context, times)
    return prefill_times(contender, context, times)


def main(name: str, checkpoint: str, work: str, threads: str) -> None:
    # A stopped process doesn't see that its pipe is closed: whoever kills the parent kills this.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    contender = None
    for line in sys.stdin:
        try:
            if contender is None:
                contender = load(name, Path(checkpoint), Path(work), int(threads))
                gc.collect()
                gc.disable()  # no step pays for what others left behind
            said = {"answer": answer(contender, **json.loads(line))}
        except ModuleNotFoundError as error:
            said = {"absent": error.name}
        except Exception:
            said = {"error": traceback.format_exc()}
        print(json.dumps(said), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
