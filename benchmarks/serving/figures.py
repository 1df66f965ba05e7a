"""From answers to numbers: rates, latencies as percentiles, failures by kind."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from .sender import Sent


def figures(name: str, rounds: Sequence[Sent], answer_tokens: int) -> dict[str, Any]:
    """Of one server. Rates are medians over rounds, `round_tokens_per_s` those of each; latencies are of all rounds
    together, in milliseconds, from the time at which a request was due; None where no answer has any.

    `ttft_ms`: to the first piece of text. `gap_ms`: between two pieces of an answer, which are its tokens unless a
    character takes several. `answer_ms`: to the end. `short`: answers that ended before `answer_tokens` tokens."""
    whole = [answer for sent in rounds for answer in sent.answers if not answer.failure]
    failures = Counter(answer.failure for sent in rounds for answer in sent.answers if answer.failure)
    firsts = [answer.times[0] - answer.due for answer in whole if answer.times]
    gaps = [gap for answer in whole for gap in np.diff(answer.times)]
    rates = [sum(answer.tokens for answer in sent.answers if not answer.failure) / sent.seconds for sent in rounds]
    requests = [sum(not answer.failure for answer in sent.answers) / sent.seconds for sent in rounds]
    return {
        "server": name,
        "tokens_per_s": float(np.median(rates)),
        "round_tokens_per_s": rates,
        "requests_per_s": float(np.median(requests)),
        "ttft_ms": _percentiles(firsts),
        "gap_ms": _percentiles(gaps) | {"std": 1000 * float(np.std(gaps)) if gaps else None},
        "answer_ms": _percentiles([answer.end - answer.due for answer in whole]),
        "answers": len(whole),
        "short": sum(answer.tokens < answer_tokens for answer in whole),
        "failures": dict(sorted(failures.items())),
        "client_cpu_share": sum(sent.cpu_seconds for sent in rounds) / sum(sent.seconds for sent in rounds),
    }


def _percentiles(seconds: Sequence[float]) -> dict[str, float | None]:
    if not len(seconds):
        return {"p50": None, "p99": None}
    p50, p99 = np.percentile(seconds, [50, 99])
    return {"p50": 1000 * float(p50), "p99": 1000 * float(p99)}
