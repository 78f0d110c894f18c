"""The lanes: threads that take from the queue, run, and settle; and the watchdog that replaces one that hangs.

Knows no tensors and no HTTP.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from addnorm.service.errors import LaneStuck, NotFinite, ServiceError
from addnorm.service.runtime.batch import Batch, Rows
from addnorm.service.scheduling.fair_queue import WORTH_A_LANE, Job, Line, MicroBatch, Queue

log = logging.getLogger("addnorm")
TICKS = 10  # of the watchdog, in the longest time a session run may take


class Observer:
    """What the lanes tell of their work, on their own threads. What it raises is logged and costs nobody an answer."""

    def computed(self, micro: MicroBatch, rows: list[Rows]) -> None:
        """A micro-batch gave each of its sequences' rows."""

    def failed(self, line: Line) -> None:
        """A session run raised an error."""

    def replaced(self) -> None:
        """A lane that hung was given up, and another started."""


@dataclass(eq=False)
class Lane:
    """What one thread has taken and not yet settled, and for how many ticks its session has run."""

    todo: list[MicroBatch] = field(default_factory=list)
    ticks: int = 0
    thread: threading.Thread = field(init=False)


class Scheduler:
    """A Queue, and the lanes before it."""

    def __init__(
        self,
        num_lanes: int,
        max_queue_tokens: int,
        observers: Sequence[Observer] = (),
        lane_timeout_s: float = 20.0,
    ) -> None:
        """lane_timeout_s: a session run that takes longer is given up."""
        self.num_lanes, self.max_queue_tokens, self.lane_timeout_s = (
            num_lanes,
            max_queue_tokens,
            lane_timeout_s,
        )
        self._queue = Queue(max_queue_tokens, num_lanes)
        self._observers = observers
        self._changed = threading.Condition()
        self._closing = False
        self._closed = threading.Event()
        self._lanes: list[Lane] = []  # those at work; one that ends or is given up leaves
        self._given_up: list[Lane] = []  # whose session runs have not come back
        for _ in range(num_lanes):
            self._start_lane()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    @property
    def num_busy(self) -> int:
        """Lanes with a micro-batch in hand."""
        return sum(bool(lane.todo) for lane in self._lanes)

    def admit(
        self, timeout_s: float, key: str = "", num_bytes: float = math.inf, model: str | None = None
    ) -> None:
        """Overloaded if a body of so many bytes with so much time is not worth reading: see Queue.admit."""
        with self._changed:
            self._queue.admit(timeout_s, key, num_bytes, model)

    def submit(self, line: Line, batch: Batch, timeout_s: float, key: str = "") -> Job:
        """Admits the batch or raises Overloaded. Cancelling the job's future takes it out again.

        key: the name of the caller's API key; keys take turns.
        """
        now = time.monotonic()
        with self._changed:
            job = self._queue.submit(line, batch, now, now + timeout_s, key)
            self._changed.notify(max(1, self._queue.num_tokens // WORTH_A_LANE))
        return job

    def submit_first(self, line: Line, batch: Batch) -> Job:
        """Takes the batch whatever waits, and runs it next."""
        with self._changed:
            job = self._queue.submit_first(line, batch, time.monotonic())
            self._changed.notify()
        return job

    @property
    def num_hung(self) -> int:
        """Lanes given up whose session runs have not come back: each holds a thread and its memory."""
        with self._changed:
            self._given_up = [lane for lane in self._given_up if lane.thread.is_alive()]
            return len(self._given_up)

    def num_queued_tokens(self) -> int:
        with self._changed:
            return self._queue.num_tokens

    def is_idle(self) -> bool:
        """Whether nothing waits and a lane is free."""
        with self._changed:
            return not self._queue.jobs and self.num_busy < self.num_lanes

    def close(self) -> None:
        """Runs what is queued, then ends the lanes; does not wait for one that hangs."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._lanes, 2 * self.lane_timeout_s)
        self._closed.set()

    def _start_lane(self) -> None:
        lane = Lane()
        lane.thread = threading.Thread(target=self._serve, args=(lane,), name="lane", daemon=True)
        self._lanes.append(lane)
        lane.thread.start()

    def _serve(self, lane: Lane) -> None:
        while self._step(lane):
            pass

    def _step(self, lane: Lane) -> bool:
        """Runs one micro-batch; False when the lane has to end. Its locals end with it: an idle lane holds no model."""
        micro = self._next(lane)
        if micro is None:
            return False
        outcome = _run(micro)
        if isinstance(outcome, Exception):
            self._tell(lambda observer: observer.failed(micro.line))
        else:
            self._tell(lambda observer: observer.computed(micro, outcome))
        self._settle(lane, micro, outcome)
        return True

    def _next(self, lane: Lane) -> MicroBatch | None:
        """Waits for work. None once the scheduler closes, or another lane has this one's place."""
        with self._changed:
            lane.ticks = 0
            while lane in self._lanes:
                if not lane.todo and (micro := self._take()):
                    lane.todo = [micro]
                if lane.todo:
                    return lane.todo[0]
                if self._closing:
                    self._lanes.remove(lane)
                    self._changed.notify_all()
                else:
                    self._changed.wait()
            return None

    def _take(self) -> MicroBatch | None:
        return self._queue.take(time.monotonic(), self.num_lanes - self.num_busy)

    def _settle(self, lane: Lane, micro: MicroBatch, outcome: list[Rows] | Exception) -> None:
        with self._changed:
            if lane not in self._lanes:
                return  # given up: its jobs have failed already
            del lane.todo[0]
            shares = micro.shares() if isinstance(outcome, Exception) else []
            if len(shares) > 1:
                lane.todo = shares  # once more, job by job: what one job breaks must not cost the others their rows
            else:
                self._queue.settle(micro, outcome, time.monotonic())

    def _watch(self) -> None:
        """Counts its own ticks instead of seconds: that the whole process stood still is no fault of a lane."""
        while not self._closed.wait(self.lane_timeout_s / TICKS):
            with self._changed:
                for lane in list(self._lanes):
                    lane.ticks += bool(lane.todo)
                    if lane.ticks > TICKS or not lane.thread.is_alive():
                        self._replace(lane)

    def _replace(self, lane: Lane) -> None:
        """Fails the lane's jobs and starts another. What its session may still bring is ignored."""
        self._lanes.remove(lane)
        self._given_up.append(lane)
        error = LaneStuck(
            f"the inference did not end within {self.lane_timeout_s:g} s and was given up"
        )
        for micro in lane.todo:
            log.error(
                "a lane hung in %s with %d sequences: replaced",
                micro.line.name,
                len(micro.sequences),
            )
            self._queue.settle(micro, error, time.monotonic())
        self._start_lane()
        self._tell(lambda observer: observer.replaced())

    def _tell(self, tell: Callable[[Observer], None]) -> None:
        for observer in self._observers:
            try:
                tell(observer)
            except Exception:  # whatever it is, it must not end a lane
                log.exception("an observer of the lanes failed")


def _run(micro: MicroBatch) -> list[Rows] | Exception:
    try:
        rows = micro.line.run(micro.batch())
        assert [len(row.activations) for row in rows] == [
            sequence.length for sequence in micro.sequences
        ]
        for sequence, own in zip(micro.sequences, rows, strict=True):
            if output := own.not_finite():
                raise NotFinite(output, sequence.at)
    except (
        Exception
    ) as error:  # whatever a session throws must cost these jobs only, never the lane
        return error if isinstance(error, ServiceError) else _internal(error)
    return rows


def _internal(cause: Exception) -> ServiceError:
    error = ServiceError(f"inference failed: {type(cause).__name__}")
    error.__cause__ = cause
    return error
