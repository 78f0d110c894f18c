"""The worker threads: they take from the queue, run, and settle. A watchdog replaces those that
hang. Knows no HTTP."""

import logging
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.fair_queue import MicroBatch, least_share
from addnorm.service.asking.gate import Gate
from addnorm.service.engine.batch import AnyRows
from addnorm.service.engine.target import Target
from addnorm.service.errors import NotFinite, RunTimedOut, ServiceError
from addnorm.service.locks import LockOrder, new_condition

log = logging.getLogger("addnorm")
TICKS = 10  # of the watchdog, within the run timeout
# Times as long as predicted may a run take beside other busy programs. Larger: a run that hangs is
# taken for load for longer. Smaller: load is taken for a run that hangs.
SLOWED_DOWN = 4
OBSERVER_FAILED = "an observer of the workers failed"


class Observer:
    """Told of the workers' work, on their threads. If an observer raises, the error is logged and
    no ask fails."""

    def on_computed(self, micro: MicroBatch, rows: AnyRows) -> None:
        """A micro-batch was computed. rows: of its tokens, in its order."""

    def on_failed(self, target: Target) -> None:
        """A session run raised an error."""

    def on_replaced(self) -> None:
        """A worker hung and was replaced."""


@dataclass(eq=False)
class Worker:
    """One thread, the micro-batches it has taken and not yet settled, and the ticks that its
    present run has lasted."""

    # guarded by Scheduler.changed
    todo: list[MicroBatch] = field(default_factory=list)
    ticks: int = 0
    thread: threading.Thread = field(init=False)


