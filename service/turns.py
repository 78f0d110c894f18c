"""Turns at work that is done in pieces, so that small requests do not wait for large ones. Knows no requests."""

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count


class Turns:
    """Self-clocked fair queueing (Golestani 1994): a piece is due its size after what was due when the last one began.

    Small pieces so pass large ones, and no flood of small ones starves a large one. For one event loop.
    """

    def __init__(self, num_at_once: int) -> None:
        self._num_free = num_at_once
        self._clock = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap: due, order of arrival
        self._order = count()

    @asynccontextmanager
    async def turn(self, size: int) -> AsyncIterator[None]:
        """Waits for its turn, which lasts as long as the block."""
        await self._come(self._clock + size)
        try:
            yield
        finally:
            self._pass_on()

    async def _come(self, due: int) -> None:
        if self._num_free:
            self._num_free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (due, next(self._order), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # its turn had come at the same moment
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            due, _, turn = heapq.heappop(self._waiting)
            if not turn.done():  # else it was cancelled
                self._clock = max(self._clock, due)
                turn.set_result(None)
                return
        self._num_free += 1
