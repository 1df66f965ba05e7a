"""Work for a client that may leave: it goes on only as long as somebody is there to get it."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress

from starlette.requests import ClientDisconnect
from starlette.types import Receive


async def while_connected(receive: Receive, work: Coroutine[None, None, None]) -> None:
    """Runs `work`, whose request has been read to its end. When the client leaves, cancels it and raises
    ClientDisconnect."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        await task
    finally:
        for one in (task, gone):
            one.cancel()
            with suppress(asyncio.CancelledError):
                if one is gone or not one.done():
                    await one


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
