"""What becomes of every tensor of a checkpoint: quantized, kept dense by a named rule, or dropped by a named rule."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from qpack_packager.checkpoint.packed.fp8 import Fp8Weight
from qpack_packager.checkpoint.packed.int8_weight import Int8Weight
from qpack_packager.checkpoint.source_tensor import INT4, Tensor
from qpack_schemas.errors import InputError, UsageError
from qpack_schemas.manifest import Rule, TensorCounts

WeightForm = Literal["dense", "int8", "int4"]
FORMS: Mapping[str, WeightForm] = {"bf16": "dense", "int8": "int8", "int4": "int4"}  # as rules spell them

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
UNQUANTIZED = ("*", "the quantized checkpoint leaves it as it is")
STORED_TWICE = ("model.embed_tokens.weight", "tied: as it is for one of embedding and head, quantized for the other")
TIED_HEAD = ("lm_head.weight", "equal to the embedding that it is tied to")


def form_of_codes(tensor: Tensor) -> WeightForm | None:
    """The form of a weight that its checkpoint stores as codes which a bundle has as well."""
    if tensor.dtype == INT4:
        return "int4"
    return "int8" if isinstance(tensor, Int8Weight) else None


class LayerForms:
    """The forms that the weights of layers get. The first of `rules` that matches a weight's name decides; else codes
    of the checkpoint stay in their form; else the policy above; else a checkpoint that `imports` codes keeps what it
    leaves unquantized, which FP8 is not, and others become int4."""

    def __init__(self, rules: Sequence[tuple[str, str]], *, imports: bool):
        self.rules, self.imports = rules, imports
        self.kept: dict[str, tuple[str, str]] = {}  # tensor -> (glob, reason)
        self._unused = set(rules)

    def of(self, tensors: Mapping[str, Tensor], where: str) -> WeightForm:
        """The form of a weight that is made of `tensors`, joined. Raises UsageError where rules part them."""
        forms: dict[str, WeightForm] = {name: self._form(name, tensor, where) for name, tensor in tensors.items()}
        if len(set(forms.values())) > 1:
            said = ", ".join(f"{name} {form}" for name, form in forms.items())
            raise UsageError(
                f"weights that are multiplied together get different forms: {said}", where=where,
                remedy="quantize all of them alike where the checkpoint is made, or build from the unquantized one"
                if any(tensor.dtype == INT4 for tensor in tensors.values())  # which no rule changes
                else "give all of them one form with a rule",
            )  # fmt: skip
        return next(iter(forms.values()))

    def refuse_unused(self) -> None:
        """A rule that matches nothing is a mistake."""
        for glob, form in self.rules:
            if (glob, form) in self._unused:
                raise UsageError(
                    f"the rule {glob}={form} matches no weight of a layer before other rules do",
                    remedy="names are like model.layers.0.mlp.up_proj.weight; head and embedding have other flags",
                )

    def _form(self, name: str, tensor: Tensor, where: str) -> WeightForm:
        rule = next((rule for rule in self.rules if fnmatchcase(name, rule[0])), None)
        if rule:
            self._unused.discard(rule)
        codes = form_of_codes(tensor)
        form = FORMS[rule[1]] if rule else codes
        if codes == "int4" and form != "int4":
            raise UsageError(
                f"the rule {'='.join(rule or ())} asks for more than the checkpoint has: {name} is int4 there",
                where=where, remedy="build from the unquantized checkpoint",
            )  # fmt: skip
        if form is None:
            if kept := next((rule for rule in KEPT if fnmatchcase(name, rule[0])), None):
                self.kept[name] = kept
                return "dense"
            if self.imports and not isinstance(tensor, Fp8Weight):
                self.kept[name] = UNQUANTIZED
                return "dense"
        if form == "dense" and rule:
            self.kept[name] = (rule[0], "asked for by a rule")
        return form or "int4"


@dataclass(frozen=True)
class Accounting:
    """Source tensors by fate; together they are the whole checkpoint."""

    quantized: frozenset[str]
    kept: Mapping[str, tuple[str, str]]  # name -> (glob, reason); also what is stored both ways, see `twice`
    dropped: Mapping[str, tuple[str, str]]  # name -> (glob, reason)
    twice: frozenset[str]

    def to_manifest(self) -> dict[str, object]:
        """The fields `kept`, `dropped` and `tensors` of the manifest's `quant`."""
        kept = [rule for name, rule in self.kept.items() if name not in self.twice]
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
    present: Iterable[str],
    dense: Iterable[str],
    quantized: Iterable[str],
    reasons: Mapping[str, tuple[str, str]],
    *,
    tied_duplicate: bool,
    where: str,
) -> Accounting:
    """Accounts for the `present` tensors, of which the programs use `dense` as they are, for `reasons` or by the
    policy, and `quantized` rounded.

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
    why = {
        name: reasons.get(name) or next(rule for rule in KEPT if fnmatchcase(name, rule[0])) for name in sorted(kept)
    }
    return Accounting(rounded - kept, why, dropped, twice=kept & rounded)
