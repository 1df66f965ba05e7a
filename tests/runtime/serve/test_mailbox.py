"""What another thread posts reaches the loop, all of it and in order."""

import asyncio
import threading

from qpack_runtime.serve.mailbox import Mailbox


def test_calls_from_other_threads_are_made_on_the_loop_in_order():
    async def run() -> list[tuple[int, int]]:
        made: list[tuple[int, int]] = []
        done = asyncio.Event()
        loops_thread = threading.get_ident()
        mailbox = Mailbox(asyncio.get_running_loop())

        def make(call: tuple[int, int]) -> None:
            assert threading.get_ident() == loops_thread
            made.append(call)
            if len(made) == 4000:
                done.set()

        def post(number: int) -> None:
            for count in range(1000):
                mailbox.post(make, (number, count))

        threads = [threading.Thread(target=post, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        await done.wait()
        for thread in threads:
            thread.join()
        return made

    made = asyncio.run(run())
    for number in range(4):
        assert [count for one, count in made if one == number] == list(range(1000))


def test_a_call_that_fails_does_not_keep_the_next_from_being_made():
    async def run() -> list[str]:
        loop, made, done, complaints = asyncio.get_running_loop(), list[str](), asyncio.Event(), list[str]()
        loop.set_exception_handler(lambda loop, context: complaints.append(str(context["exception"])))
        mailbox = Mailbox(loop)

        def fail(value: str) -> None:
            raise RuntimeError(value)

        mailbox.post(fail, "wrong")
        mailbox.post(made.append, "right")
        mailbox.post(lambda value: done.set(), None)
        await done.wait()
        return made + complaints

    assert asyncio.run(run()) == ["right", "wrong"]
