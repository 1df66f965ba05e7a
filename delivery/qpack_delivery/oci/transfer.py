"""Several blobs at a time, watched by one thread, which tells of the progress."""

import queue
import threading
from collections.abc import Callable, Iterable

from qpack_delivery.oci.connection import PARALLEL
from qpack_delivery.oci.modelpack import Layer
from qpack_delivery.progress import Step

_TOLD_BYTES = 8 << 20  # of a blob, between two lines of progress

Moved = Callable[[int], None]  # is told of bytes; raises if the work is to end


class _Stopped(Exception):
    """Another blob has failed."""


def transfer(layers: Iterable[Layer], work: Callable[[Layer, Moved], None], step: Step) -> None:
    """Calls `work(layer, moved)` for each layer, on PARALLEL threads. The first error stops all and is raised.

    The threads are daemons: whoever interrupts the process need not wait for a network."""
    todo: queue.SimpleQueue[Layer] = queue.SimpleQueue()
    news: queue.SimpleQueue[tuple[Layer, int] | BaseException | None] = queue.SimpleQueue()
    stop = threading.Event()
    for layer in layers:
        todo.put(layer)

    def moved(layer: Layer, amount: int) -> None:
        news.put((layer, amount))
        if stop.is_set():
            raise _Stopped

    def run() -> None:
        end: BaseException | None = None
        try:
            while True:
                layer = todo.get_nowait()
                work(layer, lambda amount, layer=layer: moved(layer, amount))
                moved(layer, 0)
        except (queue.Empty, _Stopped):
            pass
        except BaseException as error:
            end = error
            stop.set()
        news.put(end)

    threads = [threading.Thread(target=run, name=f"transfer-{n}", daemon=True) for n in range(PARALLEL)]
    for thread in threads:
        thread.start()
    ends: list[BaseException | None] = []
    untold: dict[Layer, int] = {}
    try:
        while len(ends) < len(threads):
            said = news.get()
            if not isinstance(said, tuple):
                ends.append(said)
                continue
            layer, amount = said
            untold[layer] = untold.get(layer, 0) + amount
            if untold[layer] >= _TOLD_BYTES or (not amount and untold[layer]):
                step(layer.path, untold.pop(layer))
    finally:
        stop.set()
    for error in ends:
        if error is not None:
            raise error
