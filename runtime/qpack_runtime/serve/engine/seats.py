"""What each slot holds, and which one a job gets: a slot keeps its state when its sequence ends, so that a prompt that
begins with exactly those tokens goes on from there. Nothing is rolled back, so this holds for recurrent state too."""

from dataclasses import dataclass, field
from itertools import count

from qpack_runtime.serve.engine.job import Job
from qpack_runtime.serve.engine.sequence import Sequence


@dataclass
class Seat:
    slot: int
    sequence: Sequence | None = None
    in_flight: int = 0  # steps launched and not yet read that have a row of this slot
    held: list[int] = field(default_factory=list)  # tokens that its state has consumed, while nobody sits here
    decoded: bool = False  # whether some of them were fed one by one, by decode steps
    client: str = ""
    session: str | None = None
    last_used: int = 0

    @property
    def free(self) -> bool:
        return self.sequence is None and self.in_flight == 0


class Seats:
    """All slots but the scratch slot. `same_bits`: whether the executor leaves the same state whichever program fed a
    token; where it doesn't, only a session asks for going on behind an answer, and so takes the difference."""

    def __init__(self, slots: int, same_bits: bool):
        self.all = [Seat(slot) for slot in range(slots)]
        self._same_bits = same_bits
        self._uses = count(1)

    def choose(self, job: Job) -> tuple[Seat, int] | None:
        """A free seat, and how many tokens of the prompt it holds; None if all are taken.

        One that can go on is best, and the longer the better; else one whose state nobody can go on from, then one
        without a session, then the one not used for longest."""
        free = [seat for seat in self.all if seat.free]
        if not free:
            return None
        going_on = [seat for seat in free if self._goes_on(seat, job)]
        if going_on:
            seat = max(going_on, key=lambda seat: len(seat.held))
            return seat, len(seat.held)
        return min(free, key=lambda seat: (bool(seat.held), seat.session is not None, seat.last_used)), 0

    def occupy(self, seat: Seat, sequence: Sequence) -> None:
        seat.sequence, seat.held = sequence, []
        seat.decoded = seat.decoded and sequence.cached > 0
        seat.client, seat.session, seat.last_used = sequence.job.client, sequence.job.session, next(self._uses)

    def leave(self, seat: Seat, held: list[int]) -> None:
        """The sequence has ended and none of its steps is under way; `held` is what the state has consumed."""
        sequence, seat.sequence = seat.sequence, None
        assert sequence is not None
        seat.held = held
        seat.decoded = seat.decoded or len(held) > len(sequence.job.prompt)

    def _goes_on(self, seat: Seat, job: Job) -> bool:
        """Only for the client that left the state, or what is cached would tell one client of another's prompts. Counts
        of ids tell prompt from answer, so a penalty asks for a fresh start. At least one token must be left to feed."""
        held = seat.held
        return (
            0 < len(held) < len(job.prompt)
            and (seat.client, seat.session) == (job.client, job.session)
            and (self._same_bits or not seat.decoded or job.session is not None)
            and not job.options.penalties
            and job.prompt[: len(held)] == held
        )
