"""A crowd of clients, most of them rude: each sends its share of the requests and checks what it gets."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from runtime.serve.process.questions import Question, Said, said
from runtime.serve.process.wire import Wire, connected, request
from runtime.serve.process.wrong_requests import GARBAGE, HUGE, WRONG, Wrong

CLOSE = "connection: close\r\n"
GONE = (ConnectionError, asyncio.IncompleteReadError)  # how a client sees that the server has closed
SECONDS = 900  # a safety net: a crowd that hangs is reported

Known = Sequence[tuple[Question, Said]]  # each with the answer that it had alone


class Crowd:
    """`run` sends `requests` requests over `connections` clients at once. Then `problems` says what was wrong, and
    `counts` how the requests went."""

    def __init__(self, port: int, known: Known, seed: int):
        self._port, self._known, self._seed = port, known, seed
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()

    async def run(self, connections: int, requests: int) -> None:
        share, more = divmod(requests, connections)
        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
            for number in range(connections):
                client = _Client(self, self._port, self._known, random.Random(f"{self._seed} {number}"))
                group.create_task(client.run(share + (number < more)))

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        return "\n".join([f"seed {self._seed}: {counts}", *self.problems[:20]])


class _Client:
    def __init__(self, crowd: Crowd, port: int, known: Known, rng: random.Random):
        self._crowd, self._port, self._known, self._rng = crowd, port, known, rng
        self._kept: Wire | None = None  # a connection that goes on

    async def run(self, requests: int) -> None:
        manners: dict[Callable[[], Awaitable[None]], int] = {
            self.polite: 50, self.slow: 3, self.unread: 4, self.leaves_at_once: 6, self.leaves_while_it_waits: 6,
            self.leaves_after_the_first_piece: 8, self.silent: 3, self.half: 6, self.wrong: 10, self.pipelines: 4,
        }  # fmt: skip
        for _ in range(requests):
            (manner,) = self._rng.choices(list(manners), list(manners.values()))
            self._crowd.counts[manner.__name__] += 1
            try:
                await manner()
            except GONE as error:
                self._problem(f"{manner.__name__}: {error!r}")
        if self._kept is not None:
            self._kept.close()

    async def polite(self) -> None:
        """Reads a whole answer, on a connection that is used again."""
        question, alone = self._rng.choice(self._known)
        data = question.sent(stream=self._rng.random() < 0.5)
        if self._kept is not None:
            with suppress(*GONE):  # the server closes what was idle for a while
                await self._kept.send(data)
                await self._check(self._kept, question, alone)
                return
            self._kept.close()
        self._kept = await Wire.open(self._port)
        await self._kept.send(data)
        await self._check(self._kept, question, alone)

    async def slow(self) -> None:
        question, alone = self._rng.choice(self._known)
        async with connected(self._port, narrow=True) as wire:
            await wire.send(question.sent(stream=True, headers=CLOSE))
            await self._check(await wire.bytewise(), question, alone)

    async def unread(self) -> None:
        await self._held(self._sent(), narrow=True)

    async def leaves_at_once(self) -> None:
        async with connected(self._port, reset=self._rng.random() < 0.5) as wire:
            await wire.send(self._sent())

    async def leaves_while_it_waits(self) -> None:
        """Often before the first token: what waits for a slot, or has just begun."""
        async with connected(self._port, reset=self._rng.random() < 0.5) as wire:
            await wire.send(self._sent())
            async with connected(self._port) as other:
                await other.send(request("/livez", method="GET", headers=CLOSE))
                await other.response()

    async def leaves_after_the_first_piece(self) -> None:
        question, _ = self._rng.choice(self._known)
        async with connected(self._port, reset=self._rng.random() < 0.5) as wire:
            await wire.send(question.sent(stream=True))
            status, headers = await wire.head()
            await anext(wire.pieces(headers))
            self._expect(status, 200, 429)

    async def silent(self) -> None:
        await self._held(b"")

    async def half(self) -> None:
        data = self._sent()
        await self._held(data[: self._rng.randrange(1, len(data))])

    async def wrong(self) -> None:
        wrong = HUGE if self._rng.random() < 0.01 else self._rng.choice(WRONG)
        async with connected(self._port) as wire:
            try:
                await wire.send(wrong.data)
                status, _ = await wire.head()
            except GONE as error:
                # Who is refused before it has sent everything may see a reset instead of the answer.
                if len(wrong.data) < 10_000:
                    self._problem(f"{wrong.name}: {error!r}")
                return
        self._expect(status, *wrong.statuses, of=wrong)

    async def pipelines(self) -> None:
        """A right request with something else behind it: first its answer comes, whole."""
        question, alone = self._rng.choice(self._known)
        async with connected(self._port) as wire:
            await wire.send(question.sent(stream=True) + self._rng.choice(GARBAGE))
            await self._check(wire, question, alone)
            with suppress(*GONE):
                self._expect((await wire.head())[0], 400)

    async def _held(self, data: bytes, *, narrow: bool = False) -> None:
        """Sends no more than `data` and reads nothing, while another request is answered."""
        async with connected(self._port, narrow=narrow) as wire:
            await wire.send(data)
            await self.polite()

    async def _check(self, wire: Wire, question: Question, alone: Said) -> None:
        response = await wire.response()
        if response.status == 429:
            self._crowd.counts["refused"] += 1
            if int(response.headers["retry-after-ms"]) < 1 or int(response.headers["retry-after"]) < 1:
                self._problem(f"429 with {response.headers}")
        elif response.status != 200:
            self._problem(f"{response.status} {response.body!r} to {question}")
        elif (answer := said(response)) != alone:
            self._problem(f"{answer} is not what it was alone, {alone}, to {question}; {response.headers}")
        else:
            self._crowd.counts["answered"] += 1

    def _sent(self) -> bytes:
        return self._rng.choice(self._known)[0].sent(stream=self._rng.random() < 0.5)

    def _expect(self, status: int, *allowed: int, of: Wrong | None = None) -> None:
        if status not in allowed:
            self._problem(f"{of.name if of else 'a right request'}: status {status}, not {allowed}")

    def _problem(self, problem: str) -> None:
        self._crowd.problems.append(problem)
