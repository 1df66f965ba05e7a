"""Whatever arrives, whenever it arrives and whoever leaves: each sequence gets the tokens that it gets alone."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_engine import END, FakeEngine, FakeExecutor, FakeTokenBytes, alone
from qpack_runtime.engine import Pending
from qpack_runtime.sampling_options import SamplingOptions
from qpack_runtime.serve.engine.chunk_times import ChunkTimes
from qpack_runtime.serve.engine.job import Event, Finished, Job, Piece, Started
from qpack_runtime.serve.engine.scheduler import Chunk, Scheduler, Step
from qpack_runtime.serve.engine.seats import Seats


def job(prompt: list[int], most: int = 8, seed: int = 0, **fields) -> Job:
    return Job(prompt, SamplingOptions(seed=seed), most, lambda event: None, **fields)


def long_job(prompt: list[int], most: int) -> Job:
    """One that no end token cuts short."""
    seed = next(seed for seed in range(10_000) if END not in alone(prompt, seed, most))
    return job(prompt, most, seed)


class Loop:
    """The engine thread's loop without its thread: one turn at a time."""

    def __init__(self, engine: FakeEngine, longest_wait: float = 0.1):
        self.engine = engine
        self.chunks = ChunkTimes(engine.prefill_rows, longest_wait)
        seats = Seats(engine.slots, engine.executor.same_bits)
        self.scheduler = Scheduler(seats, engine.rows, self.chunks, FakeTokenBytes(), {END})  # type: ignore[arg-type]
        self.events: dict[Job, list[Event]] = {}
        self.unread: tuple[Step, Pending] | None = None

    def submit(self, *jobs: Job) -> None:
        for one in jobs:
            self.scheduler.queue.push(one)

    def turn(self) -> Step | None:
        for sequence in self.scheduler.admit():
            self.engine.admit(sequence.slot, sequence.job.options)
            self.events[sequence.job] = [Started(sequence.cached)]
        step = self.scheduler.next()
        launched = None if step is None else (step, self._launch(step))
        if not self.engine.executor.lookahead:
            self.unread, launched = launched, None
        if self.unread is not None:
            self._read(*self.unread)
        self.unread = launched
        self.scheduler.vacate(self.engine.positions.__getitem__)
        return step

    def run(self, most: int = 10_000) -> list[Step]:
        steps = []
        while not self.scheduler.idle or self.unread is not None:
            assert len(steps) < most, "the scheduler goes on for ever"
            steps.append(self.turn())
        return steps

    def output(self, one: Job) -> list[int]:
        (end,) = [event for event in self.events[one] if isinstance(event, Finished)]
        return list(end.output)

    def cached(self, one: Job) -> int:
        (start,) = [event for event in self.events[one] if isinstance(event, Started)]
        return start.cached

    def _launch(self, step: Step) -> Pending:
        if isinstance(step, Chunk):
            tokens = step.sequence.job.prompt[step.start : step.end]
            return self.engine.launch_chunk(step.sequence.slot, step.start, tokens)
        return self.engine.launch_decode([sequence.slot for sequence in step.sequences])

    def _read(self, step: Step, pending: Pending) -> None:
        choices = self.engine.read(pending)
        self.scheduler.read(step)
        if isinstance(step, Chunk) and not step.last:
            return
        for sequence, choice in zip(step.sequences, choices, strict=True):
            if not sequence.over:
                self.events[sequence.job] += sequence.take(choice)


@dataclass(frozen=True)
class Arrival:
    turn: int
    prompt: tuple[int, ...]
    most: int
    seed: int
    client: str
    session: str | None
    leaves: int | None  # so many turns later
    goes_on: int | None  # the arrival whose conversation it continues, if that has ended


TOKENS = st.integers(0, 63)
ARRIVALS = st.lists(
    st.builds(
        Arrival,
        turn=st.integers(0, 40),
        prompt=st.lists(TOKENS, min_size=1, max_size=40).map(tuple),
        most=st.integers(1, 20),
        seed=st.integers(0, 3),
        client=st.sampled_from("ab"),
        session=st.sampled_from([None, None, "s", "t"]),
        leaves=st.none() | st.integers(0, 12),
        goes_on=st.none() | st.integers(0, 5),
    ),
    max_size=16,
)


