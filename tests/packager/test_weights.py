"""From checkpoint tensors to bundle tensors: nothing is lost, nothing is invented, everything is accounted for."""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundles import ASSETS, SMALL, build_bundle
from checkpoints import published_form, random_checkpoint, read_config, read_tensors, write_checkpoint
from oracle import bundle_tensors, quantized_sources, source_tensors, vocabulary
from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.lowering.lower import lower
from qpack_packager.serving import Options, plan_serving
from qpack_schemas.bundle import open_bundle
from qpack_schemas.errors import InputError

TINY = ASSETS / "tiny-qwen3_5"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def changed(folder: Path, tensors: Mapping[str, np.ndarray | None], config: Mapping[str, object] | None = None) -> Path:
    """tiny-qwen3_5 with some tensors and config keys replaced; None takes a tensor away."""
    held = {**read_tensors(TINY), **tensors}
    kept = {name: tensor for name, tensor in held.items() if tensor is not None}
    return write_checkpoint(folder, {**read_config(TINY), **(config or {})}, kept)


def lowered(checkpoint: Path, options: Options = SMALL):
    opened = Checkpoint.open(ModelText(checkpoint))
    return lower(opened, plan_serving(opened.config.max_context, options), 512, str(checkpoint))


def assert_within_half_a_step(lines: np.ndarray, wanted: np.ndarray, name: str) -> None:
    """Of multiples of a group's scale the smallest but 0 is at least one step."""
    width = ((0, 0), (0, -lines.shape[1] % 128))
    groups = np.abs(np.pad(lines, width)).reshape(len(lines), -1, 128)
    step = np.where(groups > 0, groups, np.inf).min(-1)
    error = np.abs(np.pad(wanted - lines, width)).reshape(groups.shape).max(-1)
    assert (error <= step / 2 * (1 + 1e-6))[np.isfinite(step)].all(), name


@pytest.mark.parametrize("family", ["tiny-qwen3", "tiny-qwen3_5", "qwen2", "qwen3_5"])
def test_dequantized_weights_are_within_half_a_step_of_the_source(family: str, tmp_path: Path):
    checkpoint = ASSETS / family
    if not checkpoint.exists():  # sizes that need padding along K and along N
        checkpoint = random_checkpoint(tmp_path / "model", family, hidden_size=192, intermediate_size=200)
    bundle = open_bundle(build_bundle(checkpoint, tmp_path / "bundle"))
    source, made = source_tensors(checkpoint), quantized_sources(bundle)
    assert len(made) >= 24 or family in ("qwen2", "qwen3_5")
    for name, lines in made.items():
        tensor, _, part = name.partition("#")
        wanted = source[tensor]
        if part:
            heads = wanted.reshape(bundle.manifest["model"]["attention_heads"], 2, -1, wanted.shape[1])
            wanted = heads[:, int(part == "gate")].reshape(lines.shape)
        assert_within_half_a_step(lines, wanted, name)


def test_dense_tensors_keep_their_bits(tmp_path: Path):
    bundle = open_bundle(build_bundle(TINY, tmp_path / "bundle"))
    stored, source = bundle_tensors(bundle), read_tensors(TINY)
    kept = {n: t for n, t in bundle.manifest["tensors"].items() if t["form"] == "dense"}
    assert sum(len(tensor["sources"]) for tensor in kept.values()) == bundle.manifest["quant"]["tensors"]["kept"]
    for name, tensor in kept.items():
        joined = np.concatenate([source[part] for part in tensor["sources"]]).astype(stored[name].dtype)
        assert joined.tobytes() == stored[name].tobytes(), name


# Of a tied and an untied model: --lm-head, --embedding -> the tensors there are for them, beside the scales.
STORED = {
    (True, "int8", "int8"): {"embed.q"},
    (True, "int8", "bf16"): {"embed.weight", "lm_head.q"},
    (True, "int4", "int8"): {"embed.q", "lm_head.q"},
    (True, "int4", "bf16"): {"embed.weight", "lm_head.q"},
    (True, "bf16", "int8"): {"embed.q", "lm_head.weight"},
    (True, "bf16", "bf16"): {"embed.weight"},
    (False, "int8", "int8"): {"embed.q", "lm_head.q"},
    (False, "int4", "bf16"): {"embed.weight", "lm_head.q"},
    (False, "bf16", "int8"): {"embed.q", "lm_head.weight"},
}


