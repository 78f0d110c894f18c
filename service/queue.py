"""Which sequences run together, and when. Knows no tensors, no HTTP, no clock and no threads.

The unit is the sequence: a micro-batch takes sequences of near-equal length from all waiting jobs. There is no
batching window: the next micro-batch is what queued while the lanes were busy.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter
from typing import NamedTuple

from service.batch import Batch, Rows
from service.errors import Expired, Overloaded

WORTH_A_LANE = 16  # real tokens: for fewer, waking a lane costs more than it gains
Run = Callable[[Batch], list[Rows]]  # the one seam: a micro-batch in, each sequence's rows out


class Line:
    """The sequences that wait for one engine, shortest first, and how quickly that engine drains them."""

    def __init__(self, run: Run, token_budget: int, name: str = "") -> None:
        self.run = run
        self.name = name
        self.token_budget = token_budget
        self.waiting: list[Waiting] = []
        self.num_tokens = 0
        self.tokens_per_s: float | None = None  # of one lane, smoothed; None until measured

    def drained(self, num_tokens: int, seconds: float) -> None:
        rate = num_tokens / max(seconds, 1e-6)
        self.tokens_per_s = rate if self.tokens_per_s is None else 0.8 * self.tokens_per_s + 0.2 * rate


@dataclass(eq=False)
class Job:
    """A batch someone waits for. `future` brings each sequence's rows, or the error."""

    due: int  # its turn: tokens served when it arrived, plus its own
    number: int  # of arrival
    line: Line
    batch: Batch
    submitted: float
    deadline: float
    future: Future[list[Rows]] = field(default_factory=Future)
    started: float | None = None  # when its first sequence was taken
    finished: float | None = None

    def __post_init__(self) -> None:
        self.rows: dict[int, Rows] = {}
        self.num_tokens = self.batch.num_tokens  # that wait
        lengths = self.batch.lengths.tolist()
        self.waiting = sorted(Waiting(length, self.number, index, self) for index, length in enumerate(lengths))

    @property
    def tokens_per_s(self) -> float | None:
        return self.line.tokens_per_s

    def fail(self, error: Exception) -> None:
        with suppress(InvalidStateError):  # the caller has gone in the meantime
            self.future.set_exception(error)

    def settle(self, index: int, rows: Rows, now: float) -> None:
        self.rows[index] = rows
        if len(self.rows) == len(self.batch):
            self.finished = now
            with suppress(InvalidStateError):
                self.future.set_result([self.rows[i] for i in range(len(self.batch))])


class Waiting(NamedTuple):
    """One sequence of a job that no lane has taken yet. Sorts by length, then by arrival."""

    length: int
    number: int
    at: int  # its place in the job's batch
    job: Job


class MicroBatch(NamedTuple):
    line: Line
    sequences: list[Waiting]
    taken: float

    def batch(self) -> Batch:
        return Batch.of([job.batch.sequence(at) for _, _, at, job in self.sequences])

    def shares(self) -> list["MicroBatch"]:
        """What of it belongs to each of its jobs."""
        shares: dict[Job, list[Waiting]] = {}
        for sequence in self.sequences:
            shares.setdefault(sequence.job, []).append(sequence)
        return [self._replace(sequences=own) for own in shares.values()]


