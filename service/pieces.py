"""Work that is done piece by piece, so that requests take turns and none goes on after its deadline. Knows no HTTP."""

import asyncio
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar

from service.deadline import Deadline
from service.errors import ServiceError

Done = TypeVar("Done")
Pieces = Generator[None, None, Done]  # yields after each piece, of some milliseconds; returns what was made
REST_S = 0.002
SLICE_S = 0.01  # of one request's work in one turn: a change of threads costs about 0.1 ms


class Outcome(NamedTuple, Generic[Done]):
    """Of a turn: what was made, once all pieces are done."""

    made: Done | None
    is_done: bool


def at_once(work: Pieces[Done]) -> Done:
    """All pieces in one go: for what takes less time than a change of threads."""
    try:
        while True:
            next(work)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def timed(work: Pieces[Done], tell: Callable[[float, bool], None]) -> Pieces[Done]:
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


def one_piece(work: Callable[[], Done]) -> Pieces[Done]:
    """Work that cannot be interrupted."""
    made = work()
    yield
    return made


class TurnTaker:
    """Threads that requests share: each has a turn of SLICE_S, then the next has its own."""

    def __init__(self, num_threads: int, name: str, rests: bool = False) -> None:
        """rests: whether to pause after each piece, as is fit for those that hold the interpreter's lock to their end.

        In the pause the event loop does all it has to do, where it would else wait for the lock at each system call.
        """
        self.num_threads, self._rest_s = num_threads, REST_S if rests else 0.0
        self.executor = ThreadPoolExecutor(num_threads, thread_name_prefix=name)

    async def finish(self, work: Pieces[Done], deadline: Deadline) -> Done:
        """What the work makes. Expired or ClientGone as soon as nobody waits for it: it ends with the piece under way."""
        while True:
            outcome = await self._turn(work, deadline)
            if outcome.is_done:
                return outcome.made  # type: ignore[return-value]

    async def _turn(self, work: Pieces[Done], deadline: Deadline) -> Outcome[Done]:
        loop = asyncio.get_running_loop()
        turn = loop.run_in_executor(self.executor, _turn, work, deadline, self._rest_s)
        timer = loop.call_later(deadline.left_s(), turn.cancel)
        deadline.stop = turn.cancel
        try:
            return await turn
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():  # not the turn: the server ends
                raise
            deadline.check()
            raise deadline.expired() from None  # timers may be some milliseconds early
        finally:
            timer.cancel()
            deadline.stop = None

    def close(self) -> None:
        self.executor.shutdown()


def _turn(work: Pieces[Done], deadline: Deadline, rest_s: float) -> Outcome[Done]:
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