@pytest.mark.parametrize(("tied", "head", "embedding"), STORED)
def test_head_and_embedding_are_stored_as_asked_once_if_they_are_alike(
    tied: bool, head: str, embedding: str, tmp_path: Path
):
    """520 ids of 192 columns: padded to 576 lines and to 256 columns."""
    sizes: dict[str, Any] = {"hidden_size": 192, "vocab_size": 520, "num_hidden_layers": 1}
    model = random_checkpoint(tmp_path / "model", "qwen3", tied=tied, **sizes)
    options = replace(SMALL, lm_head=head, embedding=embedding)
    bundle = open_bundle(build_bundle(model, tmp_path / "bundle", options))
    quant, tensors = bundle.manifest["quant"], bundle.manifest["tensors"]
    names = {n for n in tensors if n.startswith(("embed.", "lm_head.")) and not n.endswith(".scale")}
    assert names == STORED[tied, head, embedding]
    forms = {"bf16": "dense"}
    assert (quant["lm_head"], quant["embedding"]) == (forms.get(head, head), forms.get(embedding, embedding))
    source, stored = source_tensors(model), bundle_tensors(bundle)
    found = zip(vocabulary(bundle), ("embed_tokens", "lm_head"), (embedding, head), strict=True)
    for lines, name, form in found:
        wanted = source.get("lm_head.weight", source[EMBEDDING]) if name == "lm_head" else source[EMBEDDING]
        assert lines.shape == wanted.shape == (520, 192)
        if form == "bf16":
            assert np.array_equal(lines, wanted)
        else:
            assert_within_half_a_step(lines, wanted, name)
    for name in names:
        if tensors[name]["form"] == "int8_codes":
            codes, scale = stored[name], stored[name.removesuffix(".q") + ".scale"]
            assert (codes.shape, scale.shape) == ((576, 256), (576, 2))
            assert not codes[520:].any()
            assert not codes[:, 192:].any()
            assert not scale[520:].astype(np.float32).any()


@pytest.mark.parametrize(
    ("head", "embedding"), [("int8", "int8"), ("int4", "bf16"), ("bf16", "int8"), ("bf16", "bf16")]
)
def test_a_tied_tensor_is_accounted_for_once(head: str, embedding: str):
    """What is stored both ways is kept, by a rule that says so."""
    accounting = lowered(TINY, replace(SMALL, lm_head=head, embedding=embedding)).accounting
    written: dict[str, Any] = accounting.to_manifest()
    fates = [accounting.quantized, accounting.kept, set(accounting.dropped)]
    assert [EMBEDDING in fate for fate in fates] == [head == embedding == "int8", head != "int8", False]
    assert written["tensors"]["source"] == sum(map(len, fates)) == len(read_tensors(TINY))
    reasons = [rule["reason"] for rule in written["kept"] if rule["glob"] == EMBEDDING]
    assert len(reasons) == (head != "int8")
    assert all(("tied" in reason) == (head != embedding) for reason in reasons)


def test_the_published_form_gives_the_same_weights_and_drops_vision_and_mtp_by_rule(tmp_path: Path):
    published = published_form(TINY, tmp_path / "published")
    ours = open_bundle(build_bundle(published, tmp_path / "a")).manifest
    plain = open_bundle(build_bundle(TINY, tmp_path / "b")).manifest
    for name, tensor in plain["tensors"].items():
        if not name.endswith(".delta.norm"):  # published in float32
            assert ours["tensors"][name]["sha256"] == tensor["sha256"], name
    present = read_tensors(published)
    dropped = {glob: sum(name.startswith(glob[:-1]) for name in present) for glob in ("model.visual.*", "mtp.*")}
    assert {rule["glob"]: rule["tensors"] for rule in ours["quant"]["dropped"]} == dropped
    counts = ours["quant"]["tensors"]
    assert counts["source"] == len(present) == counts["quantized"] + counts["kept"] + counts["dropped"]


