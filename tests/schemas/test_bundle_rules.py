"""What must agree between manifest, programs and weight files, each broken in a bundle whose digests are right."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from drafts import Change, Draft, assert_found, refusal, replace
from qpack_schemas.bundle import open_bundle
from qpack_schemas.manifest import seal
from qpack_schemas.program import Kind

DECODE, PREFILL = "programs/decode.json", "programs/prefill.json"
LAST = "weights/00004.safetensors"  # with norm.weight


@pytest.fixture(scope="module")
def whole(tiny_bundle: Callable[[str], Path]) -> Draft:
    return Draft.read(tiny_bundle("tiny-qwen3_5"))


def shift(name: str, by: int, kind: Kind = "decode") -> Change:
    """Moves a buffer; the finding is expected at its offset."""

    def change(draft: Draft) -> str:
        place, entry = draft.entry(name, kind)
        entry["offset"] += by
        return f"{place}/offset"

    return change


def at(name: str, key: str, value: Any, where: str) -> Change:
    """Another shape or dtype for a buffer or tensor."""

    def change(draft: Draft) -> str:
        draft.set(name, key, value)
        return where

    return change


def manifest(where: str, value: Any) -> Change:
    """Another value at a JSON pointer of the manifest; the finding is expected there."""

    def change(draft: Draft) -> str:
        *path, last = where.split("/")
        node: Any = draft.manifest
        for part in path:
            node = node[int(part)] if isinstance(node, list) else node[part]
        node[int(last) if isinstance(node, list) else last] = value
        return f"manifest.json#/{where}"

    return change


def onto(name: str, other: str, plus: int = 0, kind: Kind = "decode") -> Change:
    """Moves a buffer to the place of another one; the finding is expected at the one that lies behind."""

    def change(draft: Draft) -> str:
        place, entry = draft.entry(name, kind)
        other_place, beneath = draft.entry(other, kind)
        entry["offset"] = beneath["offset"] + plus
        return f"{place if plus or name > other else other_place}/offset"

    return change


def larger_slots(draft: Draft) -> str:
    """Slots without seats: rows would sit behind the end of the state."""
    draft.manifest["slots"] += 1
    return "manifest.json#/buffers/counts"


def longer_context(draft: Draft) -> str:
    draft.manifest["context"] *= 2
    for program in draft.programs.values():
        for instruction in program["code"]:
            if "context" in instruction.get("attrs", {}):
                instruction["attrs"]["context"] *= 2
    draft.set("rope", "shape", [256, 2, 4])
    return "manifest.json#/buffers/3.attn.v"


def larger_vocabulary(draft: Draft) -> str:
    """The head has room for it, the embedding has not."""
    for operand, name, width in (("table", "q", 128), ("scale", "scale", 1)):
        draft.manifest["tensors"][f"few.{name}"] = {**draft.manifest["tensors"][f"embed.{name}"], "shape": [8, width]}
        draft.edit("embed_int8", "inputs", operand, f"few.{name}")
    return "manifest.json#/tensors/few.q"


def bucket(index: int, **changes: Any) -> Change:
    def change(draft: Draft) -> str:
        draft.manifest["buckets"][index] |= changes
        return f"manifest.json#/buckets/{index}"

    return change


def more_rows_than_slots(draft: Draft) -> str:
    index, entry = next((i, b) for i, b in enumerate(draft.manifest["buckets"]) if b["name"] == "decode-b4-c128")
    entry |= {"rows": 5, "name": "decode-b5-c128"}
    return f"manifest.json#/buckets/{index}/rows"


def no_decode(draft: Draft) -> str:
    draft.manifest["buckets"] = [b for b in draft.manifest["buckets"] if b["program"] != "decode"]
    return "manifest.json#/buckets"


def twice(draft: Draft) -> str:
    draft.manifest["buckets"].append(draft.manifest["buckets"][0])
    return "manifest.json#/buckets"


def exchanged(draft: Draft) -> str:
    draft.programs["decode"], draft.programs["prefill"] = draft.programs["prefill"], draft.programs["decode"]
    return f"{DECODE}#/kind"


def other_activation(draft: Draft) -> str:
    draft.programs["prefill"]["activation"] = "float16"
    return f"{PREFILL}#/activation"


def tensor_and_buffer(draft: Draft) -> str:
    draft.manifest["buffers"]["norm.weight"] = {"arena": "io", "dtype": "float32", "shape": [1], "offset": 1 << 20}
    return "manifest.json#/buffers/norm.weight"


def tensor_forgotten(draft: Draft) -> str:
    del draft.manifest["tensors"]["norm.weight"]
    return LAST


def tensor_invented(draft: Draft) -> str:
    draft.manifest["tensors"]["spare"] = draft.manifest["tensors"]["norm.weight"]
    return "manifest.json#/tensors/spare"


def text_of_another_file(draft: Draft) -> str:
    draft.manifest["text"][0]["path"] = "model/other.json"
    return "manifest.json#/text/0"


def program_not_listed(draft: Draft) -> str:
    draft.manifest["files"] = [f for f in draft.manifest["files"] if f["path"] != DECODE]
    return DECODE


def file_listed_twice(draft: Draft) -> str:
    draft.manifest["files"].append(draft.manifest["files"][0])
    return "manifest.json#/files"


def state_far_away(draft: Draft) -> str:
    """Beyond the arena that the manifest asks for."""
    draft.set("3.attn.v", "offset", 1 << 40)
    return "manifest.json#/memory/state_bytes"


def work_far_away(draft: Draft) -> str:
    draft.set("final.h", "offset", 1 << 40)
    return "manifest.json#/memory/work_bytes"


def io_far_away(draft: Draft) -> str:
    draft.set("top_logprobs", "offset", 1 << 40)
    return "manifest.json#/memory/io_bytes"


def zeros_of_another_form(draft: Draft) -> str:
    _, instruction = draft.find("linear_int4")
    scale = draft.manifest["tensors"][instruction["inputs"]["scale"]]
    draft.manifest["tensors"]["some.zero"] = {**scale, "dtype": "int8", "form": "int8_codes"}
    draft.edit("linear_int4", "inputs", "zero", "some.zero")
    return "manifest.json#/tensors/some.zero/form"


BROKEN: dict[str, tuple[Change, str]] = {
    # placement
    "live values on one place": (onto("0.post.x", "0.post.h"), "overlaps '0.post.h' while both are live"),
    "live values, one byte": (shift("0.delta.u", -256), "overlaps '0.delta.qkvz.y' while both are live"),
    "value on the end of its input": (onto("0.mlp.act", "0.mlp.gate_up.y", 256), "overlaps '0.mlp.gate_up.y'"),
    "input on the end of its value": (onto("0.mlp.gate_up.y", "0.mlp.act", 256), "overlaps '0.mlp.act'"),
    "state on state": (shift("3.attn.v", -256), "overlaps '3.attn.k' in arena state"),
    "state on the first": (onto("slot_token", "slot_position"), "overlaps 'slot_position' in arena state"),
    "io of a large bucket": (onto("ids", "logits", 2048), "overlaps 'logits' in arena io"),
    "io on a sampling table": (onto("logits", "sampling.grammar", 256), "overlaps 'sampling.grammar' in arena io"),
    "misaligned work": (shift("final.h", 128), "is not a multiple of 256"),
    "misaligned state": (shift("3.attn.v", 16), "is not a multiple of 256"),
    "misaligned io": (shift("top_logprobs", 4), "is not a multiple of 256"),
    "state beyond its arena": (state_far_away, "the buffers need"),
    "work beyond its arena": (work_far_away, "the buffers need"),
    "io beyond its arena": (io_far_away, "the buffers need"),
    # seats, lines, ids
    "slots without seats": (larger_slots, "has 5 lines; 5 slots of 128 positions need 6"),
    "positions without lines": (longer_context, "has 513 lines; 4 slots of 256 positions need 1025"),
    "ids without embedding": (larger_vocabulary, "has room for 8 ids, the tokenizer has 512"),
    "one context for the cache, one for the code": (
        lambda draft: draft.edit("attention", "attrs", "context", 64) + "/attrs/context",
        "is 64, the manifest says 128",
    ),
    "fewer ids than the tokenizer": (
        lambda draft: draft.edit("sample", "attrs", "vocab", 511) + "/attrs/vocab",
        "is 511, the manifest says 512",
    ),
    # buckets
    "bucket beyond the cache": (bucket(0, context=256, name="prefill-t64-c256"), "is beyond the KV cache's 128"),
    "bucket under another name": (bucket(0, rows=32), "'prefill-t64-c128' does not say what the bucket is"),
    "more rows than slots": (more_rows_than_slots, "5 rows need as many slots, there are 4"),
    "two buckets of one name": (twice, "two buckets have one name"),
    "no bucket of a program": (no_decode, "there is no bucket of program 'decode'"),
    "bucket never captured": (
        lambda draft: draft.manifest["capture_order"].pop() and "manifest.json#/capture_order",
        "does not name every bucket once",
    ),
    # memory
    "weights": (manifest("memory/weights_bytes", 0), "is 0, the buffers need"),
    "state": (manifest("memory/state_bytes", 256), "is 256, the buffers need"),
    "io": (manifest("memory/io_bytes", 1 << 40), f"is {1 << 40}, the buffers need"),
    "work": (manifest("memory/work_bytes", {"decode-b1-c64": 2816}), "the buffers need"),
    "device": (manifest("memory/minimum_device_bytes", 1), "is 1, the buffers need"),
    # programs and tensors
    "programs exchanged": (exchanged, "is 'prefill', the file is for 'decode'"),
    "programs of two dtypes": (other_activation, "is float16, the manifest says bfloat16"),
    "buffer with the name of a tensor": (tensor_and_buffer, "has the name of a tensor"),
    "tensor not in the manifest": (tensor_forgotten, "tensor 'norm.weight' is not in the manifest"),
    "tensor not in its file": (tensor_invented, f"is not in {LAST}"),
    "int8 read as dense": (manifest("tensors/embed.q/form", "dense"), "embed_int8.table reads it as 'int8_codes'"),
    "scales of another layout": (
        manifest("tensors/embed.scale/form", "marlin_scales"),
        "linear_int8.scale reads it as 'int8_scales'",
    ),
    "zero points of another form": (zeros_of_another_form, "linear_int4.zero reads it as 'marlin_zeros'"),
    "int4 read as int8": (manifest("tensors/layers.0.mlp.down.q/form", "int8_codes"), "reads it as 'marlin_codes'"),
    "dense read as a table": (manifest("tensors/norm.weight/form", "rope_table"), "reads it as 'dense'"),
    "head of another form": (manifest("quant/lm_head", "int4"), "is 'int4', the programs have 'int8'"),
    "embedding of another form": (manifest("quant/embedding", "dense"), "is 'dense', the programs have 'int8'"),
    "tensor of another shape": (
        at("norm.weight", "shape", [127], "manifest.json#/tensors/norm.weight"),
        "(128,)) in the weight files",
    ),
    "tensor of another dtype": (
        at("norm.weight", "dtype", "float16", "manifest.json#/tensors/norm.weight"),
        "'BF16', (128,)) in the weight files",
    ),
    "tensor of another file": (
        at("norm.weight", "file", "weights/00000.safetensors", "manifest.json#/tensors/norm.weight"),
        "in the weight files",
    ),
    "text of another digest": (manifest("text/0/sha256", "0" * 64), "among files 'model/chat_template.jinja' has"),
    "text that is not there": (text_of_another_file, "among files 'model/other.json' has None"),
    "licence that is not there": (manifest("source/licenses", ["LICENSES/MIT"]), "'LICENSES/MIT' is not among files"),
    "program not listed": (program_not_listed, "is not listed in the manifest"),
    "file listed twice": (file_listed_twice, "lists a path twice"),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_bundle_that_contradicts_itself_is_refused_at_the_place(whole: Draft, tmp_path: Path, rule: str):
    change, message = BROKEN[rule]
    draft = whole.copy()
    where = change(draft)
    findings = refusal(draft.write(tmp_path / "b"), digests=False)
    near = [f for f in findings if f.where.startswith(where) and message in f.message]
    assert near, f"{where}\n" + "\n".join(map(str, findings))


def test_a_program_that_is_not_there_at_all_is_named(whole: Draft, tmp_path: Path):
    draft = whole.copy()
    program_not_listed(draft)
    bundle = draft.write(tmp_path / "b")
    (bundle / DECODE).unlink()
    assert_found(refusal(bundle), "manifest.json#/files", f"lists no {DECODE}")


def test_a_tensor_in_two_files_is_named(whole: Draft, tmp_path: Path):
    """Which of the two is used would depend on the order of the files."""
    draft = whole.copy()
    weights = next(f for f in draft.manifest["files"] if f["path"] == LAST)
    draft.manifest["files"].append({**weights, "path": "weights/00005.safetensors"})
    bundle = draft.write(tmp_path / "b")
    (bundle / "weights/00005.safetensors").hardlink_to(bundle / LAST)
    assert_found(refusal(bundle), "weights/00005.safetensors", f"tensor 'norm.weight' is also in {LAST}")


def test_weights_that_another_writer_packed_without_alignment_are_named(whole: Draft, tmp_path: Path):
    draft = whole.copy()
    bundle = draft.write(tmp_path / "b")
    weights = bundle / "weights/00000.safetensors"
    tensors = load_file(weights)
    weights.unlink()
    save_file({name: tensor for name, tensor in tensors.items() if not name.startswith("pad.")}, weights)
    data = weights.read_bytes()
    entry = next(entry for entry in draft.manifest["files"] if entry["path"] == "weights/00000.safetensors")
    entry |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    replace(bundle / "manifest.json", seal(draft.manifest))
    assert_found(refusal(bundle), "weights/00000.safetensors", "not on 256 bytes")


def test_a_whole_bundle_opens_and_says_what_is_in_it(whole: Draft, tmp_path: Path):
    for name, options in (("full", {}), ("quick", {"digests": False})):
        bundle = open_bundle(whole.write(tmp_path / name), **options)
        assert bundle.manifest == whole.manifest
        assert {kind: program.to_json() for kind, program in bundle.programs.items()} == whole.programs
        assert bundle.tensors.keys() == whole.manifest["tensors"].keys()
