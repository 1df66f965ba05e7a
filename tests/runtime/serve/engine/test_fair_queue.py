"""Nobody waits behind another's crowd, and nobody waits for ever."""

from hypothesis import given
from hypothesis import strategies as st

from qpack_runtime.sampling_options import SamplingOptions
from qpack_runtime.serve.engine.fair_queue import FairQueue
from qpack_runtime.serve.engine.job import Job


def job(client: str, tokens: int = 10, most: int = 10) -> Job:
    return Job([1] * tokens, SamplingOptions(), most, lambda event: None, client=client)


def drained(queue: FairQueue) -> list[Job]:
    return [queue.pop() for _ in range(len(queue))]


def test_one_client_is_served_in_order_of_arrival():
    queue, jobs = FairQueue(), [job("a", tokens=1 + 7 * i % 5) for i in range(20)]
    for one in jobs:
        queue.push(one)
    assert drained(queue) == jobs


def test_a_single_request_passes_a_crowd():
    queue = FairQueue()
    for _ in range(50):
        queue.push(job("crowd"))
    single = job("single")
    queue.pop()  # the crowd has begun
    queue.push(single)
    assert drained(queue).index(single) <= 1


def test_a_client_who_was_idle_has_saved_nothing_up():
    queue = FairQueue()
    for _ in range(100):
        queue.push(job("busy"))
    drained(queue)
    for _ in range(10):
        queue.push(job("busy"))
        queue.push(job("late"))
    order = [one.client for one in drained(queue)]
    assert order[:4].count("late") == 2


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50), st.integers(1, 50)), max_size=60))
def test_while_two_clients_wait_their_tokens_differ_by_no_more_than_their_largest_requests(asked):
    """Theorem 1 of the paper: |W_a / r_a - W_b / r_b| <= l_a / r_a + l_b / r_b while both are backlogged."""
    queue = FairQueue()
    for client, tokens, most in asked:
        queue.push(job(client, tokens, most))
    left = {client: sum(one[0] == client for one in asked) for client in "abc"}
    largest = {c: max((tokens + most for client, tokens, most in asked if client == c), default=0) for c in "abc"}
    served = dict.fromkeys("abc", 0)
    for one in drained(queue):
        served[one.client] += len(one.prompt) + one.max_tokens
        left[one.client] -= 1
        for a in "abc":
            for b in "abc":
                if left[a] and left[b]:
                    assert abs(served[a] - served[b]) <= largest[a] + largest[b]


def test_what_is_discarded_is_gone_and_the_rest_stays_in_order():
    queue, jobs = FairQueue(), [job("a") for _ in range(9)]
    for one in jobs:
        queue.push(one)
    queue.discard([*jobs[::2], job("never pushed")])
    assert drained(queue) == jobs[1::2]


def test_clients_that_are_served_are_forgotten():
    queue = FairQueue()
    for number in range(1000):
        queue.push(job(f"client {number}"))
        queue.pop()
    assert not queue._finish
