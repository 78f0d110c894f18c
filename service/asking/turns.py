"""Large work: plain functions on threads of their own, which take turns. API keys share the time,
small work passes long work, and no work continues after its deadline. Knows no HTTP."""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from typing import ParamSpec, TypeVar

from addnorm.service.asking.ask import Ask, Handover
from addnorm.service.asking.fair_queue import Flow, StartTimeFairQueue
from addnorm.service.asking.gate import Rule
from addnorm.service.engine.checkpoint import this_thread
from addnorm.service.errors import ClientGone
from addnorm.service.locks import LockOrder, new_lock

Done = TypeVar("Done")
Arguments = ParamSpec("Arguments")
# SLICE_S: of one work before another's turn. Larger: short work waits longer behind long work.
#   Smaller: more changes of threads, at about 0.1 ms each.
# PAUSE_S: longest pause after a piece that held the interpreter's lock. Larger: reading bodies
#   takes longer. Smaller: the event loop waits for the lock at each of its system calls.
# OLDER_RATIO: work that had a second goes before work that came after this many seconds of its
#   key's work. Larger: a flood of short work holds up long work for longer. Smaller: short work
#   waits longer for long work that came before it.
# MAX_THREADS: works that have begun, of one `Turns`. Larger: more memory and threads in a flood.
#   Smaller: short work waits for long work to end.
# THREADS: how keys share them.
# CALL_S: within which work for nobody in particular is done.
SLICE_S = 0.01
CALL_S = 60.0
PAUSE_S = 0.002
OLDER_RATIO = 8
MAX_THREADS, THREADS = 256, Rule(ratio=8)


class KeyTurns(Flow):
    """The work of one API key. Whoever had least goes first, so small new work passes long work."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, int, Turn]] = []  # a heap of (rank, order of arrival, turn)
        self.later: deque[Turn] = deque()  # those that have no thread yet
        self.num_threads = 0
        self.seconds = 0.0  # that its work took


class Turn:
    """One work, while it waits and while it runs."""

    def __init__(self, turns: "Turns", flow: KeyTurns, ask: Ask, number: int) -> None:
        self.turns, self.flow, self.ask, self.number = turns, flow, ask, number
        self.since = flow.seconds / OLDER_RATIO
        self.seconds = 0.0  # that it worked before its present slice
        self.began = self.piece_began = 0.0  # of the present slice, and of the present piece
        self.has_slot = self.is_over = False
        self.error: Exception | None = None  # that ends it at its next checkpoint
        self.start: Callable[[], None] | None = None  # on a thread; None once it has one
        self.goes_on = threading.Event()

    def check(self) -> None:
        """ClientGone or Expired if nobody waits for it any more."""
        self.ask.check()
        if self.error:
            raise self.error

    def pass_checkpoint(self) -> None:
        self.turns.pass_checkpoint(self)


def worked_s() -> float:
    """A clock of this thread's work, which stands still while other work goes first."""
    if isinstance(turn := this_thread.work, Turn):
        return turn.turns.worked_s(turn)
    return time.monotonic()


