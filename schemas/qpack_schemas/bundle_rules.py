"""What must agree between the manifest, the programs and the weight files, beyond what a schema can say."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from qpack_schemas.errors import Finding, InputError
from qpack_schemas.manifest import Manifest
from qpack_schemas.memory import account, most_rows
from qpack_schemas.placement_rules import check_arena, check_work_plan
from qpack_schemas.program import KINDS, Buffer, Kind, Program
from qpack_schemas.program_rules import check_code
from qpack_schemas.tensor_file import ALIGNMENT, CODES, PAD_PREFIX, TensorSpan, read_spans

PROGRAM_PATHS: Mapping[Kind, str] = {"decode": "programs/decode.json", "prefill": "programs/prefill.json"}
TOKENIZER_PATH = "model/tokenizer.json"
# (operation, operand) -> the form of its tensor; the weights of all other operands are dense.
FORMS: Mapping[tuple[str, str], str] = {
    ("linear_int4", "q"): "marlin_codes", ("linear_int4", "scale"): "marlin_scales",
    ("linear_int4", "zero"): "marlin_zeros",
    ("linear_int8", "q"): "int8_codes", ("linear_int8", "scale"): "int8_scales",
    ("embed_int8", "table"): "int8_codes", ("embed_int8", "scale"): "int8_scales",
    ("rope_kv_write", "rope"): "rope_table",
}  # fmt: skip
_VOCABULARY = {"embed": "dense", "embed_int8": "int8", "linear": "dense", "linear_int8": "int8", "linear_int4": "int4"}


def shared_buffers(manifest: Manifest) -> dict[str, Buffer]:
    """Weights and the buffers that outlive a step, by name: what both programs may name besides their own."""
    weights = {n: Buffer("weights", t["dtype"], tuple(t["shape"])) for n, t in manifest["tensors"].items()}
    return {**weights, **{name: Buffer.from_json(entry) for name, entry in manifest["buffers"].items()}}


def vocabulary_forms(program: Program) -> dict[str, str]:
    """How embedding and head are stored, as the fields of the manifest's `quant` say it: a program tells by the
    instruction that reads tokens and the one whose output is sampled."""
    logits = program.code[-1].inputs["logits"]
    embedding = next((i.op for i in program.code if "tokens" in i.inputs), "")
    head = next((i.op for i in program.code if logits in i.outputs.values()), "")
    return {"embedding": _VOCABULARY.get(embedding, "unknown"), "lm_head": _VOCABULARY.get(head, "unknown")}


def read_weight_files(root: Path, manifest: Manifest) -> tuple[dict[str, tuple[str, TensorSpan]], list[Finding]]:
    """Tensor name -> (file, span) for every tensor of the manifest, and what does not agree with the files."""
    findings: list[Finding] = []
    found: dict[str, tuple[str, TensorSpan]] = {}
    unreadable: set[str] = set()
    for file in sorted({entry["path"] for entry in manifest["files"] if entry["path"].startswith("weights/")}):
        try:
            spans = read_spans(root / file)
        except (InputError, OSError) as error:
            findings.append(Finding(file, str(error.message if isinstance(error, InputError) else error)))
            unreadable.add(file)
            continue
        for name, span in spans.items():
            if name.startswith(PAD_PREFIX):
                continue
            if name in found:
                findings.append(Finding(file, f"tensor {name!r} is also in {found[name][0]}"))
            if name not in manifest["tensors"]:
                findings.append(Finding(file, f"tensor {name!r} is not in the manifest"))
            found[name] = file, span
    for name, tensor in manifest["tensors"].items():
        place = f"manifest.json#/tensors/{name}"
        if name not in found:
            if tensor["file"] not in unreadable:
                findings.append(Finding(place, f"is not in {tensor['file']}"))
            continue
        file, span = found[name]
        says = tensor["file"], CODES[tensor["dtype"]], tuple(tensor["shape"])
        if says != (file, span.dtype, span.shape):
            findings.append(Finding(place, f"is {says} here, but {(file, span.dtype, span.shape)} in the weight files"))
        if span.begin % ALIGNMENT:
            findings.append(Finding(file, f"tensor {name!r} begins at byte {span.begin}, not on {ALIGNMENT} bytes"))
    return found, findings


def check_layout(manifest: Manifest, programs: Mapping[Kind, Program]) -> list[Finding]:
    """Programs, buffers, buckets and memory against each other."""
    shared = shared_buffers(manifest)
    both = sorted(manifest["buffers"].keys() & manifest["tensors"].keys())
    findings = [Finding(f"manifest.json#/buffers/{name}", "has the name of a tensor") for name in both]
    for kind, program in programs.items():
        where = PROGRAM_PATHS[kind]
        if program.kind != kind:
            findings.append(Finding(f"{where}#/kind", f"is {program.kind!r}, the file is for {kind!r}"))
        if program.activation != manifest["model"]["dtype"]:
            message = f"is {program.activation}, the manifest says {manifest['model']['dtype']}"
            findings.append(Finding(f"{where}#/activation", message))
        code = check_code(program, shared, where)
        findings += code or [
            *check_work_plan(program, where),
            *_check_limits(manifest, program, shared, where),
            *_check_forms(manifest, program),
        ]
        own = {n: (f"{where}#/buffers/{n}", b) for n, b in program.buffers.items() if b.arena == "io"}
        fixed = {n: (f"manifest.json#/buffers/{n}", b) for n, b in shared.items() if b.arena == "io"}
        findings += check_arena("io", {**fixed, **own}, most_rows(manifest["buckets"], kind))
    state = {n: (f"manifest.json#/buffers/{n}", b) for n, b in shared.items() if b.arena == "state"}
    findings += check_arena("state", state, 1)
    findings += _check_buckets(manifest)
    findings += _check_text(manifest)
    if not findings:
        findings += _check_memory(manifest, shared, programs)
    return findings


def _check_limits(manifest: Manifest, program: Program, shared: Mapping[str, Buffer], where: str) -> Iterator[Finding]:
    """The numbers that rows may hold: per-slot buffers have a seat for every slot and the scratch slot, the KV cache a
    line for every position of every slot, and what goes by token has one for every id of the tokenizer."""
    slots, context, vocab = manifest["slots"], manifest["context"], manifest["model"]["real_vocab_size"]
    lines = {"S": slots + 1, "P": slots * context + 1}
    buffers = {**shared, **program.buffers}
    for index, instruction in enumerate(program.code):
        for operand, name in instruction.operands():
            shape, first = buffers[name].shape, operand.dims[0]
            file = "manifest.json" if name in shared else where
            if shape[0] != lines.get(first, shape[0]):
                message = f"has {shape[0]} lines; {slots} slots of {context} positions need {lines[first]}"
                yield Finding(f"{file}#/{'tensors' if operand.is_weight else 'buffers'}/{name}", message)
            if "V" in operand.dims and (size := int(shape[operand.dims.index("V")])) < vocab:
                message = f"has room for {size} ids, the tokenizer has {vocab}"
                yield Finding(f"{file}#/{'tensors' if operand.is_weight else 'buffers'}/{name}", message)
        for attribute, limit in (("context", context), ("vocab", vocab)):
            if instruction.attrs.get(attribute, limit) != limit:
                message = f"is {instruction.attrs[attribute]}, the manifest says {limit}"
                yield Finding(f"{where}#/code/{index}/attrs/{attribute}", message)


def _check_forms(manifest: Manifest, program: Program) -> Iterator[Finding]:
    """A weight is read as what it says it is, and the manifest says how embedding and head are stored."""
    for instruction in program.code:
        for operand, name in instruction.operands():
            if not operand.is_weight:
                continue
            form, said = FORMS.get((instruction.op, operand.name), "dense"), manifest["tensors"][name]["form"]
            if said != form:
                message = f"is {said!r}, {instruction.op}.{operand.name} reads it as {form!r}"
                yield Finding(f"manifest.json#/tensors/{name}/form", message)
    said_of: Mapping[str, object] = {**manifest["quant"]}
    for field, form in vocabulary_forms(program).items():
        if said_of[field] != form:
            yield Finding(f"manifest.json#/quant/{field}", f"is {said_of[field]!r}, the programs have {form!r}")


def _check_buckets(manifest: Manifest) -> Iterator[Finding]:
    names: Sequence[str] = [bucket["name"] for bucket in manifest["buckets"]]
    for index, bucket in enumerate(manifest["buckets"]):
        place = f"manifest.json#/buckets/{index}"
        if bucket["name"] != bucket_name(bucket["program"], bucket["rows"], bucket["context"]):
            yield Finding(f"{place}/name", f"{bucket['name']!r} does not say what the bucket is")
        if bucket["context"] > manifest["context"]:
            yield Finding(f"{place}/context", f"{bucket['context']} is beyond the KV cache's {manifest['context']}")
        if bucket["program"] == "decode" and bucket["rows"] > manifest["slots"]:
            yield Finding(f"{place}/rows", f"{bucket['rows']} rows need as many slots, there are {manifest['slots']}")
    if len(set(names)) < len(names):
        yield Finding("manifest.json#/buckets", "two buckets have one name")
    for kind in KINDS:
        if not most_rows(manifest["buckets"], kind):
            yield Finding("manifest.json#/buckets", f"there is no bucket of program {kind!r}")
    if sorted(manifest["capture_order"]) != sorted(names):
        yield Finding("manifest.json#/capture_order", "does not name every bucket once")


def _check_text(manifest: Manifest) -> Iterator[Finding]:
    digests = {entry["path"]: entry["sha256"] for entry in manifest["files"]}
    if TOKENIZER_PATH not in digests:
        yield Finding("manifest.json#/files", f"lists no {TOKENIZER_PATH}, without which nothing can be decoded")
    for index, entry in enumerate(manifest["text"]):
        if (listed := digests.get(entry["path"])) != entry["sha256"]:
            message = f"is {entry['sha256']}, among files {entry['path']!r} has {listed}"
            yield Finding(f"manifest.json#/text/{index}/sha256", message)
    for index, path in enumerate(manifest["source"]["licenses"]):
        if path not in digests:
            yield Finding(f"manifest.json#/source/licenses/{index}", f"{path!r} is not among files")


def _check_memory(
    manifest: Manifest, shared: Mapping[str, Buffer], programs: Mapping[Kind, Program]
) -> Iterator[Finding]:
    weights = sum(entry["bytes"] for entry in manifest["files"] if entry["path"].startswith("weights/"))
    exact = account(weights, shared, programs, manifest["buckets"])
    said: Mapping[str, object] = {**manifest["memory"]}
    for field, value in exact.items():
        if said[field] != value:
            yield Finding(f"manifest.json#/memory/{field}", f"is {said[field]}, the buffers need {value}")


def bucket_name(program: str, rows: int, context: int) -> str:
    return f"{program}-{'b' if program == 'decode' else 't'}{rows}-c{context}"
