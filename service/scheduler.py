"""The lanes: threads that take from the queue, run, and settle. Knows no tensors and no HTTP."""

import threading
import time
from collections.abc import Callable

from service.batch import Batch, Rows
from service.errors import ServiceError
from service.queue import WORTH_A_LANE, Job, Line, MicroBatch, Queue

Observe = Callable[[str, list[int]], None]


class Scheduler:
    """A Queue, and the lanes: threads that take from it, run, and settle."""

    def __init__(self, num_lanes: int, max_queue_tokens: int, observe: Observe = lambda name, lengths: None) -> None:
        """observe: called with each computed micro-batch's line's name and its sequences' lengths."""
        self.num_lanes, self.max_queue_tokens = num_lanes, max_queue_tokens
        self._queue = Queue(max_queue_tokens, num_lanes)
        self._observe = observe
        self.num_busy = 0
        self._changed = threading.Condition()
        self._closing = False
        self._lanes = [threading.Thread(target=self._lane, name=f"lane-{i}", daemon=True) for i in range(num_lanes)]
        for lane in self._lanes:
            lane.start()

    def submit(self, line: Line, batch: Batch, timeout_s: float) -> Job:
        """Admits the batch or raises Overloaded. Cancelling the job's future takes it out again."""
        now = time.monotonic()
        with self._changed:
            job = self._queue.submit(line, batch, now, now + timeout_s)
            self._changed.notify(max(1, self._queue.num_tokens // WORTH_A_LANE))
        return job

    def num_queued_tokens(self) -> int:
        with self._changed:
            return self._queue.num_tokens

    def close(self) -> None:
        """Runs what is queued, then ends the lanes."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for lane in self._lanes:
            lane.join()

    def _lane(self) -> None:
        while (micro := self._next()) is not None:
            outcome = _run(micro)
            if not isinstance(outcome, Exception):
                self._observe(micro.line.name, [sequence.length for sequence in micro.sequences])
            with self._changed:
                self.num_busy -= 1
                self._queue.settle(micro, outcome, time.monotonic())

    def _next(self) -> MicroBatch | None:
        with self._changed:
            while (micro := self._take()) is None and not self._closing:
                self._changed.wait()
            self.num_busy += micro is not None
            return micro

    def _take(self) -> MicroBatch | None:
        return self._queue.take(time.monotonic(), self.num_lanes - self.num_busy)


def _run(micro: MicroBatch) -> list[Rows] | Exception:
    try:
        return micro.line.run(micro.batch())
    except Exception as error:  # whatever a session throws must cost these jobs only, never the lane
        return error if isinstance(error, ServiceError) else _internal(error)


def _internal(cause: Exception) -> ServiceError:
    error = ServiceError(f"inference failed: {type(cause).__name__}")
    error.__cause__ = cause
    return error
