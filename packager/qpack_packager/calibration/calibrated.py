"""Calibrated int4 for a build: modules in the order of the model, each rounded when all earlier ones are in place."""

import os
import re
from functools import partial
from pathlib import Path

import numpy as np
import torch

from qpack_packager.calibration.activations import read_windows, write_windows
from qpack_packager.calibration.forward import StreamedModel
from qpack_packager.calibration.gptq import NotDefiniteError, damping_for, factor
from qpack_packager.calibration.hessians import Hessian, see_inputs
from qpack_packager.calibration.rounding import restored, round_weight
from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.lowering.modules import Module, Rows
from qpack_packager.quantize.groups import Quantized
from qpack_packager.weights.lines import spans
from qpack_schemas.errors import InputError, QualityError
from qpack_schemas.strict_json import dump_compact, parse_strict

ENOUGH = 10  # tokens per input of the widest matrix, from which on more of them change little (docs/quality.md)
_STATE = "state.json"
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.weight")


class Calibrated:
    """`folder` belongs to one build, for as long as it may be resumed: it holds the inputs of the layer at work, and
    which that is. The same numbers come out on the same processor with the same torch, with any number of threads."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        windows: np.ndarray,
        folder: Path,
        *,
        max_fallbacks: int = 0,
        threads: int | None = None,
    ):
        """`windows` is int32 [n, L], the calibration text; `max_fallbacks` modules may be rounded to nearest where
        GPTQ fails. Raises InputError if there is no window."""
        if not windows.size:
            raise InputError(
                "the calibration text fills no window of tokens", remedy="give a text of some ten thousand words"
            )
        folder.mkdir(parents=True, exist_ok=True)
        self.model, self.windows, self.folder, self.max_fallbacks = (
            StreamedModel(checkpoint, folder, threads), windows, folder, max_fallbacks,
        )  # fmt: skip
        self.notes = _notes(checkpoint, windows)
        self.fallbacks = 0
        self._layer, self._live = 0, None  # the layer whose inputs are on disk, and itself once it's needed
        self._take_up()

    def keeps(self, module: Module) -> bool:
        """Whether a build that goes on may take this module over as it was made before: it isn't calibrated, or all of
        its layer has been, and the layer's outputs are on disk."""
        return module.form != "marlin" or module.imported or self._place(module) < self._layer

    @torch.no_grad()
    def quantize(self, module: Module, weight: np.ndarray) -> tuple[Quantized, dict[str, object]]:
        """float32 [N, K] of the joined sources -> lines [N, K'], and for the log: tokens seen, damping, the relative
        error of the outputs beside that of rounding to nearest, and why it was rounded to nearest, if it was.

        Raises QualityError if GPTQ fails and `max_fallbacks` modules have been rounded to nearest already."""
        self._go_to(self._place(module), module)
        seen, reason = self._inputs(module), None
        hessian = seen.finish()
        try:
            factored = factor(hessian, damping_for(len(hessian), seen.tokens))
        except NotDefiniteError as error:
            factored, reason = None, f"the Hessian can't be used: {error}"
            self._fall_back(module, seen.tokens, reason)
        rounded = round_weight(weight, factored or hessian)
        self._put(module, rounded.quantized)
        return rounded.quantized, {
            "tokens": seen.tokens,
            "damping": factored and factored.damping,
            "output_error": rounded.output_error,
            "rtn_output_error": rounded.rtn_output_error,
            "fallback": reason,
        }

    def _place(self, module: Module) -> int:
        """The module's layer; the head comes behind the last."""
        found = _LAYER.fullmatch(module.sources[0].tensor)
        return int(found[1]) if found else self.model.layers

    def _go_to(self, place: int, module: Module) -> None:
        """What the layers before `place` make of the text, with the weights that they have by now, goes to disk."""
        if place < self._layer:
            raise InputError(
                f"layer {place} is wanted again, the calibration is at layer {self._layer}", where=module.name,
                remedy="the unfinished bundle is damaged: begin the build anew, without --resume",
            )  # fmt: skip
        shape = (*self.windows.shape, self.model.config.hidden_size)
        if not self._hidden(self._layer).exists():
            write_windows(self._hidden(self._layer), self.model.embed(self.windows), shape)
        while self._layer < place:
            step = partial(self.model.step, self._live_layer())
            outputs = self.model.each(step, read_windows(self._hidden(self._layer)))
            write_windows(self._hidden(self._layer + 1), outputs, shape)
            self._layer, self._live = self._layer + 1, None
            self._write_state()
            self._hidden(self._layer - 1).unlink()

    def _inputs(self, module: Module) -> Hessian:
        windows = read_windows(self._hidden(self._layer))
        if self._layer < self.model.layers:
            step, linear = partial(self.model.step, self._live_layer()), self._linear(module.sources[0])
            return see_inputs(linear, step, windows, self.model)
        hessian = Hessian(module.shape[1])
        for window in self.model.each(self.model.norm(), windows):
            hessian.see([window], self.model)
        return hessian

    def _put(self, module: Module, quantized: Quantized) -> None:
        """The rounded weights into the layer at work; the head is in none."""
        if self._layer == self.model.layers:
            return
        weights = torch.from_numpy(restored(quantized, module.shape[1]))
        for rows, first, last in spans(module):
            kept = self._linear(rows).weight
            if rows.part:
                kept = kept.view(self.model.checkpoint.config.attention_heads, 2, -1, kept.shape[1])
                kept = kept[:, int(rows.part == "gate")]
            kept.copy_(weights[first:last].view(kept.shape))

    def _fall_back(self, module: Module, tokens: int, reason: str) -> None:
        self.fallbacks += 1
        if self.fallbacks > self.max_fallbacks:
            raise QualityError(
                f"of {tokens} tokens, {reason}; {self.fallbacks - 1} modules have been rounded to "
                f"nearest instead, {self.max_fallbacks} may be",
                where=module.name,
                remedy=f"give more calibration text, or let it be: --max-fallbacks {self.fallbacks}",
            )

    def _live_layer(self) -> torch.nn.Module:
        if self._live is None:
            self._live = self.model.layer(self._layer)
        return self._live

    def _linear(self, rows: Rows) -> torch.nn.Linear:
        found = _LAYER.fullmatch(rows.tensor)
        assert found
        linear = self._live_layer().get_submodule(found[2])
        assert isinstance(linear, torch.nn.Linear)
        return linear

    def _hidden(self, layer: int) -> Path:
        return self.folder / f"layer-{layer}.npy"

    def _write_state(self) -> None:
        partial = self.folder / (_STATE + ".partial")
        partial.write_bytes(dump_compact({"layer": self._layer, "fallbacks": self.fallbacks}))
        os.replace(partial, self.folder / _STATE)

    def _take_up(self) -> None:
        """Goes on where an interrupted build has left `folder`."""
        path = self.folder / _STATE
        if path.exists():
            state = parse_strict(path.read_text(encoding="utf-8"), str(path))
            assert isinstance(state, dict)
            if self._hidden(state["layer"]).exists():
                self._layer, self.fallbacks = state["layer"], state["fallbacks"]
        if self.fallbacks > self.max_fallbacks:
            raise QualityError(
                f"the interrupted build has rounded {self.fallbacks} modules to nearest, {self.max_fallbacks} may be",
                remedy=f"let it be: --max-fallbacks {self.fallbacks}; or begin anew, without --resume",
            )


def _notes(checkpoint: Checkpoint, windows: np.ndarray) -> list[str]:
    widest = max(checkpoint.config.hidden_size, checkpoint.config.intermediate_size)
    if windows.size >= ENOUGH * widest:
        return []
    return [
        f"the calibration text has {windows.size:,} tokens; more than {ENOUGH} times the {widest:,} inputs of the "
        "widest matrix would serve better"
    ]