class Queue:
    """All jobs not yet answered. Time is an argument: any number that grows.

    Turns are fair by size: a job is due once as many tokens as it has itself have been served since it came. So a
    flood of long jobs does not hold up short ones, and no flood of short ones starves a long one.
    """

    def __init__(self, max_tokens: int, num_lanes: int = 1) -> None:
        self.max_tokens = max_tokens
        self.num_lanes = num_lanes
        self.num_tokens = 0  # real ones that wait
        self.jobs: list[Job] = []  # each with sequences that wait, the next one due first
        self._lines: set[Line] = set()  # all that ever had a job here
        self._num_served = 0  # tokens
        self._numbers = count()

    def wait_s(self) -> float:
        """Predicted time until what waits now is computed."""
        return self._seconds(self._lines)

    def submit(self, line: Line, batch: Batch, now: float, deadline: float) -> Job:
        """Admits the batch, or raises Overloaded at the door."""
        job = Job(self._num_served + batch.num_tokens, next(self._numbers), line, batch, now, deadline)
        is_full = self.num_tokens + job.num_tokens > self.max_tokens
        if is_full or now + self.wait_s() + self._seconds([job]) > deadline:
            self._sweep(now)  # with the exact look below it walks all jobs: only what may be refused needs it
            self._refuse(job, now)
        self.jobs.insert(self._place(job), job)
        line.waiting.extend(job.waiting)
        line.waiting.sort()  # two sorted runs: merged in linear time
        self._lines.add(line)
        self._count(job, job.num_tokens)
        return job

    def _refuse(self, job: Job, now: float) -> None:
        """Overloaded if there is no room for the job, or its turn would come too late."""
        if self.num_tokens + job.num_tokens > self.max_tokens:
            raise Overloaded(
                f"the queue holds {self.num_tokens} tokens of {self.max_tokens}: no room for {job.num_tokens} more",
                code="queue_full",
                retry_after_s=self.wait_s(),
            )
        finish_s = self._seconds([*self.jobs[: self._place(job)], job])
        if now + finish_s > job.deadline:
            raise Overloaded(
                f"the answer needs {finish_s:.2f} s, the deadline is in {job.deadline - now:.2f} s",
                code="deadline_not_met",
                retry_after_s=self.wait_s(),
            )

    def _place(self, job: Job) -> int:
        return bisect_right(self.jobs, job.due, key=attrgetter("due"))

    def _count(self, job: Job, num_tokens: int) -> None:
        self.num_tokens += num_tokens
        job.line.num_tokens += num_tokens

    def take(self, now: float, num_idle: int = 1) -> MicroBatch | None:
        """The longest sequence of the job that is due, with those nearest to it in length from any job of its line.

        num_idle: lanes without work, the asking one counted; what waits is shared out among them.
        """
        self._sweep(now)
        if not self.jobs:
            return None
        due = self.jobs[0]
        line = due.line
        budget = min(line.token_budget, max(WORTH_A_LANE, math.ceil(line.num_tokens / num_idle)))
        taken = self._window(line, due.waiting[-1], budget)
        for sequence in taken:
            job = sequence.job
            job.started = now if job.started is None else job.started
            del job.waiting[bisect_left(job.waiting, sequence)]
            job.num_tokens -= sequence.length
            self._count(job, -sequence.length)
            self._num_served += sequence.length
            if not job.waiting:
                self.jobs.remove(job)
        return MicroBatch(line, taken, now)

    def settle(self, micro: MicroBatch, outcome: list[Rows] | Exception, now: float) -> None:
        """Hands each sequence's rows to its job; a failed micro-batch fails its jobs only."""
        if isinstance(outcome, Exception):
            for sequence in micro.sequences:
                sequence.job.fail(outcome)
            return
        micro.line.drained(sum(sequence.length for sequence in micro.sequences), now - micro.taken)
        for sequence, rows in zip(micro.sequences, outcome, strict=True):
            sequence.job.settle(sequence.at, rows, now)

    def _seconds(self, waiting: Iterable[Job] | Iterable[Line]) -> float:
        """Predicted time of what waits of these. A line that was not measured yet counts as instant."""
        rates = ((item.num_tokens, item.tokens_per_s) for item in waiting)
        return sum(num_tokens / (rate * self.num_lanes) for num_tokens, rate in rates if rate)

    def _window(self, line: Line, anchor: Waiting, budget: int) -> list[Waiting]:
        """Cuts the micro-batch out of the line: from the anchor down, then up, while the budget holds."""
        low = bisect_left(line.waiting, anchor)
        high, room = low + 1, budget - anchor.length
        while low > 0 and line.waiting[low - 1].length <= room:
            low -= 1
            room -= line.waiting[low].length
        while high < len(line.waiting) and line.waiting[high].length <= room:
            room -= line.waiting[high].length
            high += 1
        taken = line.waiting[low:high]
        del line.waiting[low:high]
        return taken

    def _sweep(self, now: float) -> None:
        """Drops the jobs whose deadline has passed, whose caller has gone, or that failed in part."""
        for job in [job for job in self.jobs if job.deadline <= now or job.future.done()]:
            job.fail(Expired(f"the deadline passed after {now - job.submitted:.2f} s in the queue"))
            self.jobs.remove(job)
            job.line.waiting = [sequence for sequence in job.line.waiting if sequence.job is not job]
            self._count(job, -job.num_tokens)
