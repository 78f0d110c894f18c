"""Work in steps: requests share threads fairly, and no work continues after its deadline. Knows no
HTTP."""

import asyncio
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Generic, NamedTuple, TypeVar

from addnorm.service.errors import ServiceError
from addnorm.service.scheduling.deadline import Deadline
from addnorm.service.scheduling.handover import Handover
from addnorm.service.scheduling.queue.start_time_fairness import Flow, StartTimeFairQueue

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


def timed(
    work: Steps[Done],
    tell: Callable[[float, bool], None],
    clock: Callable[[], float] = time.monotonic,
) -> Steps[Done]:
    """The same work. At its end `tell` is called with the seconds that its steps took, and whether
    all were done."""
    seconds, is_done = 0.0, False
    try:
        while True:
            started = clock()
            try:
                next(work)
            except StopIteration as end:
                is_done = True
                return end.value  # type: ignore[no-any-return]
            finally:
                seconds += clock() - started
            yield
    finally:
        tell(seconds, is_done)


def one_step(work: Callable[[], Done]) -> Steps[Done]:
    """Work that cannot be interrupted."""
    result = work()
    yield
    return result


class KeyTurns(Flow):
    """The turns that requests of one API key wait for.

    The order is self-clocked fair queueing (Golestani 1994). A turn's virtual finish time is the
    finish time of the turn that started last, plus the turn's expected length. The least is next.
    So short turns pass long ones, and no flood of short turns starves a long one.
    """

    def __init__(self) -> None:
        self._virtual_time = 0.0
        # a heap of (virtual finish time, order of arrival, turn)
        self._waiting: list[tuple[float, int, Turn]] = []
        self._numbers = count()

    def add(self, turn: "Turn") -> None:
        finish = self._virtual_time + turn.length_s
        heappush(self._waiting, (finish, next(self._numbers), turn))
        self.num_jobs += 1

    def pop(self) -> "Turn":
        """The next one. Its request may have given up."""
        finish, _, turn = heappop(self._waiting)
        self._virtual_time = max(self._virtual_time, finish)
        self.num_jobs -= 1
        return turn


@dataclass(eq=False)
class Turn:
    """One request's turn."""

    flow: KeyTurns
    length_s: float  # expected, which the key is charged at first
    started: "asyncio.Future[None]"
    seconds: float = 0.0  # that it took


class CooperativePool:
    """Threads that requests share. Each request has turns of about SLICE_S, and others have theirs
    in between.

    API keys share the threads' time equally, by the time that turns took (`StartTimeFairQueue`).
    `KeyTurns` says which of one key's turns is next.
    """

    def __init__(
        self,
        num_threads: int,
        name: str,
        pauses: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """pauses: whether to pause after each step. For steps that hold the interpreter's lock to
        their end: the event loop works in the pauses, and would otherwise wait for the lock at each
        of its system calls. clock: seconds, by which turns are measured."""
        self.num_threads, self._pause_s = num_threads, PAUSE_S if pauses else 0.0
        self.executor = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._clock, self._handover = clock, Handover()
        self._num_free = num_threads
        self._num_waiting = 0
        self._keys: dict[str, KeyTurns] = {}
        self._fairness: StartTimeFairQueue[KeyTurns] = StartTimeFairQueue()

    async def finish(
        self, work: Steps[Done], deadline: Deadline, expected_s: float = SLICE_S
    ) -> Done:
        """The result of the work. Expired or ClientGone as soon as nobody waits for it: the present
        step is its last.

        expected_s: how long the work will take, if known.
        """
        flow, length_s = self._flow(deadline.key), min(expected_s, SLICE_S)
        while True:
            turn = await self._wait_for_turn(flow, length_s, deadline)
            running = self.executor.submit(self._run, turn, work, deadline)
            try:
                outcome = await self._handover.result(running, deadline)
            finally:
                self._end_with(running, turn)
            if outcome.is_done:
                return outcome.result  # type: ignore[return-value]
            length_s = turn.seconds

    async def call(self, work: Callable[[], Done]) -> Done:
        """Work in one piece, in no fixed order with what is done by turns."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, work)

    def _flow(self, key: str) -> KeyTurns:
        if key not in self._keys:
            self._keys[key] = KeyTurns()
        return self._keys[key]

    async def _wait_for_turn(self, flow: KeyTurns, length_s: float, deadline: Deadline) -> Turn:
        """Returns when it has started."""
        turn = Turn(flow, length_s, asyncio.get_running_loop().create_future())
        flow.add(turn)
        self._fairness.activate(flow)
        self._num_waiting += 1
        if self._num_free:
            self._num_free -= 1
            self._start_next()
            return turn
        try:
            await deadline.wait(turn.started)
        except BaseException:
            if not turn.started.cancelled():  # it started at the same moment
                self._end(turn)
            raise
        return turn

    def _start_next(self) -> None:
        """Starts the next turn. Without one, a thread is free."""
        while self._num_waiting:
            turn = self._fairness.next().pop()
            self._num_waiting -= 1
            if not turn.started.done():  # else nobody waits for it any more
                self._fairness.charge(turn.length_s)
                turn.started.set_result(None)
                return
        self._num_free += 1

    def _end_with(self, running: "Future[TurnOutcome[Done]]", turn: Turn) -> None:
        """Ends the turn now, or with its present step if its caller has left before."""
        loop = asyncio.get_running_loop()

        def end(_: object) -> None:
            try:
                loop.call_soon_threadsafe(self._end, turn)
            except RuntimeError:  # the loop is closed, and all that waited are gone
                self._end(turn)

        if running.done():
            self._end(turn)
        else:
            running.add_done_callback(end)

    def _end(self, turn: Turn) -> None:
        self._fairness.correct(turn.flow, turn.seconds - turn.length_s)
        self._start_next()

    def _run(self, turn: Turn, work: Steps[Done], deadline: Deadline) -> TurnOutcome[Done]:
        began = now = self._clock()
        try:
            while now < began + SLICE_S:
                deadline.check()
                next(work)
                started, now = now, self._clock()
                if self._pause_s:
                    time.sleep(min(self._pause_s, now - started))
            return TurnOutcome(None, False)
        except StopIteration as end:
            return TurnOutcome(end.value, True)
        except ServiceError:
            work.close()
            raise
        finally:
            turn.seconds = self._clock() - began

    def close(self) -> None:
        self.executor.shutdown()
