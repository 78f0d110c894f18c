"""Work in steps: requests share threads fairly, and no work continues after its deadline. Knows no
HTTP."""

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
Steps = Generator[None, None, Done]  # yields after each step, of some ms; returns the result
# PAUSE_S: longest pause after a step that held the interpreter's lock. Larger: reading bodies takes
#   longer. Smaller: the event loop waits for the lock at each of its system calls.
# SLICE_S: of one request's work before another request's turn. Larger: short work waits longer
#   behind long work. Smaller: more changes of threads, at about 0.1 ms each.
PAUSE_S = 0.002
SLICE_S = 0.01


class TurnOutcome(NamedTuple, Generic[Done]):
    """What one turn led to."""

    result: Done | None  # once all steps are done
    is_done: bool


def run_now(work: Steps[Done]) -> Done:
    """All steps at once: for work that takes less time than a change of threads."""
    try:
        while True:
            next(work)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def timed(work: Steps[Done], tell: Callable[[float, bool], None]) -> Steps[Done]:
    """The same work. At its end `tell` is called with the seconds that its steps took, and whether
    all were done."""
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
    result = work()
    yield
    return result


class CooperativePool:
    """Threads that requests share. Each request has turns of about SLICE_S, and others have theirs
    in between.

    The order is self-clocked fair queueing (Golestani 1994). A turn's virtual finish time is the
    finish time of the turn that started last, plus the turn's expected length. The least is next.
    So short turns pass long ones, and no flood of short turns starves a long one.
    """

    def __init__(self, num_threads: int, name: str, pauses: bool = False) -> None:
        """pauses: whether to pause after each step. For steps that hold the interpreter's lock to
        their end: the event loop works in the pauses, and would otherwise wait for the lock at each
        of its system calls."""
        self.num_threads, self._pause_s = num_threads, PAUSE_S if pauses else 0.0
        self.executor = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._num_free = num_threads
        self._virtual_time = 0.0
        # a heap of (virtual finish time, order of arrival, turn)
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = count()

    async def finish(
        self, work: Steps[Done], deadline: Deadline, expected_s: float = SLICE_S
    ) -> Done:
        """The result of the work. Expired or ClientGone as soon as nobody waits for it: the present
        step is its last.

        expected_s: how long the work will take, if known.
        """
        while True:
            await self._wait_for_turn(min(expected_s, SLICE_S), deadline)
            try:
                turn = asyncio.get_running_loop().run_in_executor(
                    self.executor, _turn, work, deadline, self._pause_s
                )
                outcome = await deadline.wait(turn)
            finally:
                self._start_next()
            if outcome.is_done:
                return outcome.result  # type: ignore[return-value]

    async def call(self, work: Callable[[], Done]) -> Done:
        """Work in one piece, in no fixed order with what is done by turns."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, work)

    async def _wait_for_turn(self, length_s: float, deadline: Deadline) -> None:
        if self._num_free:
            self._num_free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (self._virtual_time + length_s, next(self._numbers), turn))
        try:
            await deadline.wait(turn)
        except BaseException:
            if not turn.cancelled():  # the turn started at the same moment
                self._start_next()
            raise

    def _start_next(self) -> None:
        """Starts the next turn. Without one, a thread is free."""
        while self._waiting:
            finish, _, turn = heappop(self._waiting)
            if not turn.done():  # else nobody waits for it any more
                self._virtual_time = max(self._virtual_time, finish)
                turn.set_result(None)
                return
        self._num_free += 1

    def close(self) -> None:
        self.executor.shutdown()


def _turn(work: Steps[Done], deadline: Deadline, pause_s: float) -> TurnOutcome[Done]:
    now = time.monotonic()
    until = now + SLICE_S
    try:
        while now < until:
            deadline.check()
            next(work)
            started, now = now, time.monotonic()
            if pause_s:
                time.sleep(min(pause_s, now - started))
        return TurnOutcome(None, False)
    except StopIteration as end:
        return TurnOutcome(end.value, True)
    except ServiceError:
        work.close()
        raise
