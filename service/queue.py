"""Which sequences run together, and when. Knows no tensors, no HTTP, no clock and no threads.

The unit is the sequence: a micro-batch takes sequences of near-equal length from the jobs that are due next. There is no
batching window: the next micro-batch is what queued while the lanes were busy.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, islice
from operator import attrgetter
from typing import NamedTuple

from service.batch import Batch, Rows
from service.errors import Expired, Overloaded

MARGIN = 1.2  # on predicted times: rates are averages, and past capacity refusals take their share of the cores
HARDLY_MORE = 1.05  # times the time of one that was refused: who has no more than that is refused too
CHOICE = 3  # micro-batches' worth of sequences that one is chosen from
WORTH_A_LANE = 16  # real tokens: for fewer, waking a lane costs more than it gains
Run = Callable[[Batch], list[Rows]]  # the one seam: a micro-batch in, each sequence's rows out


class Line:
    """How much waits for one engine, and how quickly that engine drains it."""

    def __init__(self, run: Run, token_budget: int, name: str = "", exact: bool = True) -> None:
        """name: of the model; exact: whether a sequence's bits must not depend on its company."""
        self.run, self.name, self.exact = run, name, exact
        self.token_budget = token_budget
        self.num_tokens = 0  # that wait
        self.tokens_per_s: float | None = None  # of one lane, smoothed; None until measured

    @property
    def s_per_token(self) -> float:
        """Of one lane. A line that was not measured yet counts as instant."""
        return 1 / self.tokens_per_s if self.tokens_per_s else 0.0

    def drained(self, num_tokens: int, seconds: float) -> None:
        """A run of half the budget or more shows how quick the line is when much waits; a smaller one only the least."""
        rate = num_tokens / max(seconds, 1e-6)
        if self.tokens_per_s is None:
            self.tokens_per_s = rate
        elif 2 * num_tokens >= self.token_budget or rate > self.tokens_per_s:
            self.tokens_per_s += 0.2 * (rate - self.tokens_per_s)


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
        self._lines: set[Line] = set()  # those with sequences that wait
        self._num_served = 0  # tokens
        self._numbers = count()
        self._shut_for_s = 0.0  # who has no more time is refused at the door,
        self._shut_above = -1  # while more tokens wait than these
        self._shut_code = ""

    def wait_s(self) -> float:
        """Predicted time until what waits now is computed."""
        return sum(self._lanes_s(line, line.num_tokens) for line in self._lines)

    def admit(self, time_s: float) -> None:
        """Overloaded if one with as much time was just refused: a refusal is cheapest before anything is read."""
        if time_s <= self._shut_for_s:
            raise Overloaded(
                f"{self.num_tokens} tokens wait: one with as much time was just refused",
                code=self._shut_code,
                retry_after_s=self.wait_s(),
            )

    def submit(self, line: Line, batch: Batch, now: float, deadline: float) -> Job:
        """Admits the batch, last if that is what its time allows. Overloaded at the door; Expired if its time is over."""
        if deadline <= now:
            raise Expired("the deadline passed before the request was read")
        job = Job(self._num_served + batch.num_tokens, next(self._numbers), line, batch, now, deadline)
        if self.num_tokens + job.num_tokens > self.max_tokens:
            self._sweep(now)
        if self.num_tokens + job.num_tokens > self.max_tokens:
            full = f"the queue holds {self.num_tokens} tokens of {self.max_tokens}: no room for {job.num_tokens} more"
            raise self._refusal(job, full, "queue_full", math.inf)
        if self._may_be_late(job, now) and (late := self._late(job, now)):
            job.due = max(job.due, self.jobs[-1].due if self.jobs else 0)  # it may have the time to come last
            if self._late(job, now):
                raise self._refusal(job, late, "deadline_not_met", HARDLY_MORE * (deadline - now))
        return self._insert(job)

    def submit_first(self, line: Line, batch: Batch, now: float) -> Job:
        """Past the door and before all others: for the server's own questions, which are small and few."""
        return self._insert(Job(0, next(self._numbers), line, batch, now, math.inf))

    def _refusal(self, job: Job, why: str, code: str, shut_for_s: float) -> Overloaded:
        """Shuts the door, for all with no more time, until a micro-batch has been taken. Then who comes first is
        admitted, whatever its size: were the door open for each gap, only the smallest would ever pass."""
        if job.num_tokens <= job.line.token_budget < self.num_tokens:  # else it is refused for its own size
            self._shut_code, self._shut_for_s = code, max(shut_for_s, self._shut_for_s)
            self._shut_above = self.num_tokens - job.line.token_budget
        return Overloaded(why, code=code, retry_after_s=self.wait_s())

    def _may_be_late(self, job: Job, now: float) -> bool:
        """False if everyone would be answered in time even as the last."""
        company = sum(self._lanes_s(line, self._most_company(line)) for line in self._lines)
        last = now + MARGIN * (self.wait_s() + self._lanes_s(job.line, job.num_tokens) + company)
        return last > job.deadline or last > min(map(attrgetter("deadline"), self.jobs), default=math.inf)

    def _late(self, job: Job, now: float) -> str | None:
        """Why the job cannot be admitted: it would be late, or make one late that was admitted before."""
        place, own_s = self._place(job), self._lanes_s(job.line, job.num_tokens)
        finishes = self._finishes_s([*self.jobs[:place], job, *self.jobs[place:]])
        finish_s = MARGIN * next(islice(finishes, place, None))
        if now + finish_s > job.deadline:
            return f"the answer needs {finish_s:.3g} s, the deadline is in {job.deadline - now:.3g} s"
        for other, with_s in zip(self.jobs[place:], finishes, strict=True):
            # one that cannot make it anyway holds up nobody
            if now + with_s - own_s <= other.deadline < now + MARGIN * with_s:
                return f"the answer would take {own_s:.3g} s from one that is due in {other.deadline - now:.3g} s"
        return None

    def _finishes_s(self, jobs: list[Job]) -> Iterator[float]:
        """When each would be computed, if they ran in this order: after those before it, and as many tokens of later
        ones, now or then, as may share a micro-batch with any of them."""
        finish_s, room = 0.0, {line: self._most_company(line) for line in self._lines}
        for job in jobs:
            line = job.line
            finish_s += self._lanes_s(line, job.num_tokens)
            if left := room.get(line):  # each of its sequences anchors a micro-batch at most
                company = min(left, max(0, len(job.waiting) * line.token_budget - job.num_tokens))
                room[line] = left - company
                finish_s += self._lanes_s(line, company)
            yield finish_s

    def _most_company(self, line: Line) -> int:
        return min(line.num_tokens, CHOICE * line.token_budget)

    def _lanes_s(self, line: Line, num_tokens: int) -> float:
        """Predicted time in which the lanes together compute so much of a line."""
        return num_tokens * line.s_per_token / self.num_lanes

    def _place(self, job: Job) -> int:
        return bisect_right(self.jobs, job.due, key=attrgetter("due"))

    def _insert(self, job: Job) -> Job:
        self.jobs.insert(self._place(job), job)
        self._count(job, job.num_tokens)
        return job

    def _count(self, job: Job, num_tokens: int) -> None:
        self.num_tokens += num_tokens
        job.line.num_tokens += num_tokens
        (self._lines.add if job.line.num_tokens else self._lines.discard)(job.line)
        if self.num_tokens <= self._shut_above:
            self._shut_for_s, self._shut_above = 0.0, -1

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
        taken = _window(self._near(line, CHOICE * line.token_budget), due.waiting[-1], budget)
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

    def _near(self, line: Line, num_tokens: int) -> list[Waiting]:
        """About so many tokens of the line, of the jobs due first, sorted by length. Were all to choose from, a job's
        odd lengths would wait while later jobs fill the micro-batches, and deadlines could not be promised."""
        near: list[Waiting] = []
        for job in self.jobs:
            if job.line is line:
                near += job.waiting
                num_tokens -= job.num_tokens
                if num_tokens <= 0:
                    break
        near.sort()
        return near

    def settle(self, micro: MicroBatch, outcome: list[Rows] | Exception, now: float) -> None:
        """Hands each sequence's rows to its job; a failed micro-batch fails its jobs only."""
        if isinstance(outcome, Exception):
            for sequence in micro.sequences:
                sequence.job.fail(outcome)
            return
        micro.line.drained(sum(sequence.length for sequence in micro.sequences), now - micro.taken)
        for sequence, rows in zip(micro.sequences, outcome, strict=True):
            sequence.job.settle(sequence.at, rows, now)

    def _sweep(self, now: float) -> None:
        """Drops the jobs whose deadline has passed, whose caller has gone, or that failed in part."""
        for job in [job for job in self.jobs if job.deadline <= now or job.future.done()]:
            job.fail(Expired(f"the deadline passed after {now - job.submitted:.2f} s in the queue"))
            self.jobs.remove(job)
            self._count(job, -job.num_tokens)


def _window(near: list[Waiting], anchor: Waiting, budget: int) -> list[Waiting]:
    """The micro-batch: from the anchor down, then up, while the budget holds."""
    low = bisect_left(near, anchor)
    high, room = low + 1, budget - anchor.length
    while low > 0 and near[low - 1].length <= room:
        low -= 1
        room -= near[low].length
    while high < len(near) and near[high].length <= room:
        room -= near[high].length
        high += 1
    return near[low:high]