class Turns:
    """So many works run at once, those of other turns wait. One for each length of piece: a piece
    is never interrupted."""

    def __init__(
        self,
        num_slots: int,
        name: str,
        pauses: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """name: of the threads. pauses: after each piece, for work that holds the interpreter's
        lock: so the event loop need not wait for the lock at each of its system calls. clock:
        seconds, by which turns are measured."""
        self.num_slots, self._pause_s, self._clock = num_slots, PAUSE_S if pauses else 0.0, clock
        self._executor = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix=name)
        self._handover, self._numbers = Handover(), count()
        self._lock = new_lock(LockOrder.TURNS)  # of what follows, and of all flows and their turns
        self._num_free = num_slots  # guarded by _lock
        self._num_waiting = self._num_threads = 0  # guarded by _lock
        self._keys: dict[str, KeyTurns] = {}  # guarded by _lock
        self._crowded: dict[KeyTurns, None] = {}  # that have some for later; guarded by _lock
        self._fairness: StartTimeFairQueue[KeyTurns] = StartTimeFairQueue()  # guarded by _lock

    async def run(
        self,
        ask: Ask,
        work: Callable[Arguments, Done],
        *args: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Done:
        """Returns or raises as the work does. Expired or ClientGone as soon as nobody waits for it:
        the work ends at its next checkpoint."""
        future: Future[Done] = Future()
        with self._lock:
            flow = self._keys.setdefault(ask.key, KeyTurns())
            turn = Turn(self, flow, ask, next(self._numbers))
            turn.start = partial(self._work, turn, partial(work, *args, **options), future)
            flow.later.append(turn)
            self._crowded[flow] = None
            begun = self._give_slots()
        self._begin(begun)
        try:
            return await self._handover.result(future, ask)
        except BaseException:
            with self._lock:
                self._give_up(turn)
                begun = self._give_slots()
            self._begin(begun)
            raise

    async def call(self, work: Callable[[], Done]) -> Done:
        """The work's value, for nobody in particular."""
        return await self.run(Ask(timeout_s=CALL_S), work)

    def pass_checkpoint(self, turn: Turn) -> None:
        """On the thread of the turn."""
        turn.check()
        now = self._clock()
        if self._pause_s:
            time.sleep(min(self._pause_s, now - turn.piece_began))
            now = self._clock()
        if now >= turn.began + SLICE_S:
            with self._lock:
                self._stop(turn, now)
                self._wait(turn)
                begun = self._give_slots()
            self._begin(begun)
            turn.goes_on.wait()
            turn.goes_on.clear()
            turn.check()
            now = self._clock()
        turn.piece_began = now

    def worked_s(self, turn: Turn) -> float:
        return turn.seconds + (self._clock() - turn.began if turn.has_slot else 0.0)

    def close(self) -> None:
        """Ends all threads. What has begun ends at its next checkpoint."""
        with self._lock:
            for flow in self._keys.values():
                for turn in [*flow.later, *(turn for _, _, turn in flow.waiting)]:
                    self._give_up(turn)
        self._executor.shutdown()

    def _work(self, turn: Turn, work: Callable[[], Done], future: "Future[Done]") -> None:
        """On a thread of its own."""
        if turn.is_over:  # the executor took it, and found no thread for it
            return
        before, this_thread.work = this_thread.work, turn
        turn.piece_began = turn.began
        try:
            turn.check()
            done = work()
        except BaseException as error:
            self._end(turn)
            with suppress(InvalidStateError):  # nobody waits for it any more
                future.set_exception(error)
            del future  # the error has this frame, and must not be kept alive by it
        else:
            self._end(turn)
            with suppress(InvalidStateError):
                future.set_result(done)
        finally:
            this_thread.work = before

    def _begin(self, turns: list[Turn]) -> None:
        for turn in turns:
            if turn.start is None:
                turn.goes_on.set()
            else:
                start, turn.start = turn.start, None
                try:
                    self._executor.submit(start)
                except RuntimeError as error:  # the process has no more threads, or is at its end
                    turn.error = error
                    start()

    def _end(self, turn: Turn) -> None:
        with self._lock:
            if turn.has_slot:
                self._stop(turn, self._clock())
            turn.is_over = True
            turn.flow.num_threads -= 1
            self._num_threads -= 1
            begun = self._give_slots()
        self._begin(begun)

    # Below: under the lock

    def _give_slots(self) -> list[Turn]:
        """Free slots go to those whose turn it is: these."""
        for flow in list(self._crowded):
            while flow.later and THREADS.grants(
                MAX_THREADS, self._num_threads, flow.num_threads, 0, 1
            ):
                flow.num_threads += 1
                self._num_threads += 1
                self._wait(flow.later.popleft())
            if not flow.later:
                del self._crowded[flow]
        begun = []
        while self._num_free and self._num_waiting:
            chosen = self._fairness.next()
            assert chosen
            self._fairness.charge(chosen, SLICE_S)
            turn = heappop(chosen.waiting)[2]
            chosen.num_waiting -= 1
            self._num_waiting -= 1
            self._num_free -= 1
            turn.has_slot, turn.began = True, self._clock()
            begun.append(turn)
        return begun

    def _wait(self, turn: Turn) -> None:
        flow = turn.flow
        heappush(flow.waiting, (turn.since + turn.seconds, turn.number, turn))
        flow.num_waiting += 1
        self._num_waiting += 1
        self._fairness.activate(flow)

    def _stop(self, turn: Turn, now: float) -> None:
        """It gives back its slot."""
        seconds = now - turn.began
        turn.seconds += seconds
        turn.flow.seconds += seconds
        self._fairness.charge(turn.flow, seconds - SLICE_S)
        turn.has_slot = False
        self._num_free += 1

    def _give_up(self, turn: Turn) -> None:
        """Nobody waits for it any more. Its thread learns of it at its next checkpoint."""
        flow, turn.error = turn.flow, ClientGone("the caller left before the answer")
        if turn in flow.later:
            flow.later.remove(turn)
        entry = next((waiter for waiter in flow.waiting if waiter[2] is turn), None)
        if entry is None:
            return
        flow.waiting.remove(entry)
        heapify(flow.waiting)
        flow.num_waiting -= 1
        self._num_waiting -= 1
        if turn.start is None:
            turn.goes_on.set()
        else:
            flow.num_threads -= 1
            self._num_threads -= 1
