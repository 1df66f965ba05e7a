"""Sections that `plan` and `inspect` share, each from the part of the manifest that it shows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from qpack_packager.commands.typeset import bytes_text, columns, counted, wrapped
from qpack_schemas.manifest import Bucket, FormRule, Memory, Model, Rule, TensorCounts
from qpack_schemas.program import KINDS

_STORED = {"dense": "as in the checkpoint"}


def model_text(model: Model) -> str:
    attention = model["layers"].count("full_attention")
    delta = len(model["layers"]) - attention
    kinds = f" ({attention} attention, {delta} gated delta)" if delta else ""
    return f"{model['architecture']}, {counted(len(model['layers']), 'layer')}{kinds}, {model['real_vocab_size']:,} ids"


def serving_lines(slots: int, context: int, dtype: str, buckets: Sequence[Bucket]) -> list[str]:
    def listed(numbers: Iterable[int]) -> str:
        return " ".join(map(str, sorted(set(numbers))))

    decode, prefill = (listed(bucket["rows"] for bucket in buckets if bucket["program"] == kind) for kind in KINDS)
    contexts = listed(bucket["context"] for bucket in buckets)
    return [
        *wrapped("serves", f"{counted(slots, 'sequence')} of up to {context:,} positions, in {dtype}"),
        *wrapped("buckets", f"decode of {decode}, prefill of {prefill} rows; contexts of {contexts}"),
    ]


def vocabulary_lines(forms: Mapping[str, object], *, tied: bool) -> list[str]:
    """How head and embedding are stored. `forms`: those fields of the manifest's `quant`."""
    head, embedding = (_STORED.get(str(forms[name]), str(forms[name])) for name in ("lm_head", "embedding"))
    tie = ("tied, one tensor" if head == embedding else "tied, but a tensor each") if tied else "not tied"
    return wrapped("head", f"{head}; embedding {embedding}; {tie}")


def scheme_text(bits: int, group: int, forms: Mapping[str, object]) -> str:
    """What quantized tensors become. `forms` as above."""
    others = [what for what, name in (("head", "lm_head"), ("embedding", "embedding")) if forms[name] == "int8"]
    return f"int{bits} in groups of {group}" + (f" ({' and '.join(others)} int8)" if others else "")


def rule_lines(rules: Iterable[FormRule]) -> Iterator[str]:
    """What was asked for, weight by weight."""
    for rule in rules:
        yield from wrapped("rule", f"{rule['glob']}: {_STORED.get(rule['form'], rule['form'])}")


def tensor_lines(counts: TensorCounts, scheme: str, kept: Sequence[Rule], dropped: Sequence[Rule]) -> Iterator[str]:
    """What became of the checkpoint's tensors, and why."""
    yield f"Tensors: {counts['source']:,} in the checkpoint"
    yield from wrapped(f"quantized {counts['quantized']:6,}", scheme)
    for fate, rules in (("kept", kept), ("dropped", dropped)):
        by_reason = {rule["reason"]: [other for other in rules if other["reason"] == rule["reason"]] for rule in rules}
        for label, (reason, same) in zip([fate, *[""] * len(by_reason)], by_reason.items(), strict=False):
            number = sum(rule["tensors"] for rule in same)
            globs = " ".join(rule["glob"] for rule in same)
            yield from wrapped(f"{label:9} {number:6,}", f"{reason} ({globs})")
        if not rules:
            yield f"  {fate:9} {0:6}"


def bucket_lines(buckets: Sequence[Bucket], memory: Memory) -> list[str]:
    rows = [("", "rows", "positions", "work")]
    for bucket in buckets:
        work = bytes_text(memory["work_bytes"][bucket["name"]])
        rows.append((bucket["name"], f"{bucket['rows']:,}", f"{bucket['context']:,}", work))
    return [f"Buckets: {len(buckets)} shapes, one at a time in the work arena", *columns(rows, right={1, 2, 3})]