def test_padding_is_in_the_manifest(tmp_path: Path):
    """vllm#9913, llm-compressor#57: K = 7392 is no multiple of 128."""
    model = random_checkpoint(tmp_path / "model", "qwen3", intermediate_size=7392, num_hidden_layers=1)
    tensor = open_bundle(build_bundle(model, tmp_path / "bundle")).manifest["tensors"]["layers.0.mlp.down.q"]
    assert tensor["logical_shape"] == [128, 7392]
    assert tensor["shape"] == [58 * 128 // 16, 2 * 128]


def test_small_projections_stay_dense_and_the_manifest_says_why(tmp_path: Path):
    """vllm#36329: in_proj_a and in_proj_b have 16 or 48 outputs."""
    quant = open_bundle(build_bundle(TINY, tmp_path / "bundle")).manifest["quant"]
    kept = {rule["glob"]: rule for rule in quant["kept"]}
    assert kept["*.in_proj_a.weight"]["tensors"] == 3
    assert "too few" in kept["*.in_proj_a.weight"]["reason"]


def test_a_tensor_nobody_uses_is_an_error_that_names_it(tmp_path: Path):
    rogue = np.zeros((4, 4), np.float32)
    extra = {"model.layers.0.self_attn.rogue.weight": rogue, "score.weight": rogue}
    with pytest.raises(InputError, match="2 tensors are neither used") as error:
        lowered(changed(tmp_path, extra))
    assert "score.weight" in str(error.value)


def test_a_missing_tensor_is_named_with_its_shape(tmp_path: Path):
    """AReaL#1403: whole shards lost while the index is self-consistent."""
    with pytest.raises(InputError, match=r"layers\.2\.mlp\.up_proj\.weight' of shape \[384, 128\] is missing"):
        lowered(changed(tmp_path, {"model.layers.2.mlp.up_proj.weight": None}))


def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path):
    wrong = {"model.layers.3.self_attn.q_proj.weight": np.zeros((128, 128), np.float32)}
    with pytest.raises(InputError, match=r"shape \[128, 128\], config\.json asks for \[256, 128\]"):
        lowered(changed(tmp_path, wrong))


@pytest.mark.parametrize(
    "name", ["model.norm.weight", "model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight"]
)
def test_nan_in_a_weight_is_refused_with_the_name_of_its_tensor(name: str, tmp_path: Path):
    tensor = read_tensors(TINY)[name].copy()
    tensor.reshape(-1)[7] = np.nan
    model = changed(tmp_path / "model", {name: tensor})
    with pytest.raises(InputError, match=re.escape(name)):
        build_bundle(model, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_tied_checkpoint_that_carries_the_head_as_well_drops_the_duplicate(tmp_path: Path):
    """Qwen3-0.6B and 1.7B are published that way."""
    model = changed(tmp_path, {HEAD: read_tensors(TINY)[EMBEDDING]})
    result = lowered(model)
    assert result.tied
    assert HEAD in result.accounting.dropped


@pytest.mark.parametrize("declared", [True, False])
def test_a_head_that_differs_from_the_embedding_is_used_whatever_is_declared(declared: bool, tmp_path: Path):
    """As transformers 5 decides; vllm#53170."""
    head = read_tensors(TINY)[EMBEDDING][::-1].copy()
    result = lowered(changed(tmp_path, {HEAD: head}, {"tie_word_embeddings": declared}))
    assert not result.tied
    assert {HEAD, EMBEDDING} <= result.accounting.quantized


def test_an_untied_checkpoint_without_a_head_is_refused_with_both_facts(tmp_path: Path):
    """Qwen3-VL-Embedding#89: never random weights."""
    with pytest.raises(InputError, match="no 'lm_head\\.weight'") as error:
        lowered(changed(tmp_path, {}, {"tie_word_embeddings": False}))
    assert "tie_word_embeddings" in str(error.value)


def test_levels_that_contradict_each_other_are_resolved_by_the_tensors(tmp_path: Path):
    """vllm#53170: tie_word_embeddings differs between the top level and text_config."""
    published = published_form(TINY, tmp_path / "published")
    config = read_config(published)
    config["tie_word_embeddings"] = not config["text_config"]["tie_word_embeddings"]
    model = write_checkpoint(tmp_path / "model", config, read_tensors(published))
    assert lowered(model).tied
    manifest = open_bundle(build_bundle(model, tmp_path / "bundle")).manifest
    assert manifest["model"]["tied_embeddings"]


def test_peak_memory_is_bounded_by_the_largest_module_not_by_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """TensorRT-Edge-LLM#30: 3 to 4 times the model in memory. Python allocations, at two depths of the same layers. Of
    one worker: when two have the most at once is chance."""
    import tracemalloc

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    peaks = []
    for layers in (2, 8):
        model = random_checkpoint(tmp_path / f"{layers}", "qwen3", num_hidden_layers=layers,
                                  intermediate_size=2048)  # fmt: skip
        tracemalloc.start()
        build_bundle(model, tmp_path / f"bundle {layers}", replace(SMALL))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0] + 2**20
