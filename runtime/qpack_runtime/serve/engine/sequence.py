"""One sequence while it has a slot: how far its prompt was fed, what was chosen, and when it ends."""

from collections.abc import Collection

from qpack_runtime.detokenizer import Detokenizer, TokenBytes
from qpack_runtime.engine import Choice
from qpack_runtime.generate import require_token
from qpack_runtime.serve.engine.job import Event, Finished, FinishReason, Job, Piece, Scored
from qpack_runtime.serve.text.stop_strings import StopStrings


class Sequence:
    """Belongs to the engine thread. `slot` is its seat from the beginning to the end."""

    def __init__(self, job: Job, slot: int, cached: int, token_bytes: TokenBytes, ends: Collection[int]):
        self.job, self.slot = job, slot
        self.cached = cached  # tokens of the prompt that the slot held already
        self.fed = cached  # tokens of the prompt that were launched or held already
        self.launched = 0  # choices that were launched, read or not
        self.output: list[int] = []
        self.last_token_at = 0.0  # time.perf_counter() of the last choice; 0 before the first
        self.over = False  # no step of it is launched any more
        self.spoiled = False  # a step failed: nobody knows what the slot's state holds
        self._ends = ends
        self._detokenizer = Detokenizer(token_bytes)
        self._stop = StopStrings(job.stop)
        self._scored: list[Scored] = []

    @property
    def prefilled(self) -> bool:
        return self.fed == len(self.job.prompt)

    @property
    def wants_step(self) -> bool:
        """Whether a decode step may be launched now. A grammar must see each token before the next is chosen."""
        waits = self.job.grammar is not None and self.launched > len(self.output)
        return self.prefilled and not self.over and not waits and self.launched < self.job.max_tokens

    def take(self, choice: Choice) -> list[Event]:
        """A choice that was read. Raises QpackError if it is no token, or if the grammar gives up."""
        require_token(choice)
        self.output.append(choice.token)
        if self.job.grammar is not None:
            self.job.grammar.accept(choice.token)
        reason: FinishReason | None = None
        if choice.token in self._ends:
            reason, text = "stop", self._stop.finish()
        else:
            text = self._stop.push(self._detokenizer.push(choice.token))
            if self.job.options.logprobs:
                self._scored.append(Scored(choice.token, choice.logprob, choice.top))
            if self._stop.found:
                reason = "stop"
            elif len(self.output) == self.job.max_tokens:
                reason, text = "length", text + self._stop.finish()
        events: list[Event] = []
        if text or self._scored:
            events.append(Piece(text, tuple(self._scored)))
            self._scored.clear()
        if reason:
            self.over = True
            events.append(Finished(reason, tuple(self.output)))
        return events

    def tokens(self, count: int) -> list[int]:
        """The first `count` tokens of prompt and output: what a slot holds that has consumed so many."""
        return (self.job.prompt + self.output)[:count]
