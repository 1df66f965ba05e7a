"""llama.cpp through llama-cpp-python: its own GGUF quantization, buffers and threads, as it chooses them by itself."""

# pyright: reportMissingImports=false

import ctypes
import os
from importlib.metadata import version
from pathlib import Path

import llama_cpp
import numpy as np

from .contender import MOST_POSITIONS, MOST_SEQUENCES, prompt
from .gguf_file import write_gguf

PURE = {"q4_0": False, "q4_0-pure": True}  # whether the head is Q4_0 as well, and not Q6_K as by default
LOADED = "model buffer size"  # of the lines in which llama.cpp says what it put where


class Llama:
    """One sequence per stream of the cache, as llama-server and llama-batched-bench have them."""

    def __init__(self, checkpoint: Path, work: Path, threads: int, form: str):
        lines: list[str] = []
        self._log = llama_cpp.llama_log_callback(lambda level, text, data: lines.append(text.decode(errors="replace")))
        llama_cpp.llama_log_set(self._log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_load_from_file(
            os.fsencode(_file(checkpoint, work, form, threads)), llama_cpp.llama_model_default_params()
        )
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_seq_max = MOST_SEQUENCES * MOST_POSITIONS, MOST_SEQUENCES
        settings.n_threads = settings.n_threads_batch = threads
        context = llama_cpp.llama_init_from_model(model, settings) if model else None
        if not context:
            raise RuntimeError("llama.cpp could not load its file:\n" + "".join(lines[-20:]))
        self._context, self._memory = context, llama_cpp.llama_get_memory(context)
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch = llama_cpp.llama_batch_init(MOST_POSITIONS, 0, 1)
        self._rows: list[tuple[int, int, int]] = []  # (token, position, sequence) of the next step
        self.facts = {
            "version": f"llama-cpp-python {version('llama-cpp-python')}",
            "built with": llama_cpp.llama_print_system_info().decode().strip(" |"),
            "buffers": "; ".join(
                line.partition("load_tensors:")[2].strip() for line in "".join(lines).splitlines() if LOADED in line
            ),
        }

    def logits(self, tokens: list[int]) -> np.ndarray:
        self._start(tokens)
        return self._logits(0).copy()

    def fill(self, batch: int, positions: int) -> None:
        tokens = prompt(positions, self._vocab)
        self._start(tokens)
        for sequence in range(1, batch):
            llama_cpp.llama_memory_seq_cp(self._memory, 0, sequence, -1, -1)
        token = int(self._logits(0).argmax())
        self._rows = [(token, positions, sequence) for sequence in range(batch)]

    def step(self) -> None:
        self._decode(self._rows, range(len(self._rows)))
        self._rows = [
            (int(self._logits(row).argmax()), position + 1, sequence)
            for row, (_, position, sequence) in enumerate(self._rows)
        ]

    def prefill(self, tokens: int) -> None:
        self._start(prompt(tokens, self._vocab))
        self._logits(0).argmax()

    def _start(self, tokens: list[int]) -> None:
        """Sequence 0 holds `tokens`, and there is no other."""
        llama_cpp.llama_memory_clear(self._memory, False)
        rows = [(token, position, 0) for position, token in enumerate(tokens)]
        self._decode(rows, [len(rows) - 1])

    def _decode(self, rows: list[tuple[int, int, int]], wanted: range | list[int]) -> None:
        batch = self._batch
        batch.n_tokens = len(rows)
        for index, (token, position, sequence) in enumerate(rows):
            batch.token[index], batch.pos[index] = token, position
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
            batch.logits[index] = index in wanted
        self._outputs = list(wanted)
        if (status := llama_cpp.llama_decode(self._context, batch)) != 0:
            raise RuntimeError(f"llama_decode gave {status} for {len(rows)} tokens")

    def _logits(self, output: int) -> np.ndarray:
        """float32 [V] of the `output`-th row that was wanted; valid until the next decode."""
        pointer = llama_cpp.llama_get_logits_ith(self._context, self._outputs[output])
        return np.ctypeslib.as_array(pointer, (self._vocab,))


def _file(checkpoint: Path, work: Path, form: str, threads: int) -> Path:
    """The GGUF file of a form, made if it isn't there."""
    plain, output = work / "bf16.gguf", work / f"{form}.gguf"
    if not plain.exists():
        write_gguf(checkpoint, plain, "bf16")
    if output.exists():
        return output
    partial = output.with_suffix(".partial")
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.nthread, settings.ftype, settings.pure = threads, llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, PURE[form]
    if (status := llama_cpp.llama_model_quantize(os.fsencode(plain), os.fsencode(partial), settings)) != 0:
        raise RuntimeError(f"llama_model_quantize gave {status} for {form}")
    return partial.rename(output)
