"""Results of other threads -> the event loop. Those that come close together wake it once: each
wake-up is a system call, after which both threads want the interpreter's lock. Knows no queue."""

import asyncio
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from addnorm.service.asking.ask import Ask

Result = TypeVar("Result")


class Handover:
    """Appending to a deque and assigning need no lock."""

    def __init__(self) -> None:
        self._settled: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._woken: asyncio.AbstractEventLoop | None = None  # that will hand over

    async def result(self, future: "Future[Result]", ask: Ask) -> Result:
        """What another thread gives the future. Expired or ClientGone, and it is cancelled, as soon
        as nobody waits for it."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Result] = loop.create_future()
        future.add_done_callback(partial(self._note, loop, waiter))
        try:
            return await ask.wait(waiter)
        except BaseException:
            future.cancel()  # no effect on one that is done
            raise

    def _note(
        self, loop: asyncio.AbstractEventLoop, waiter: "asyncio.Future[Any]", future: "Future[Any]"
    ) -> None:
        """On the thread that settled the future."""
        self._settled.append((waiter, future))
        if self._woken is not loop:
            self._woken = loop
            with suppress(RuntimeError):  # the loop is closed, and all that waited are gone
                loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        self._woken = None  # first: what is noted from now on may not be seen below
        while self._settled:
            waiter, future = self._settled.popleft()
            if waiter.done() or waiter.get_loop().is_closed():
                continue
            if future.cancelled():
                waiter.cancel()
            elif error := future.exception():
                waiter.set_exception(error)
            else:
                waiter.set_result(future.result())
