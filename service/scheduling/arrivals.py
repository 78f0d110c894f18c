"""Requests begin in turns: a few in each round of the event loop, equal shares for API keys. Knows
no HTTP."""

import asyncio
from collections import deque

from addnorm.service.scheduling.queue.start_time_fairness import Flow, StartTimeFairQueue

# Requests that begin in one round of the event loop. Larger: a request waits for more of another
# key's at each of its own steps there, of which it has about five. Smaller: the loop looks for
# events more often, which takes about 0.05 ms.
MAX_IN_ROUND = 8


class KeyArrivals(Flow):
    """The requests of one API key that have not begun, in the order they came."""

    def __init__(self) -> None:
        self.waiting: deque[asyncio.Future[None]] = deque()


class Arrivals:
    """What begins runs to its first wait, so many requests at once would keep the event loop from
    others. On the event loop only."""

    def __init__(self, max_in_round: int = MAX_IN_ROUND) -> None:
        self._max_in_round = self._num_left = max_in_round
        self._num_waiting = 0
        self._is_counting = False  # whether this round ends by `_next_round`
        self._keys: dict[str, KeyArrivals] = {}
        self._fairness: StartTimeFairQueue[KeyArrivals] = StartTimeFairQueue()

    async def begin(self, key: str) -> None:
        """Returns when a request of the key may begin: at once, unless many do."""
        loop = asyncio.get_running_loop()
        if not self._is_counting:
            self._is_counting = True
            loop.call_soon(self._next_round, loop)
        if self._num_left and not self._num_waiting:
            self._num_left -= 1
            return
        flow = self._keys.setdefault(key, KeyArrivals())
        started: asyncio.Future[None] = loop.create_future()
        flow.waiting.append(started)
        flow.num_jobs += 1
        self._num_waiting += 1
        self._fairness.activate(flow)
        await started

    def _next_round(self, loop: asyncio.AbstractEventLoop) -> None:
        self._num_left = self._max_in_round
        while self._num_waiting and self._num_left:
            self._start_next()
        self._is_counting = bool(self._num_waiting)
        if self._is_counting:
            loop.call_soon(self._next_round, loop)

    def _start_next(self) -> None:
        flow = self._fairness.next()
        started = flow.waiting.popleft()
        flow.num_jobs -= 1
        self._num_waiting -= 1
        if not started.done():  # else its caller was cut off
            self._fairness.charge(1)
            self._num_left -= 1
            started.set_result(None)
