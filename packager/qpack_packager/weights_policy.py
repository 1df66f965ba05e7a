"""What becomes of every tensor of a checkpoint: quantized, kept dense by a named rule, or dropped by a named rule."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from qpack_schemas.errors import InputError
from qpack_schemas.manifest import Rule, TensorCounts

# By canonical name (`model.language_model.` became `model.`); the first rule that matches gives the reason.
KEPT: tuple[tuple[str, str], ...] = (
    ("model.embed_tokens.weight", "the embedding stays in the checkpoint's dtype (--embedding bf16)"),
    ("lm_head.weight", "the head stays in the checkpoint's dtype (--lm-head bf16)"),
    ("*.in_proj_a.weight", "too few outputs for an int4 tile; joined with in_proj_b"),
    ("*.in_proj_b.weight", "too few outputs for an int4 tile; joined with in_proj_a"),
    ("*norm.weight", "a vector"),
    ("*.bias", "a vector"),
    ("*.dt_bias", "a vector"),
    ("*.A_log", "a vector"),
    ("*.conv1d.weight", "a depthwise convolution of a few taps"),
)
DROPPED: tuple[tuple[str, str], ...] = (
    ("mtp.*", "multi-token prediction layers are not used"),
    ("model.visual.*", "the vision tower is not used: text input only"),
)
STORED_TWICE = ("model.embed_tokens.weight", "tied: as it is for one of embedding and head, quantized for the other")
TIED_HEAD = ("lm_head.weight", "equal to the embedding that it is tied to")


def kept_reason(name: str) -> str | None:
    """Why a tensor of a layer stays dense, or None if it is to be quantized."""
    return next((reason for glob, reason in KEPT if fnmatchcase(name, glob)), None)


@dataclass(frozen=True)
class Accounting:
    """Source tensors by fate; together they are the whole checkpoint."""

    quantized: frozenset[str]
    kept: frozenset[str]  # also what is stored both ways, by the rule STORED_TWICE
    dropped: Mapping[str, tuple[str, str]]  # name -> (glob, reason)
    twice: frozenset[str]

    def to_manifest(self) -> dict[str, object]:
        """The fields `kept`, `dropped` and `tensors` of the manifest's `quant`."""
        kept = [next(rule for rule in KEPT if fnmatchcase(name, rule[0])) for name in self.kept - self.twice]
        counts: TensorCounts = {
            "source": len(self.quantized) + len(self.kept) + len(self.dropped),
            "quantized": len(self.quantized),
            "kept": len(self.kept),
            "dropped": len(self.dropped),
        }
        kept += [STORED_TWICE] * len(self.twice)
        return {"kept": _count(kept), "dropped": _count(self.dropped.values()), "tensors": counts}


def _count(rules: Iterable[tuple[str, str]]) -> list[Rule]:
    every = list(rules)
    return [{"glob": rule[0], "reason": rule[1], "tensors": every.count(rule)} for rule in sorted(set(every))]


def account(
    present: Iterable[str], dense: Iterable[str], quantized: Iterable[str], *, tied_duplicate: bool, where: str
) -> Accounting:
    """Accounts for the `present` tensors, of which the programs use `dense` as they are and `quantized` rounded.

    Raises InputError naming the tensors that no program uses and no rule drops: a checkpoint that qpack doesn't
    understand in full must not become a bundle.
    """
    kept, rounded = frozenset(dense), frozenset(quantized)
    rules = (*DROPPED, TIED_HEAD) if tied_duplicate else DROPPED
    dropped: dict[str, tuple[str, str]] = {}
    unknown: list[str] = []
    for name in sorted(set(present) - kept - rounded):
        rule = next((rule for rule in rules if fnmatchcase(name, rule[0])), None)
        if rule is None:
            unknown.append(name)
        else:
            dropped[name] = rule
    if unknown:
        shown = ", ".join(unknown[:10]) + (f" and {len(unknown) - 10} more" if len(unknown) > 10 else "")
        raise InputError(
            f"{len(unknown)} tensors are neither used by the model nor dropped by a rule: {shown}", where=where,
            remedy="this is not a plain checkpoint of its family; a merged or exported one may be",
        )  # fmt: skip
    return Accounting(rounded - kept, kept, dropped, twice=kept & rounded)
