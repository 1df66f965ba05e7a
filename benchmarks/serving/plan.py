"""What every server is asked in a round, and how: the same for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .arrivals import Load, poisson
from .prompts import Prompt, body, prompts_of, random_prompts
from .servers import Server


@dataclass(frozen=True)
class Plan:
    """`rate`: requests a second, in Poisson's manner; without it, `clients` that wait for their answers."""

    requests: int
    prompt_tokens: int
    answer_tokens: int
    prompts: Path | None  # instead of `prompt_tokens` random ids
    rate: float | None
    clients: int
    seed: int
    end_ids: Sequence[int]

    def load(self, server: Server, turn: int) -> Load:
        """The requests of a round; another `turn` has other prompts."""
        due = [] if self.rate is None else list(poisson(self.rate, self.requests, self.seed))
        return self._sent_to(server, self._prompts(turn), 0 if due else self.clients, due)

    def one_by_one(self, server: Server, turn: int) -> Load:
        """The same requests, each alone."""
        return self._sent_to(server, self._prompts(turn), 1)

    def wave(self, server: Server, turn: int, count: int, answer_tokens: int) -> Load:
        """`count` requests at once, with random prompts."""
        prompts = random_prompts(count, self.prompt_tokens, seed=self.seed, turn=turn)
        return replace(self, answer_tokens=answer_tokens)._sent_to(server, prompts, count)

    @property
    def arrivals(self) -> str:
        if self.rate is not None:
            return f"{self.rate:g} requests/s at random times"
        return "all at once" if self.clients >= self.requests else f"{self.clients} clients"

    def _prompts(self, turn: int) -> Sequence[Prompt]:
        if self.prompts is not None:
            return prompts_of(self.prompts, self.requests, turn=turn)
        return random_prompts(self.requests, self.prompt_tokens, seed=self.seed, turn=turn)

    def _sent_to(self, server: Server, prompts: Sequence[Prompt], clients: int, due: Sequence[float] = ()) -> Load:
        model = server.model()
        bodies = [body(model, prompt, self.answer_tokens, self.end_ids) for prompt in prompts]
        return Load(server.host, server.port, bodies, clients, due)
