"""The process that sends a load: `python -m serving.sender`, a Load as JSON on stdin, what came of it on stdout.

It has a small claim to the cores, which it shares with the server that it measures.
"""

import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qpack_schemas.errors import QpackError

from .answer import Answer, read_answer
from .arrivals import Load
from .exchange import Pieces, exchange, request_bytes

FOLDER = Path(__file__).parents[1]
NICENESS = 10  # a tenth of the share of a process of usual priority, wherever both want a core


@dataclass(frozen=True)
class Sent:
    """`seconds`: from the beginning until the last connection is closed. `cpu_seconds`: of the client meanwhile."""

    answers: list[Answer]
    seconds: float
    cpu_seconds: float


def send(load: Load) -> Sent:
    """Sends `load` from a process of its own. Answers are in the order of the bodies, failed ones too."""
    command = [sys.executable, "-m", "serving.sender"]
    ran = subprocess.run(
        command, cwd=FOLDER, input=json.dumps(asdict(load)), capture_output=True, encoding="utf-8", check=False
    )
    if ran.returncode:
        raise QpackError(f"the sending process ended with exit code {ran.returncode}: {ran.stderr}")
    said = json.loads(ran.stdout)
    return Sent([Answer(**answer) for answer in said.pop("answers")], **said)


async def run(load: Load) -> dict[str, Any]:
    """The fields of Sent."""
    requests = [request_bytes(load.host, load.port, body) for body in load.bodies]
    exchanged: list[tuple[float, Pieces]] = [(0.0, [])] * len(requests)
    gc.collect()
    gc.disable()  # no answer waits for a collection
    begin, cpu_begin = time.perf_counter(), time.process_time()

    async def at(index: int, due: float) -> None:
        await asyncio.sleep(begin + due - time.perf_counter())
        exchanged[index] = due, await exchange(load.host, load.port, requests[index])

    async def client(numbers: Iterator[int]) -> None:
        for index in numbers:
            due = time.perf_counter() - begin
            exchanged[index] = due, await exchange(load.host, load.port, requests[index])

    indices = iter(range(len(requests)))  # clients share them: each takes the next
    await asyncio.gather(
        *(at(index, due) for index, due in enumerate(load.due)), *(client(indices) for _ in range(load.clients))
    )
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu_begin
    answers = [asdict(read_answer(due, pieces, begin)) for due, pieces in exchanged]
    return {"answers": answers, "seconds": seconds, "cpu_seconds": cpu_seconds}


def main() -> None:
    load = Load(**json.load(sys.stdin))
    os.nice(NICENESS)
    json.dump(asyncio.run(run(load)), sys.stdout)


if __name__ == "__main__":
    main()
