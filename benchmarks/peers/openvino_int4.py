"""OpenVINO with int4 weights in groups of 128, head included, by NNCF: the fastest of the forms that were tried.

OpenVINO GenAI reads a GGUF file, which is a shorter way than exporting from PyTorch through optimum-intel."""

# pyright: reportMissingImports=false

from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nncf
import numpy as np
import openvino
import openvino_genai
from openvino import opset13 as opset

from .contender import prompt
from .gguf_file import write_gguf

MODEL = "int4.xml"
PROPERTIES = ("INFERENCE_PRECISION_HINT", "DYNAMIC_QUANTIZATION_GROUP_SIZE", "KV_CACHE_PRECISION")


class OpenVino:
    """The stateful model, stepped without the pipeline around it, so that a step is one request."""

    def __init__(self, checkpoint: Path, work: Path, threads: int):
        model = openvino.Core().read_model(_model(checkpoint, work))
        settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        compiled = openvino.compile_model(model, "CPU", settings)
        self._request = compiled.create_infer_request()
        self._vocab = compiled.output("logits").partial_shape[2].get_length()
        self._next = np.empty((0, 1), np.int64)
        self._positions = 0
        chosen = ", ".join(f"{name.lower()} {_shown(compiled.get_property(name))}" for name in PROPERTIES)
        self.facts = {
            "version": f"openvino {version('openvino')}, openvino-genai {version('openvino-genai')}, "
            f"nncf {version('nncf')}",
            "chosen": chosen,
        }

    def logits(self, tokens: list[int]) -> np.ndarray:
        self._request.reset_state()
        return self._run(np.array([tokens]), 0)[0, -1].astype(np.float32)

    def fill(self, batch: int, positions: int) -> None:
        self._request.reset_state()
        self._choose(self._run(np.array([prompt(positions, self._vocab)] * batch), 0))
        self._positions = positions

    def step(self) -> None:
        self._choose(self._run(self._next, self._positions))
        self._positions += 1

    def prefill(self, tokens: int) -> None:
        self.fill(1, tokens)

    def _choose(self, logits: np.ndarray) -> None:
        self._next = logits[:, -1:].argmax(-1)

    def _run(self, ids: np.ndarray, past: int) -> np.ndarray:
        """Logits [B, T, V] of `ids` int64 [B, T], behind `past` positions; valid until the next run."""
        batch, length = ids.shape
        inputs = {
            "input_ids": ids,
            "attention_mask": np.ones((batch, past + length), np.int64),
            "position_ids": np.tile(np.arange(past, past + length), (batch, 1)),
            "beam_idx": np.arange(batch, dtype=np.int32),
        }
        self._request.infer(inputs, share_inputs=True)
        return self._request.get_output_tensor(0).data


def _model(checkpoint: Path, work: Path) -> Path:
    """The model as OpenVINO stores it, made if it isn't there."""
    folder = work / "openvino"
    if not folder.exists():
        with TemporaryDirectory(dir=work) as name:  # the pipeline writes beside what it reads
            source, made = Path(name) / "f16.gguf", Path(name) / "made"
            write_gguf(checkpoint, source, "f16")
            openvino_genai.LLMPipeline(source, "CPU", enable_save_ov_model=True)
            model = openvino.Core().read_model(source.with_name("openvino_model.xml"))
            _keep_last_row(model)
            int4 = nncf.CompressWeightsMode.INT4_SYM
            openvino.save_model(nncf.compress_weights(model, mode=int4, group_size=128, all_layers=True), made / MODEL)
            made.rename(folder)
    return folder / MODEL


def _keep_last_row(model: openvino.Model) -> None:
    """Logits of the last row only, as OpenVINO GenAI's own pipeline asks for."""
    head = model.output("logits").get_node().input_value(0).get_node()
    while head.get_type_name() != "MatMul":
        head = head.input_value(0).get_node()
    last = opset.slice(head.input_value(0), *(np.array([value]) for value in (-1, np.iinfo(np.int64).max, 1, 1)))
    head.input(0).replace_source_output(last.output(0))


def _shown(value: Any) -> str:
    return value.get_type_name() if isinstance(value, openvino.Type) else str(value)
