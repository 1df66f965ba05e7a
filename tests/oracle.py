"""transformers on the weights that a bundle holds: what the executors are compared with."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
import transformers
from safetensors import safe_open

from qpack_runtime.reference import int8, marlin
from qpack_schemas.bundle import Bundle

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
CLASSES = {"qwen2": "Qwen2", "qwen3": "Qwen3", "qwen3_5": "Qwen3_5"}


def source_tensors(checkpoint: Path) -> dict[str, np.ndarray]:
    """Every tensor of a checkpoint as float32, by the name it has without the multimodal prefix."""
    tensors: dict[str, np.ndarray] = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(file, "pt") as handle:
            for name in handle.keys():  # noqa: SIM118 (no mapping)
                tensor = handle.get_tensor(name).float().numpy()
                tensors[name.replace("model.language_model.", "model.")] = tensor
    return tensors


def bundle_tensors(bundle: Bundle) -> dict[str, np.ndarray]:
    """Every tensor of a bundle, read by the safetensors library."""
    tensors: dict[str, np.ndarray] = {}
    for path in sorted({path for path, _ in bundle.tensors.values()}):
        with safe_open(path, "pt") as handle:
            for name in handle.keys():  # noqa: SIM118
                tensor = handle.get_tensor(name)
                if tensor.dtype == torch.bfloat16:  # which torch cannot hand to numpy
                    tensor = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
                tensors[name] = np.asarray(tensor)
    return tensors


def quantized_sources(bundle: Bundle) -> dict[str, np.ndarray]:
    """Checkpoint tensor of a layer, or half of one (`name#query`) -> float32 [N, K], as the bundle's codes give it."""
    stored, found = bundle_tensors(bundle), dict[str, np.ndarray]()
    for name, tensor in bundle.manifest["tensors"].items():
        if tensor["form"] not in ("marlin_codes", "int8_codes") or name.startswith(("embed.", "lm_head.")):
            continue
        lines, (n, k) = _dequantized(stored, name, tensor["form"]), tensor["logical_shape"]
        lines = lines[:n, :k]
        first = 0
        for source in tensor["sources"]:
            count = _lines(bundle, source)
            found[source] = lines[first : first + count]
            first += count
        assert first == n
    return found


def vocabulary(bundle: Bundle) -> tuple[np.ndarray, np.ndarray]:
    """Embedding and head as the bundle holds them, float32 [ids, hidden]. Without a module of its own the head is the
    embedding."""
    stored = bundle_tensors(bundle)

    def matrix(name: str) -> np.ndarray | None:
        entry = bundle.manifest["tensors"].get(f"{name}.weight") or bundle.manifest["tensors"].get(f"{name}.q")
        if entry is None:
            return None
        if entry["form"] == "dense":
            lines = stored[f"{name}.weight"].astype(np.float32)
        else:
            lines = _dequantized(stored, f"{name}.q", entry["form"])
        n, k = entry["logical_shape"]
        return lines[:n, :k]

    embedding, head = matrix("embed"), matrix("lm_head")
    assert embedding is not None
    return embedding, embedding if head is None else head


def _dequantized(stored: dict[str, np.ndarray], codes: str, form: str) -> np.ndarray:
    """float32 [N', K'] of a quantized weight, by the name of its codes."""
    scale, zero = (codes.removesuffix(".q") + part for part in (".scale", ".zero"))
    if form == "int8_codes":
        return int8.dequantize(stored[codes], stored[scale])
    return marlin.dequantize(stored[codes], stored[scale], stored.get(zero)).T


def _lines(bundle: Bundle, source: str) -> int:
    model, part = bundle.manifest["model"], source.split(".")[-2]
    queries, keys = model["attention_heads"] * model["head_dim"], model["kv_heads"] * model["head_dim"]
    sizes = {
        "q_proj": queries, "k_proj": keys, "v_proj": keys, "gate_proj": model["intermediate_size"],
        "up_proj": model["intermediate_size"],
    }  # fmt: skip
    if delta := model.get("delta"):
        values = delta["value_heads"] * delta["value_dim"]
        sizes |= {"in_proj_z": values, "in_proj_qkv": 2 * delta["key_heads"] * delta["key_dim"] + values}
    return sizes.get(part, model["hidden_size"])


def dequantized_state(bundle: Bundle, checkpoint: Path) -> dict[str, np.ndarray]:
    """The checkpoint's tensors with everything that is quantized in the bundle replaced by what that made of it."""
    state, made = source_tensors(checkpoint), quantized_sources(bundle)
    model = bundle.manifest["model"]
    for source, lines in made.items():
        name, _, part = source.partition("#")
        if part:
            heads = state[name].reshape(model["attention_heads"], 2, model["head_dim"], -1).copy()
            heads[:, int(part == "gate")] = lines.reshape(model["attention_heads"], model["head_dim"], -1)
            lines = heads.reshape(state[name].shape)
        assert lines.shape == state[name].shape
        state[name] = lines
    state[EMBEDDING], state[HEAD] = vocabulary(bundle)
    return {n: t for n, t in state.items() if not n.startswith(("mtp.", "model.visual."))}


def transformers_model(checkpoint: Path, state: dict[str, np.ndarray] | None = None) -> Any:
    """The checkpoint's text model in float32, as it is or with the tensors of `state`."""
    config = transformers.AutoConfig.from_pretrained(checkpoint)
    config = getattr(config, "text_config", config)
    family = CLASSES[config.model_type.removesuffix("_text")]
    if state is None:
        state = source_tensors(checkpoint)
        state.setdefault(HEAD, state[EMBEDDING])
    config.tie_word_embeddings = False
    model = getattr(transformers, family + "ForCausalLM")(config).float().eval()
    tensors = {name: torch.from_numpy(np.array(tensor, np.float32)) for name, tensor in state.items()}
    model.load_state_dict({n: t for n, t in tensors.items() if not n.startswith(("mtp.", "model.visual."))})
    return model
