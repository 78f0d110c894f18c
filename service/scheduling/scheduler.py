"""The workers: threads that take from the queue, run, and settle; and the watchdog that replaces one that hangs.

Knows no tensors and no HTTP.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from addnorm.service.errors import NotFinite, RunTimedOut, ServiceError
from addnorm.service.runtime.batch import Batch, Rows
from addnorm.service.scheduling.fair_queue import (
    MIN_TOKENS_PER_WORKER,
    Job,
    MicroBatch,
    Queue,
    Target,
)

log = logging.getLogger("addnorm")
TICKS = 10  # of the watchdog, in the longest time a session run may take


class Observer:
    """What the workers tell of their work, on their own threads. What it raises is logged and costs nobody an answer."""

    def computed(self, micro: MicroBatch, rows: list[Rows]) -> None:
        """A micro-batch gave each of its sequences' rows."""

    def failed(self, target: Target) -> None:
        """A session run raised an error."""

    def replaced(self) -> None:
        """A worker that hung was given up, and another started."""


@dataclass(eq=False)
class Worker:
    """What one thread has taken and not yet settled, and for how many ticks its session has run."""

    todo: list[MicroBatch] = field(default_factory=list)
    ticks: int = 0
    thread: threading.Thread = field(init=False)


class Scheduler:
    """A Queue, and the workers before it."""

    def __init__(
        self,
        num_workers: int,
        max_queue_tokens: int,
        run_timeout_s: float = 20.0,
    ) -> None:
        """Starts no thread: see `start`. run_timeout_s: a session run that takes longer is given up."""
        self.num_workers, self.max_queue_tokens, self.run_timeout_s = (
            num_workers,
            max_queue_tokens,
            run_timeout_s,
        )
        self._queue = Queue(max_queue_tokens, num_workers)
        self._observers: Sequence[Observer] = ()
        self._changed = threading.Condition()
        self._closing = False
        self._closed = threading.Event()
        self._workers: list[Worker] = []  # those at work; one that ends or is given up leaves
        self._given_up: list[Worker] = []  # whose session runs have not come back

    def start(self, observers: Sequence[Observer] = ()) -> None:
        """Starts the worker threads and the watchdog."""
        self._observers = observers
        for _ in range(self.num_workers):
            self._start_worker()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    @property
    def num_busy(self) -> int:
        """Workers with a micro-batch in hand."""
        return sum(bool(worker.todo) for worker in self._workers)

    def admit(
        self, timeout_s: float, key: str = "", num_bytes: float = math.inf, model: str | None = None
    ) -> None:
        """Overloaded if a body of so many bytes with so much time is not worth reading: see Queue.admit."""
        with self._changed:
            self._queue.admit(timeout_s, key, num_bytes, model)

    def submit(self, target: Target, batch: Batch, timeout_s: float, key: str = "") -> Job:
        """Admits the batch or raises Overloaded. Cancelling the job's future takes it out again.

        key: the name of the caller's API key; keys take turns.
        """
        now = time.monotonic()
        with self._changed:
            job = self._queue.submit(target, batch, now, now + timeout_s, key)
            self._changed.notify(max(1, self._queue.num_tokens // MIN_TOKENS_PER_WORKER))
        return job

    def submit_first(self, target: Target, batch: Batch) -> Job:
        """Takes the batch whatever waits, and runs it next."""
        with self._changed:
            job = self._queue.submit_first(target, batch, time.monotonic())
            self._changed.notify()
        return job

    @property
    def num_hung(self) -> int:
        """Workers given up whose session runs have not come back: each holds a thread and its memory."""
        with self._changed:
            self._given_up = [worker for worker in self._given_up if worker.thread.is_alive()]
            return len(self._given_up)

    def num_queued_tokens(self) -> int:
        with self._changed:
            return self._queue.num_tokens

    def is_idle(self) -> bool:
        """Whether nothing waits and a worker is free."""
        with self._changed:
            return not self._queue.jobs and self.num_busy < self.num_workers

    def close(self) -> None:
        """Runs what is queued, then ends the workers; does not wait for one that hangs."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._workers, 2 * self.run_timeout_s)
        self._closed.set()

    def _start_worker(self) -> None:
        worker = Worker()
        worker.thread = threading.Thread(
            target=self._serve, args=(worker,), name="worker", daemon=True
        )
        self._workers.append(worker)
        worker.thread.start()

    def _serve(self, worker: Worker) -> None:
        while self._step(worker):
            pass

    def _step(self, worker: Worker) -> bool:
        """Runs one micro-batch; False when the worker has to end. Its locals end with it: an idle worker holds no model."""
        micro = self._next(worker)
        if micro is None:
            return False
        outcome = _run(micro)
        if isinstance(outcome, Exception):
            self._tell(lambda observer: observer.failed(micro.target))
        else:
            self._tell(lambda observer: observer.computed(micro, outcome))
        self._settle(worker, micro, outcome)
        return True

    def _next(self, worker: Worker) -> MicroBatch | None:
        """Waits for work. None once the scheduler closes, or another worker has this one's place."""
        with self._changed:
            worker.ticks = 0
            while worker in self._workers:
                if not worker.todo and (micro := self._take()):
                    worker.todo = [micro]
                if worker.todo:
                    return worker.todo[0]
                if self._closing:
                    self._workers.remove(worker)
                    self._changed.notify_all()
                else:
                    self._changed.wait()
            return None

    def _take(self) -> MicroBatch | None:
        return self._queue.take(time.monotonic(), self.num_workers - self.num_busy)

    def _settle(self, worker: Worker, micro: MicroBatch, outcome: list[Rows] | Exception) -> None:
        with self._changed:
            if worker not in self._workers:
                return  # given up: its jobs have failed already
            del worker.todo[0]
            shares = micro.shares() if isinstance(outcome, Exception) else []
            if len(shares) > 1:
                worker.todo = shares  # once more, job by job: what one job breaks must not cost the others their rows
            else:
                self._queue.settle(micro, outcome, time.monotonic())

    def _watch(self) -> None:
        """Counts its own ticks instead of seconds: that the whole process stood still is no fault of a worker."""
        while not self._closed.wait(self.run_timeout_s / TICKS):
            with self._changed:
                for worker in list(self._workers):
                    worker.ticks += bool(worker.todo)
                    if worker.ticks > TICKS or not worker.thread.is_alive():
                        self._replace(worker)

    def _replace(self, worker: Worker) -> None:
        """Fails the worker's jobs and starts another. What its session may still bring is ignored."""
        self._workers.remove(worker)
        self._given_up.append(worker)
        error = RunTimedOut(
            f"the inference did not end within {self.run_timeout_s:g} s and was given up"
        )
        for micro in worker.todo:
            log.error(
                "a worker hung in %s with %d sequences: replaced",
                micro.target.name,
                len(micro.sequences),
            )
            self._queue.settle(micro, error, time.monotonic())
        self._start_worker()
        self._tell(lambda observer: observer.replaced())

    def _tell(self, tell: Callable[[Observer], None]) -> None:
        for observer in self._observers:
            try:
                tell(observer)
            except Exception:  # whatever it is, it must not end a worker
                log.exception("an observer of the workers failed")


def _run(micro: MicroBatch) -> list[Rows] | Exception:
    try:
        rows = micro.target.run(micro.batch())
        assert [len(row.activations) for row in rows] == [
            sequence.length for sequence in micro.sequences
        ]
        for sequence, own in zip(micro.sequences, rows, strict=True):
            if output := own.not_finite():
                raise NotFinite(output, sequence.at)
    except (
        Exception
    ) as error:  # whatever a session throws must cost these jobs only, never the worker
        return error if isinstance(error, ServiceError) else _internal(error)
    return rows


def _internal(cause: Exception) -> ServiceError:
    error = ServiceError(f"inference failed: {type(cause).__name__}")
    error.__cause__ = cause
    return error
