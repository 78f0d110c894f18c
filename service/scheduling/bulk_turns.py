"""Pieces of bulk requests begin in turns, and leave a worker to other requests. Knows no requests
and no threads."""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from addnorm.service.scheduling.queue.start_time_fairness import Flow, StartTimeFairQueue

# ALONE_S: after so long without another request, bulk requests take every worker. Larger: they are
#   slower beside callers who ask now and then. Smaller: more of those wait for a piece to end.
# SPARE_LANES: pieces that wait in the queue meanwhile. Fewer: a worker waits for the event loop
#   between two pieces. More: a request that comes then waits longer.
ALONE_S = 5.0
SPARE_LANES = 1


class KeyPieces(Flow):
    """The pieces of one API key that wait for a turn, in the order they came, each with the seconds
    that it takes."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[asyncio.Future[None], float]] = deque()


class BulkTurns:
    """At most `num_lanes` pieces are under way at once. API keys share the turns equally, by the
    predicted time of their pieces. On the event loop only."""

    def __init__(self, num_workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._num_workers, self._clock = num_workers, clock
        self._others_at = -math.inf  # when another request was last computed
        self.num_running = self._num_waiting = 0
        self._keys: dict[str, KeyPieces] = {}
        self._fairness: StartTimeFairQueue[KeyPieces] = StartTimeFairQueue()

    def note_other(self) -> None:
        """A request that is no bulk request is computed."""
        self._others_at = self._clock()

    @property
    def is_alone(self) -> bool:
        return self._clock() >= self._others_at + ALONE_S

    @property
    def num_workers(self) -> int:
        """That bulk requests may use now: one is left to other callers while there are any."""
        return self._num_workers if self.is_alone else max(1, self._num_workers - 1)

    @property
    def num_lanes(self) -> int:
        return self.num_workers + (SPARE_LANES if self.is_alone else 0)

    @property
    def max_lanes(self) -> int:
        return self._num_workers + SPARE_LANES

    @asynccontextmanager
    async def turn(self, key: str, cost_s: float) -> AsyncIterator[None]:
        """For `async with`: begins when a piece of this key that takes cost_s may be queued."""
        await self._begin(key, cost_s)
        try:
            yield
        finally:
            self.num_running -= 1
            self._start_waiting()

    async def _begin(self, key: str, cost_s: float) -> None:
        flow = self._keys.setdefault(key, KeyPieces())
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        flow.waiting.append((started, cost_s))
        flow.num_jobs += 1
        self._num_waiting += 1
        self._fairness.activate(flow)
        self._start_waiting()
        try:
            await started
        except asyncio.CancelledError:
            if not started.cancelled():  # it had begun at the same moment
                self.num_running -= 1
                self._start_waiting()
            raise

    def _start_waiting(self) -> None:
        while self._num_waiting and self.num_running < self.num_lanes:
            flow = self._fairness.next()
            started, cost_s = flow.waiting.popleft()
            flow.num_jobs -= 1
            self._num_waiting -= 1
            if not started.done():  # else its caller has left
                self._fairness.charge(cost_s)
                self.num_running += 1
                started.set_result(None)