class Scheduler:
    """The worker threads that empty the queue behind the gate."""

    def __init__(self, gate: Gate, run_timeout_s: float = 20.0) -> None:
        """Starts no thread: see `start`. run_timeout_s: a longer session run counts as hanging."""
        self.num_workers, self.run_timeout_s = gate.queue.num_workers, run_timeout_s
        self._observers: Sequence[Observer] = ()  # set before any thread starts
        self._closed = threading.Event()
        # Its holder does no work on arrays: the event loop waits for it. It also guards what the
        # queue holds: asks, backlogs, and what is counted of targets.
        self.changed = new_condition(LockOrder.SCHEDULER)
        self.waking: object = None  # the event loop whose present round ends with `wake`
        self.gate = gate  # its queue and load shedding are guarded by `changed`
        self._closing = False  # guarded by `changed`
        # those that take from the queue; guarded by `changed`
        self._workers: list[Worker] = []
        # replaced ones, whose session runs have not returned; guarded by `changed`
        self._hung_workers: list[Worker] = []
        self._last_end = -math.inf  # of a run; guarded by `changed`

    def start(self, observers: Sequence[Observer] = ()) -> None:
        """Starts the worker threads and the watchdog."""
        self._observers = observers
        with self.changed:
            for _ in range(self.num_workers):
                self._start_worker()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    @property
    def num_busy(self) -> int:
        """Workers that run a micro-batch."""
        with self.changed:
            return sum(bool(worker.todo) for worker in self._workers)

    def wake(self) -> None:
        """Wakes as many idle workers as what waits is enough for."""
        self.waking = None
        with self.changed:
            queue = self.gate.queue
            shares = sum(target.num_tokens // least_share(target) for target in queue.active)
            self.changed.notify(self.num_workers if queue.num_bulk else max(1, shares))

    def submit_first(self, ask: Ask) -> None:
        """Queues the ask before all others, whatever waits."""
        with self.changed:
            self.gate.queue.add(ask, time.monotonic())
            self.changed.notify()

    def holds(self, ask: Ask) -> bool:
        """True while the ask waits, or a worker runs it."""
        with self.changed:
            running_asks = (
                sequence.ask
                for worker in self._workers
                for micro in worker.todo
                for sequence in micro.sequences
            )
            return self.gate.queue.asks.get(ask.entry.number) is ask or ask in running_asks

    @property
    def num_hung(self) -> int:
        """Replaced workers whose session runs have not returned: each still holds a thread and
        memory."""
        with self.changed:
            self._hung_workers = [
                worker for worker in self._hung_workers if worker.thread.is_alive()
            ]
            return len(self._hung_workers)

    def proceeds(self, within_s: float) -> bool:
        """True if the workers are busy and do not hang: a run ended in the last within_s, or one
        may take so long."""
        with self.changed:
            running = [worker.todo[0] for worker in self._workers if worker.todo]
            slowest = (
                micro.taken + SLOWED_DOWN * micro.num_tokens * micro.target.s_per_token
                for micro in running
            )
            return time.monotonic() < max(self._last_end + within_s, *slowest, -math.inf)

    def num_queued_tokens(self) -> int:
        with self.changed:
            return self.gate.queue.num_tokens

    def wait_s(self) -> float:
        """Predicted time until everything that waits now is computed."""
        with self.changed:
            return self.gate.queue.wait_s()

    def is_idle(self) -> bool:
        """True if nothing waits and a worker has nothing to do."""
        with self.changed:
            return not self.gate.queue.asks and self.num_busy < self.num_workers

    def close(self) -> None:
        """Runs what is queued, then ends the workers. Does not wait for workers that hang."""
        with self.changed:
            self._closing = True
            self.changed.notify_all()
            self.changed.wait_for(lambda: not self._workers, 2 * self.run_timeout_s)
        self._closed.set()

    def _start_worker(self) -> None:
        worker = Worker()
        worker.thread = threading.Thread(
            target=self._serve, args=(worker,), name="worker", daemon=True
        )
        worker.thread.start()
        self._workers.append(worker)

    def _serve(self, worker: Worker) -> None:
        while self._step(worker):
            pass

    def _step(self, worker: Worker) -> bool:
        """Takes one micro-batch, runs and settles it. False when the worker has to end.

        A function of its own, so that its locals end with it: an idle worker must keep no model and
        no rows in memory.
        """
        micro = self._take(worker)
        if micro is None:
            return False
        outcome: AnyRows | Exception
        try:
            outcome = compute(micro)
        except Exception as error:  # any of a session fails these asks only, never the worker
            outcome = service_error(error)
        for observer in self._observers:
            try:
                if isinstance(outcome, Exception):
                    observer.on_failed(micro.target)
                else:
                    observer.on_computed(micro, outcome)
            except Exception:  # no error of an observer may end a worker
                log.exception(OBSERVER_FAILED)
        now = time.monotonic()
        with self._using_queue(worker):
            if worker not in self._workers:
                worker.todo = []  # it was replaced, and its asks have failed already
                self.changed.notify()  # a large sequence may wait for its memory
                return True
            del worker.todo[0]
            self._last_end = now
            if not isinstance(outcome, Exception):
                self.gate.queue.settle(micro, None, now)
            elif len(micro.parts) == 1:
                self.gate.queue.settle(micro, outcome, now)
            else:  # again, ask by ask: only one is at fault
                target, taken, on_all_cores = micro.target, micro.taken, micro.on_all_cores
                worker.todo = [
                    MicroBatch(target, sequences, taken, on_all_cores)
                    for _, sequences in micro.parts
                ]
        return True

    def _take(self, worker: Worker) -> MicroBatch | None:
        """Waits for work. None once the scheduler closes or the worker was replaced."""
        with self.changed:
            worker.ticks = 0
            while worker in self._workers:
                if not worker.todo:
                    with self._using_queue(worker):
                        self._take_from_queue(worker)
                if worker.todo:
                    return worker.todo[0]
                if self._closing:
                    self._workers.remove(worker)
                    self.changed.notify_all()
                else:
                    self.changed.wait()
            return None

    def _take_from_queue(self, worker: Worker) -> None:
        """The next micro-batch. It runs on all cores if the other workers would be idle for most of
        its run on one thread: all that waits and runs is less. Bulk asks that wait do not count."""
        queue = self.gate.queue
        running = [micro for peer in self._workers for micro in peer.todo]
        num_busy = sum(bool(peer.todo) for peer in self._workers)
        has_large = False
        for peer in (*self._workers, *self._hung_workers):
            if peer.todo and peer.todo[0].is_large and peer.thread.is_alive():
                has_large = True
        micro = queue.take(time.monotonic(), self.num_workers - num_busy, has_large)
        if micro is None:
            return
        worker.todo = [micro]
        if micro.is_bulk:  # another worker may run more of the ask, if not before then now
            self.changed.notify()
        elif micro.target.run_on_all_cores:
            others_s = sum(run.num_tokens * run.target.s_per_token for run in running)
            others_s += sum(target.num_tokens * target.s_per_token for target in queue.active)
            own_s = micro.num_tokens * micro.target.s_per_token
            micro.on_all_cores = others_s < (self.num_workers - 1) * own_s / 2

    @contextmanager
    def _using_queue(self, worker: Worker) -> Iterator[None]:
        """Takes the lock. No error of the queue ends a thread or leaves an ask waiting: what the
        queue knows may be wrong after it, so all its asks fail, those that run too, and an empty
        queue takes its place."""
        with self.changed:
            try:
                yield
            except Exception as error:
                log.exception("the queue failed, and all requests in it")
                worker.todo = []
                self.gate.queue.give_up(service_error(error))
                self.gate.start_over()

    def _watch(self) -> None:
        """Counts its own ticks instead of seconds, so that no worker is replaced because the whole
        process was stopped."""
        while not self._closed.wait(self.run_timeout_s / TICKS):
            self.tick()

    def tick(self) -> None:
        """Replaces workers that hang, and those that the system allowed no thread for."""
        try:
            with self.changed:
                for worker in list(self._workers):
                    worker.ticks += bool(worker.todo)
                    if worker.ticks > TICKS or not worker.thread.is_alive():
                        self._replace(worker)
                while len(self._workers) < self.num_workers and not self._closing:
                    self._start_worker()
        except Exception:  # the watchdog must not end: the next tick may succeed
            log.exception("no worker thread can be started")

    def _replace(self, worker: Worker) -> None:
        """Fails the worker's asks and starts another worker. A late result of its session run is
        ignored."""
        self._workers.remove(worker)
        self._hung_workers.append(worker)
        error = RunTimedOut(f"inference did not end within {self.run_timeout_s:g} s")
        with self._using_queue(worker):
            for micro in worker.todo:
                name, num_sequences = micro.target.name, len(micro.sequences)
                log.error(
                    "replaced a worker that hung in %s with %d sequences", name, num_sequences
                )
                self.gate.queue.settle(micro, error, time.monotonic())
        for observer in self._observers:
            try:
                observer.on_replaced()
            except Exception:
                log.exception(OBSERVER_FAILED)
        self._start_worker()


def compute(micro: MicroBatch) -> AnyRows:
    """Computes the micro-batch, and gives each ask its rows. NotFinite names the first sequence
    with such a value."""
    batch, target, start = micro.batch(), micro.target, 0
    on_all_cores = target.run_on_all_cores if micro.on_all_cores else None
    rows = (on_all_cores or target.run)(batch)
    assert rows.num_tokens == micro.num_tokens
    if rows.not_finite():
        raise next(
            NotFinite(output, sequence.sequence_index)
            for sequence, (start, end) in zip(micro.sequences, pairwise(batch.offsets), strict=True)
            if (output := rows.span(start, end).not_finite())
        )
    for (_, sequences), ask_rows in zip(micro.parts, micro.rows, strict=True):
        end = start + sum(sequence.length for sequence in sequences)
        ask_rows.receive([sequence.sequence_index for sequence in sequences], rows.span(start, end))
        start = end
    return rows


def service_error(error: Exception) -> Exception:
    """The error that callers get for any error of a session, or of what became of its rows.
    MemoryError stays as it is: any stage may raise it."""
    if isinstance(error, ServiceError | MemoryError):
        return error
    failure = ServiceError(f"inference failed: {type(error).__name__}")
    failure.__cause__ = error
    return failure
