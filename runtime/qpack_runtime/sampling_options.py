"""What a request may say about sampling, and how it is written into the static buffers that `sample` reads."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from qpack_schemas.errors import UsageError
from qpack_schemas.sampling import (
    BIAS,
    BIAS_LIMIT,
    FILTER,
    FLOATS,
    GREEDY,
    INTS,
    LOGPROBS,
    PENALTY,
    TOP_K_LIMIT,
    TOP_P_ONE,
)

GREEDY_BELOW = 1e-5  # a smaller temperature means greedy: 1/T would push logits towards the end of float32
LARGEST, SMALLEST = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)  # what float32 holds in full


def _whole(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _real(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


# Option -> is this value allowed, and what is, in words. NaN and infinity fail every comparison of _real.
ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (_real(0, LARGEST), f"0 (greedy) or a finite number above it; below {GREEDY_BELOW} is greedy"),
    "top_k": (_whole(0, TOP_K_LIMIT), f"a whole number from 0 (off) to {TOP_K_LIMIT}"),
    "top_p": (lambda value: _real(0, 1)(value) and value > 0, "a number above 0 and at most 1 (off)"),
    "min_p": (_real(0, 1), "a number from 0 (off) to 1"),
    "repetition_penalty": (_real(SMALLEST, LARGEST), f"a finite number above 0 (at least {SMALLEST:.3g}); 1 is off"),
    "presence_penalty": (_real(-LARGEST, LARGEST), "a finite number; 0 is off"),
    "frequency_penalty": (_real(-LARGEST, LARGEST), "a finite number; 0 is off"),
    "seed": (_whole(0, 2**64 - 1), "a whole number from 0 to 2^64 - 1"),
    "logprobs": (lambda value: isinstance(value, bool), "true or false"),
}


@dataclass(frozen=True)
class SamplingOptions:
    """How the tokens of one sequence are chosen; the defaults are greedy decoding. Raises UsageError on a bad value."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # of ids in the prompt or the output
    presence_penalty: float = 0.0  # of ids in the output, as is the next
    frequency_penalty: float = 0.0
    seed: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # token id -> what is added to its logit
    logprobs: bool = False

    def __post_init__(self) -> None:
        for name, (holds, range_in_words) in ALLOWED.items():
            if not holds(getattr(self, name)):
                raise _refusal(name, getattr(self, name), range_in_words)
        object.__setattr__(self, "logit_bias", MappingProxyType(dict(self.logit_bias)))
        if len(self.logit_bias) > BIAS_LIMIT:
            raise _refusal("logit_bias", f"{len(self.logit_bias)} entries", f"at most {BIAS_LIMIT} entries")
        for token, value in self.logit_bias.items():
            if not _whole(0, 2**31 - 1)(token):
                raise _refusal("logit_bias", token, "token ids as keys: whole numbers from 0", key=True)
            if not _real(-LARGEST, LARGEST)(value):
                raise _refusal(f"logit_bias[{token}]", value, "a finite number")

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def penalties(self) -> bool:
        """Whether a score depends on the ids that came before."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def flags(self) -> int:
        """The bits of the column `flags`, but for GRAMMAR, which belongs to whoever fills the grammar's mask."""
        filters = self.top_k > 0 or self.top_p < 1 or self.min_p > 0
        return (
            GREEDY * self.greedy
            | PENALTY * self.penalties
            | BIAS * bool(self.logit_bias)
            | LOGPROBS * self.logprobs
            | FILTER * (filters and not self.greedy)
        )


def write_options(
    options: SamplingOptions, slot: int, ints: np.ndarray, floats: np.ndarray, bias_ids: np.ndarray,
    bias_values: np.ndarray, *, vocab: int,
) -> None:  # fmt: skip
    """Writes one slot's row of ints [S, 6], floats [S, 6], bias_ids and bias_values [S, BIAS_LIMIT].

    Raises UsageError, and writes nothing, if a biased id is not below `vocab`, the real vocabulary's size.
    """
    tokens = list(options.logit_bias)
    if tokens and max(tokens) >= vocab:
        raise _refusal("logit_bias", max(tokens), f"token ids of this model, from 0 to {vocab - 1}", key=True)
    one = np.float32(1)
    inverse_temperature = one if options.greedy else one / np.float32(options.temperature)
    column = {
        "flags": options.flags,
        "top_k": options.top_k,
        "top_p24": round(options.top_p * TOP_P_ONE),
        "seed_low": _int32(options.seed & 0xFFFFFFFF),
        "seed_high": _int32(options.seed >> 32),
        "bias_count": len(tokens),
        "inverse_temperature": inverse_temperature,
        "ln_min_p": math.log(options.min_p) if options.min_p > 0 else -math.inf,
        "repetition": options.repetition_penalty,
        "inverse_repetition": one / np.float32(options.repetition_penalty),
        "presence": options.presence_penalty,
        "frequency": options.frequency_penalty,
    }
    ints[slot] = [column[name] for name in INTS]
    floats[slot] = [column[name] for name in FLOATS]
    bias_ids[slot], bias_values[slot] = 0, 0
    bias_ids[slot, : len(tokens)] = tokens
    bias_values[slot, : len(tokens)] = list(options.logit_bias.values())


def _int32(word: int) -> int:
    """The int32 with the bits of an unsigned 32-bit word."""
    return word - (word >> 31 << 32)


def _refusal(option: str, value: object, range_in_words: str, *, key: bool = False) -> UsageError:
    problem = f"{option} has the key {value!r}" if key else f"{option} is {value!r}"
    return UsageError(f"{problem}, which is not allowed", remedy=f"{option} takes {range_in_words}")
