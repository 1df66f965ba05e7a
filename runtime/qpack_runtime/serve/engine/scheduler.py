"""Which step comes next. Knows no clock, no executor and no thread: jobs in, steps out, choices back in.

Continuous batching: a sequence joins the decode step after its prompt and leaves it with its last token. Between two
decode steps there is at most one chunk of a prompt, and that no longer than running answers may be kept waiting.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from qpack_runtime.detokenizer import TokenBytes
from qpack_runtime.serve.engine.chunk_times import ChunkTimes
from qpack_runtime.serve.engine.fair_queue import FairQueue
from qpack_runtime.serve.engine.job import Job
from qpack_runtime.serve.engine.seats import Seats
from qpack_runtime.serve.engine.sequence import Sequence


@dataclass(frozen=True)
class Chunk:
    """Tokens `start` to `end` of a prompt. Its choice is wanted if `last`."""

    sequence: Sequence
    start: int
    end: int

    @property
    def last(self) -> bool:
        return self.end == len(self.sequence.job.prompt)

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        return (self.sequence,)


@dataclass(frozen=True)
class Decode:
    """One token of each sequence."""

    sequences: tuple[Sequence, ...]


Step = Chunk | Decode


class Scheduler:
    """Belongs to the engine thread. `decode_rows` is what one decode step can hold; `chunks` bounds a chunk."""

    def __init__(
        self, seats: Seats, decode_rows: int, chunks: ChunkTimes, token_bytes: TokenBytes, ends: Collection[int]
    ):
        self.queue = FairQueue()
        self.seats = seats
        self.running: list[Sequence] = []  # in the order in which their last step was launched
        self._decode_rows, self._chunks = decode_rows, chunks
        self._token_bytes, self._ends = token_bytes, ends
        self._decode_is_due = False

    def admit(self) -> Iterator[Sequence]:
        """Gives free slots to waiting jobs, and yields what begins."""
        while len(self.queue) and any(seat.free for seat in self.seats.all):
            job = self.queue.pop()
            chosen = self.seats.choose(job)
            assert chosen is not None
            seat, cached = chosen
            sequence = Sequence(job, seat.slot, cached, self._token_bytes, self._ends)
            self.seats.occupy(seat, sequence)
            self.running.append(sequence)
            yield sequence

    def next(self) -> Step | None:
        """The step to launch now; None if there is nothing to do before a step under way is read."""
        decoding = [sequence for sequence in self.running if sequence.wants_step][: self._decode_rows]
        filling = next((sequence for sequence in self.running if not sequence.prefilled and not sequence.over), None)
        if filling is None and not decoding:
            return None
        if filling is None or (decoding and self._decode_is_due):
            self._decode_is_due = False
            step: Step = Decode(tuple(sorted(decoding, key=lambda sequence: sequence.slot)))
        else:
            self._decode_is_due = True
            left = len(filling.job.prompt) - filling.fed
            size = min(left, self._chunks.longest_chunk() if decoding else self._chunks.largest)
            step = Chunk(filling, filling.fed, filling.fed + size)
        self._launched(step)
        return step

    def _launched(self, step: Step) -> None:
        for sequence in step.sequences:
            self.seats.all[sequence.slot].in_flight += 1
            if isinstance(step, Chunk):
                sequence.fed = step.end
            sequence.launched += isinstance(step, Decode) or step.last
        # Who has had a step goes behind those that wait for one.
        served = set(step.sequences)
        self.running.sort(key=lambda sequence: sequence in served)

    def read(self, step: Step) -> None:
        """A step was read, and what it chose was taken."""
        for sequence in step.sequences:
            self.seats.all[sequence.slot].in_flight -= 1

    def vacate(self, consumed: Callable[[int], int]) -> None:
        """Frees the slots of sequences that are over and have no step under way. `consumed` says how many tokens the
        state of a slot holds."""
        for sequence in [sequence for sequence in self.running if sequence.over]:
            seat = self.seats.all[sequence.slot]
            if seat.in_flight == 0:
                self.running.remove(sequence)
                # Before its first chunk the state is still that of whoever sat here before.
                known = sequence.fed > 0 and not sequence.spoiled
                self.seats.leave(seat, sequence.tokens(consumed(sequence.slot)) if known else [])

    def cancel(self, jobs: Iterable[Job]) -> list[Job]:
        """Ends jobs, waiting or running; those among them that were not over yet."""
        wanted = set(jobs)
        waiting = [job for job in self.queue if job in wanted]
        self.queue.discard(waiting)
        running = [sequence for sequence in self.running if sequence.job in wanted and not sequence.over]
        for sequence in running:
            sequence.over = True
        return [*waiting, *(sequence.job for sequence in running)]

    @property
    def idle(self) -> bool:
        return not self.running and not len(self.queue)
