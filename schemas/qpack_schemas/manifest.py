"""manifest.json as Python sees it. The JSON Schema beside this file is the truth; these types mirror it.

bundle_id is the sha256 of the file. `checksum` is the sha256 of the canonical manifest without that field, so that a
flipped byte is noticed even where nobody knows the bundle_id; it guards against damage, not against forgery.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Literal, NotRequired, TypedDict, cast

from qpack_schemas.program import Kind
from qpack_schemas.strict_json import JsonValue, dump_canonical

SCHEMA_VERSION = (1, 0)
CONTRACT_VERSION = "0.1.0"  # the release of qpack that reads this contract; compared with min_runtime
KNOWN_FEATURES: frozenset[str] = frozenset()
TARGET_NAME = re.compile(r"cuda:(sm|ptx)_([0-9]{2,3})")  # as in the schema; a newer version may know others


class Delta(TypedDict):
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int


class Model(TypedDict):
    family: str
    architecture: str
    layers: list[str]  # full_attention | linear_attention
    hidden_size: int
    intermediate_size: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    rms_norm_eps: float
    max_context: int
    vocab_size: int  # lines of the embedding in the checkpoint
    real_vocab_size: int  # ids the tokenizer knows; only these are sampled
    tied_embeddings: bool
    eos_token_ids: list[int]
    dtype: str  # of activations
    delta: NotRequired[Delta]


class SourceFile(TypedDict):
    path: str
    bytes: int
    sha256: str


class Source(TypedDict):
    uri: str | None
    revision: str | None
    files: list[SourceFile]
    license: NotRequired[str]  # as the checkpoint's model card declares it
    licenses: list[str]  # the files
    notes: list[str]


class Rule(TypedDict):
    glob: str
    reason: str
    tensors: int


class TensorCounts(TypedDict):
    source: int
    quantized: int
    kept: int
    dropped: int


class FormRule(TypedDict):
    glob: str  # of checkpoint tensors
    form: str  # dense | int8 | int4


class Quant(TypedDict):
    method: str  # rtn | gptq | import
    scheme: str
    bits: int
    group_size: int
    scale_dtype: str
    lm_head: str  # dense | int8 | int4, whatever the layers are
    embedding: str  # dense | int8
    calibration_sha256: str | None
    kept: list[Rule]
    dropped: list[Rule]
    fallbacks: list[str]  # modules that a calibrated method could not round, and that were rounded to nearest
    imported_from: NotRequired[str]  # format of the codes of a checkpoint that was quantized already
    rules: NotRequired[list[FormRule]]  # asked for at build, the first that fits decides
    environment: NotRequired[dict[str, str]]  # what a calibrated method's bytes depend on beside its inputs
    tensors: TensorCounts


class Tensor(TypedDict):
    file: str
    dtype: str
    shape: list[int]
    logical_shape: list[int]  # of the joined sources, before padding and packing
    sha256: str  # of the tensor's bytes, wherever they lie
    sources: list[str]  # checkpoint tensors it is made of, in order
    form: str  # dense | marlin_codes | marlin_scales | marlin_zeros | int8_codes | int8_scales | rope_table


class BufferEntry(TypedDict):
    arena: str
    dtype: str
    shape: list[int]
    offset: int


class Bucket(TypedDict):
    name: str
    program: Kind
    rows: int
    context: int


class Memory(TypedDict):
    weights_bytes: int  # all weight files
    state_bytes: int
    io_bytes: int
    work_bytes: dict[str, int]  # per bucket; the arena is the largest
    minimum_device_bytes: int


class Kernel(TypedDict):
    """One compiled kernel. Its name is the entry point in the file."""

    file: str
    sha256: str  # of the file
    function: str  # module.function of the source
    block: int  # threads, along x
    shared_bytes: int  # dynamic shared memory of a block
    registers: int | None  # per thread; None, here and below: known only to the driver that will compile the PTX
    spills: int | None  # bytes of local memory per thread
    params: list[list[str]]  # run-time arguments in order: name, Triton type (*bf16 ... i32)
    constants: dict[str, int | float | bool | None]  # compile-time arguments; None: an absent operand


class Target(TypedDict):
    """A GPU architecture that the bundle has kernels for; `cpu` has no such entry, its kernels are in the runtime."""

    architecture: str  # what the code says that it is for: sm_89, sm_90a
    scope: Literal["exact", "major", "newer"]  # which other GPUs can run it, see targets.py
    format: Literal["cubin", "ptx"]
    toolkit: int  # of the assembler, 129 = CUDA 12.9; of PTX: with which it was tried
    min_driver: int  # as cuDriverGetVersion counts: 12040 = CUDA 12.4
    max_shared_bytes: int  # the most that a kernel asks for
    work_bytes: dict[str, int]  # per bucket
    minimum_device_bytes: int
    compilers: dict[str, str]  # name -> version
    kernels: dict[str, Kernel]


class TextFile(TypedDict):
    path: str
    source_sha256: str  # as it was found
    encoding: str | None  # None, here and below: a licence that could not be decided, kept as it is
    known_by: str | None  # utf-8 | bom | nul-pattern | escape | inferred | declared
    bom: bool
    newlines: str | None  # lf | crlf | cr | mixed | none
    sha256: str  # as it is in the bundle


class TextProbe(TypedDict):
    text: str
    ids: list[int]


class Message(TypedDict):
    role: str
    content: str


class ChatProbe(TypedDict):
    messages: list[Message]
    sha256: str | None  # of the rendered prompt in UTF-8; None: the template refuses these messages


class Probes(TypedDict):
    """What the tokenizer and the chat template did at build; repeated at every boot."""

    texts: list[TextProbe]
    chats: list[ChatProbe]


class Gate(TypedDict):
    """Limits that the bundle was measured against; None is no limit."""

    max_ppl_ratio: float | None
    max_kl: float | None  # nats per token


class Quality(TypedDict):
    """The verdict of the build's gate. What was measured depends on the host that measured, so it is no part of the
    manifest."""

    gate: Gate
    text_sha256: str  # of the text that was read
    tokens: int  # of it that were predicted
    passed: bool


class FileEntry(TypedDict):
    path: str
    bytes: int
    sha256: str


class Manifest(TypedDict):
    schema_version: str
    min_runtime: str
    features_required: list[str]
    model: Model
    source: Source
    quant: Quant
    tensors: dict[str, Tensor]
    buffers: dict[str, BufferEntry]
    slots: int
    context: int
    buckets: list[Bucket]
    capture_order: list[str]
    memory: Memory
    targets: dict[str, JsonValue]  # cpu: {}; "cuda:sm_89": a Target, see compiled_targets
    text: list[TextFile]
    probes: Probes
    quality: NotRequired[Quality]
    reproducibility: str
    files: list[FileEntry]
    checksum: str


def compiled_targets(targets: Mapping[str, JsonValue]) -> dict[str, Target]:
    """Those of a manifest's `targets` that have kernels of their own in the bundle, by name in sorted order."""
    return {name: cast(Target, entry) for name, entry in sorted(targets.items()) if TARGET_NAME.fullmatch(name)}


def seal(manifest: JsonValue) -> bytes:
    """The bytes of manifest.json: canonical JSON with its `checksum`."""
    body = {key: value for key, value in manifest.items() if key != "checksum"}
    return dump_canonical({**body, "checksum": checksum_of(body)})


def checksum_of(manifest: JsonValue) -> str:
    body = {key: value for key, value in manifest.items() if key != "checksum"}
    return hashlib.sha256(dump_canonical(body)).hexdigest()