@pytest.mark.parametrize("lookahead", [False, True])
@given(
    arrivals=ARRIVALS,
    slots=st.integers(1, 5),
    rows=st.integers(1, 5),
    sizes=st.sampled_from([(1,), (4,), (4, 16), (1, 8, 32)]),
    same_bits=st.booleans(),
)
def test_a_sequence_gets_in_any_load_what_it_gets_alone(lookahead, arrivals, slots, rows, sizes, same_bits):
    engine = FakeEngine(slots, rows, sizes, FakeExecutor(lookahead=lookahead, same_bits=same_bits))
    loop, jobs, left = Loop(engine), dict[int, Job](), set[Job]()
    turn = 0
    while turn <= 60 or not loop.scheduler.idle or loop.unread is not None:
        for index, arrival in enumerate(arrivals):
            if arrival.turn == turn:
                prompt = list(arrival.prompt)
                before = jobs.get(arrival.goes_on) if arrival.goes_on is not None else None
                if before in loop.events and isinstance(loop.events[before][-1], Finished):
                    prompt = (before.prompt + loop.output(before) + prompt)[:100]
                jobs[index] = job(prompt, arrival.most, arrival.seed, client=arrival.client, session=arrival.session)
                loop.submit(jobs[index])
            if arrival.leaves is not None and arrival.turn + arrival.leaves == turn and index in jobs:
                left.update(loop.scheduler.cancel([jobs[index]]))
        loop.turn()
        turn += 1
        assert turn < 3000, "the scheduler goes on for ever"
    for one in jobs.values():
        if one not in left:
            assert loop.output(one) == alone(one.prompt, one.options.seed, one.max_tokens)
    assert all(seat.free for seat in loop.scheduler.seats.all)
    for seat in loop.scheduler.seats.all:
        assert seat.held in ([], engine.consumed[seat.slot])


@pytest.mark.parametrize("lookahead", [False, True])
def test_a_cancelled_sequence_frees_its_slot_within_one_step(lookahead: bool):
    loop = Loop(FakeEngine(slots=1, rows=1, executor=FakeExecutor(lookahead=lookahead)))
    first, second = long_job([1, 2, 3], 90), job([4, 5], 3)
    loop.submit(first, second)
    for _ in range(5):
        loop.turn()
    assert loop.scheduler.cancel([first]) == [first]
    loop.turn()
    assert loop.scheduler.seats.all[0].free
    loop.run()
    assert loop.output(second) == alone(second.prompt, 0, 3)


def test_a_waiting_job_that_is_cancelled_never_starts():
    loop = Loop(FakeEngine(slots=1, rows=1))
    first, second = long_job([1], 5), job([2], 5)
    loop.submit(first, second)
    loop.turn()
    assert loop.scheduler.cancel([second]) == [second]
    loop.run()
    assert second not in loop.events


def test_between_two_decode_steps_there_is_at_most_one_chunk():
    engine = FakeEngine(slots=4, rows=4, chunk_sizes=(4, 16))
    loop = Loop(engine)
    loop.submit(long_job([1], 60), *(job([2 + i] * 90, 2) for i in range(3)))
    loop.run()
    kinds = "".join(kind[0] for kind, _, _ in engine.steps)
    running = kinds[kinds.index("d") : kinds.rindex("d")]
    assert "cc" not in running


def test_a_chunk_beside_running_answers_keeps_within_the_longest_wait():
    engine = FakeEngine(slots=2, rows=2, chunk_sizes=(4, 16, 64))
    loop = Loop(engine, longest_wait=0.1)
    loop.chunks.observe(4, 0.02)  # so 16 tokens are expected to take 80 ms and 64 more than allowed
    loop.submit(long_job([1], 100), job([2] * 100, 1))
    loop.run()
    beside = [rows for kind, _, rows in engine.steps if kind == "chunk"][1:]
    assert set(beside[:-1]) == {16}


def test_without_running_answers_a_prompt_takes_the_largest_chunks():
    engine = FakeEngine(chunk_sizes=(4, 16))
    loop = Loop(engine)
    loop.submit(job([3] * 37, 1))
    loop.run()
    assert [rows for _, _, rows in engine.steps] == [16, 16, 5]


