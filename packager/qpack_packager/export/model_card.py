"""README.md of an exported checkpoint: what it was made of, how, and how it is served."""

from qpack_schemas.bundle import Bundle
from qpack_schemas.manifest import Source

_TEXT = """\
---
library_name: transformers
pipeline_tag: text-generation
---
# {architecture}, quantized by qpack

Exported from the qpack bundle `{bundle_id}`, with the bundle's own weights:
{scheme}; method {method}. Nothing was rounded on the way out.

- **Base**: {base}
- **Format**: {format}, groups of 128, scales in {dtype}
- **Embedding and head**: {embedding}; {head}

## Serve it

```
vllm serve DIR --dtype {dtype}
python3 -m sglang.launch_server --model-path DIR --dtype {dtype}
```

DIR is this directory. Another dtype would round the scales.

## Made of

| file | sha256 |
|---|---|
{files}
"""


def model_card(bundle: Bundle, *, format_name: str, dtype: str, embedding: str, head: str) -> str:
    """Markdown. `embedding` and `head` say in words how they are stored."""
    manifest = bundle.manifest
    return _TEXT.format(
        architecture=manifest["model"]["architecture"],
        bundle_id=bundle.bundle_id,
        scheme=manifest["quant"]["scheme"],
        method=manifest["quant"]["method"],
        base=_base(manifest["source"]),
        format=format_name,
        dtype=dtype,
        embedding=embedding,
        head=head,
        files="\n".join(f"| {file['path']} | {file['sha256']} |" for file in manifest["source"]["files"]),
    )


def _base(source: Source) -> str:
    if not source["uri"]:
        return "a checkpoint directory, known by the digests below"
    return source["uri"] + (f" at {source['revision']}" if source["revision"] else "")
