"""Work that is done in steps, so that requests take turns and none goes on after its deadline. Knows no HTTP."""

import asyncio
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from heapq import heappop, heappush
from itertools import count
from typing import Generic, NamedTuple, TypeVar

from addnorm.service.errors import ServiceError
from addnorm.service.scheduling.deadline import Deadline

Done = TypeVar("Done")
Steps = Generator[
    None, None, Done
]  # yields after each piece, of some milliseconds; returns what was made
REST_S = 0.002
SLICE_S = 0.01  # of one request's work in one turn: a change of threads costs about 0.1 ms


class Outcome(NamedTuple, Generic[Done]):
    """Of a turn: what was made, once all pieces are done."""

    made: Done | None
    is_done: bool


def run_now(work: Steps[Done]) -> Done:
    """All pieces in one go: for what takes less time than a change of threads."""
    try:
        while True:
            next(work)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def timed(work: Steps[Done], tell: Callable[[float, bool], None]) -> Steps[Done]:
    """The same work. `tell` hears at its end how many seconds the pieces took, and whether all of them were done."""
    seconds, is_done = 0.0, False
    try:
        while True:
            started = time.monotonic()
            try:
                next(work)
            except StopIteration as end:
                is_done = True
                return end.value  # type: ignore[no-any-return]
            finally:
                seconds += time.monotonic() - started
            yield
    finally:
        tell(seconds, is_done)


def one_step(work: Callable[[], Done]) -> Steps[Done]:
    """Work that cannot be interrupted."""
    made = work()
    yield
    return made


class CooperativePool:
    """Threads that requests share: each has a turn of at most SLICE_S, then another has its own.

    The order is self-clocked fair queueing (Golestani 1994): a turn is due its expected length after what was due when
    the last turn began. Short turns so pass long ones, and no flood of short ones starves a long one.
    """

    def __init__(self, num_threads: int, name: str, rests: bool = False) -> None:
        """rests: whether to pause after each piece, as is fit for those that hold the interpreter's lock to their end.

        In the pause the event loop does all it has to do, where it would else wait for the lock at each system call.
        """
        self.num_threads, self._rest_s = num_threads, REST_S if rests else 0.0
        self.executor = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._num_free = num_threads
        self._clock = 0.0
        self._waiting: list[
            tuple[float, int, asyncio.Future[None]]
        ] = []  # a heap: due, order of arrival
        self._order = count()

    async def finish(
        self, work: Steps[Done], deadline: Deadline, expected_s: float = SLICE_S
    ) -> Done:
        """What the work makes. Expired or ClientGone as soon as nobody waits for it: it ends with the piece under way.

        expected_s: how long it will take, where that is known.
        """
        while True:
            await self._come(min(expected_s, SLICE_S), deadline)
            try:
                turn = asyncio.get_running_loop().run_in_executor(
                    self.executor, _turn, work, deadline, self._rest_s
                )
                outcome = await _in_time(turn, deadline)
            finally:
                self._pass_on()
            if outcome.is_done:
                return outcome.made  # type: ignore[return-value]

    async def call(self, work: Callable[[], Done]) -> Done:
        """Work in one piece, in no fixed order with what is done by turns."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, work)

    async def _come(self, length_s: float, deadline: Deadline) -> None:
        """Waits for a turn."""
        if self._num_free:
            self._num_free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (self._clock + length_s, next(self._order), turn))
        try:
            await _in_time(turn, deadline)
        except BaseException:
            if not turn.cancelled():  # its turn came at the same moment
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            due, _, turn = heappop(self._waiting)
            if not turn.done():  # else nobody waits for it any more
                self._clock = max(self._clock, due)
                turn.set_result(None)
                return
        self._num_free += 1

    def close(self) -> None:
        self.executor.shutdown()


async def _in_time(awaited: "asyncio.Future[Done]", deadline: Deadline) -> Done:
    """Its result. Expired or ClientGone as soon as nobody waits for it."""
    timer = asyncio.get_running_loop().call_later(deadline.left_s(), awaited.cancel)
    deadline.stop = awaited.cancel
    try:
        return await awaited
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task and task.cancelling():  # not what is awaited: the server ends
            raise
        deadline.check()
        raise deadline.expired() from None  # timers may be some milliseconds early
    finally:
        timer.cancel()
        deadline.stop = None


def _turn(work: Steps[Done], deadline: Deadline, rest_s: float) -> Outcome[Done]:
    now = time.monotonic()
    until = now + SLICE_S
    try:
        while now < until:
            deadline.check()
            next(work)
            started, now = now, time.monotonic()
            if rest_s:
                time.sleep(min(rest_s, now - started))
        return Outcome(None, False)
    except StopIteration as end:
        return Outcome(end.value, True)
    except ServiceError:
        work.close()
        raise
