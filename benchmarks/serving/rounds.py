"""The measurement: every server answers the load once a round, so that a busy minute of the host is everybody's."""

from collections.abc import Callable, Sequence
from typing import Any

from .determinism import require_same
from .figures import figures
from .plan import Plan
from .sender import Sent, send
from .servers import Server

WARM_TOKENS = 8  # of the answer that pays for what only a first one pays for


def measure(
    servers: Sequence[Server], plan: Plan, rounds: int, *, check: bool, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """A row of figures for each server; `ratio`: its tokens per second over those of the first, None where that has
    none. With `check` each request of a round is sent alone before, and QpackError raised where its answer differs."""
    sent: list[list[Sent]] = [[] for _ in servers]
    for server in servers:
        with server.awake():
            send(plan.wave(server, rounds, 1, WARM_TOKENS))  # its prompt never comes again
    for number in range(rounds):
        first = number % len(servers)  # nobody always comes first
        for index in [*range(first, len(servers)), *range(first)]:
            server = servers[index]
            say(f"round {number + 1} of {rounds}: {server.name}")
            with server.awake():
                alone = send(plan.one_by_one(server, number)).answers if check else []
                sent[index].append(send(plan.load(server, number)))
            if check:
                require_same(server.name, alone, sent[index][-1].answers)
    rows = [figures(server.name, of_one, plan.answer_tokens) for server, of_one in zip(servers, sent, strict=True)]
    base = rows[0]["tokens_per_s"]
    return [row | {"ratio": row["tokens_per_s"] / base if base else None} for row in rows]