def test_sequences_beyond_the_widest_step_take_turns():
    engine = FakeEngine(slots=5, rows=2)
    loop = Loop(engine)
    jobs = [job([1, i], 12, seed=i) for i in range(5)]
    loop.submit(*jobs)
    loop.run()
    assert all(loop.output(one) == alone(one.prompt, one.options.seed, 12) for one in jobs)
    decodes = [slots for kind, slots, _ in engine.steps if kind == "decode"]
    assert max(map(len, decodes)) == 2


def test_a_conversation_goes_on_from_what_its_slot_holds():
    loop = Loop(FakeEngine())
    first = job([1, 2, 3], 6, seed=2)
    loop.submit(first)
    loop.run()
    answer = loop.output(first)
    second = job([*first.prompt, *answer, 9, 9], 6, seed=2)
    loop.submit(second)
    loop.run()
    assert loop.cached(second) == len(first.prompt) + len(answer) - 1  # the last token was never consumed
    assert loop.output(second) == alone(second.prompt, 2, 6)


@pytest.mark.parametrize(
    "change",
    [
        {"client": "somebody else"},
        {"session": "another"},
        {"prompt": [1, 2, 4, 9, 9, 9, 9, 9, 9, 9, 9, 9]},
        {"prompt": [1, 2]},  # shorter than what is held
    ],
)
def test_what_a_slot_holds_is_only_for_its_client_its_session_and_exactly_its_tokens(change):
    loop = Loop(FakeEngine())
    first = job([1, 2, 3], 6, seed=2, client="a", session="s")
    loop.submit(first)
    loop.run()
    fields = {"prompt": [*first.prompt, *loop.output(first), 9], "client": "a", "session": "s"} | change
    second = job(fields.pop("prompt"), 4, seed=2, **fields)
    loop.submit(second)
    loop.run()
    assert loop.cached(second) == 0
    assert loop.output(second) == alone(second.prompt, 2, 4)


def test_a_penalty_asks_for_a_fresh_start():
    """The counts of a slot know which ids were its answer, and in the new prompt they are not."""
    loop = Loop(FakeEngine())
    first = job([1, 2, 3], 6, seed=2)
    loop.submit(first)
    loop.run()
    prompt = [*first.prompt, *loop.output(first), 9]
    second = Job(prompt, SamplingOptions(seed=2, frequency_penalty=0.5), 4, lambda event: None)
    loop.submit(second)
    loop.run()
    assert loop.cached(second) == 0


@pytest.mark.parametrize(("session", "goes_on"), [(None, False), ("s", True)])
def test_where_prefill_and_decode_differ_only_a_session_goes_on_behind_an_answer(session, goes_on):
    loop = Loop(FakeEngine(executor=FakeExecutor(same_bits=False)))
    first = job([1, 2, 3], 6, seed=2, session=session)
    loop.submit(first)
    loop.run()
    second = job([*first.prompt, *loop.output(first), 9], 4, session=session)
    loop.submit(second)
    loop.run()
    assert (loop.cached(second) > 0) == goes_on


def test_a_slot_that_nobody_can_go_on_from_is_taken_first():
    loop = Loop(FakeEngine(slots=3))
    kept = job([1, 2, 3], 2, session="kept")
    loop.submit(kept)
    loop.run()
    for number in range(3):
        other = job([50 + number], 2)
        loop.submit(other)
        loop.run()
    on = job([*kept.prompt, *loop.output(kept), 9], 2, session="kept")
    loop.submit(on)
    loop.run()
    assert loop.cached(on) > 0


def test_text_is_held_back_only_as_long_as_a_stop_string_may_begin():
    loop = Loop(FakeEngine())
    expected = "".join(chr(48 + token) for token in alone([1, 2], 0, 12))
    stop = expected[4:7]
    one = job([1, 2], 12, stop=(stop,))
    loop.submit(one)
    loop.run()
    text = "".join(event.text for event in loop.events[one] if isinstance(event, Piece))
    assert text == expected[: expected.index(stop)]
    end = loop.events[one][-1]
    assert isinstance(end, Finished)
    assert end.reason == "stop"
