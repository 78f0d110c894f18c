"""Which sequences run together, and when. Knows no tensors, no HTTP, no clock and no threads.

The unit is the sequence: a micro-batch takes sequences of near-equal length from the jobs whose turn it is. There is no
batching window: the next micro-batch is what queued while the workers were busy.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, count
from typing import NamedTuple
from weakref import WeakKeyDictionary

from addnorm.service.errors import Expired, Overloaded
from addnorm.service.runtime.batch import Batch, Rows
from addnorm.service.scheduling.virtual_time import Flow, Order, Turns

SMALL = 8  # a job is small if the oldest has so many times its tokens
TINY = (
    2 * SMALL
)  # so many times smaller than the mean job is promised its own turns, not the wait of all
MARGIN = 1.2  # on a job's own predicted time: rates are averages
OVERTAKEN = 2  # on the predicted wait: every other turn may be given to small jobs that come later
TURNS = 2  # micro-batches before even the smallest job's: the one that runs, and one of larger jobs
SHARE = 16  # a backlog may hold so many times as many tokens as stay free for others
TRIAL = 3  # times the time that is left: with nothing else to do, a job predicted to take so long is tried
HOPE = 1.05  # what a target's rate rises by with each job that is refused though nothing waits
HARDLY_MORE = (
    1.05  # times the time of one that was refused: who has no more than that is refused too
)
CHOICE = 3  # micro-batches' worth of sequences that one is chosen from
MIN_TOKENS_PER_WORKER = 16  # real tokens: for fewer, waking a worker costs more than it gains
Run = Callable[[Batch], list[Rows]]  # the one seam: a micro-batch in, each sequence's rows out


class Target:
    """How much waits for one engine, and how quickly that engine drains it."""

    def __init__(self, run: Run, token_budget: int, name: str = "", exact: bool = True) -> None:
        """name: of the model; exact: whether a sequence's bits must not depend on its co-batched sequences."""
        self.run, self.name, self.exact = run, name, exact
        self.token_budget = token_budget
        self.num_tokens = 0  # that wait
        self.tokens_per_s: float | None = None  # of one worker, smoothed; None until measured

    @property
    def s_per_token(self) -> float:
        """Of one worker. A target that was not measured yet counts as instant."""
        return 1 / self.tokens_per_s if self.tokens_per_s else 0.0

    def hope(self) -> None:
        """A job was refused for this rate alone: the rate may be of a bad moment."""
        if self.tokens_per_s:
            self.tokens_per_s *= HOPE

    def drained(self, num_tokens: int, seconds: float) -> None:
        """A run of half the budget or more shows how quick the target is when much waits; a smaller one only the least."""
        rate = num_tokens / max(seconds, 1e-6)
        if self.tokens_per_s is None:
            self.tokens_per_s = rate
        elif 2 * num_tokens >= self.token_budget or rate > self.tokens_per_s:
            self.tokens_per_s += 0.2 * (rate - self.tokens_per_s)


@dataclass(eq=False)
class Job:
    """A batch someone waits for. `future` brings each sequence's rows, or the error."""

    number: int  # of arrival
    target: Target
    batch: Batch
    submitted: float
    deadline: float
    backlog: "Backlog | None"  # None: it goes before all others
    future: Future[list[Rows]] = field(default_factory=Future)
    started: float | None = None  # when its first sequence was taken
    finished: float | None = None

    def __post_init__(self) -> None:
        self.rows: dict[int, Rows] = {}
        self.size = self.num_tokens = self.batch.num_tokens  # all, and those that wait
        lengths = self.batch.lengths.tolist()
        self.waiting = sorted(
            Waiting(length, self.number, index, self) for index, length in enumerate(lengths)
        )

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
    """One sequence of a job that no worker has taken yet. Sorts by length, then by arrival."""

    length: int
    number: int
    at: int  # its place in the job's batch
    job: Job


class MicroBatch(NamedTuple):
    target: Target
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


class Shut(NamedTuple):
    """Who is refused unread: who has no more time than one that was refused, and may have as many tokens."""

    time_s: float
    num_tokens: int
    above: int  # while more than so many of the backlog's tokens wait
    code: str


class Backlog(Flow):
    """The jobs of one caller for one target.

    Turns alternate between the smallest job and the oldest. Both get as many tokens where the smallest is SMALL times
    smaller; else the oldest gets SMALL times as many. So a small job waits for one micro-batch of larger ones, no flood
    of small ones more than doubles the wait of a large one, and jobs of about one size run in the order of arrival:
    were they to take turns, all would be late together.
    """

    def __init__(self, caller: "Caller") -> None:
        self.caller = caller
        self.by_age: Order[Job] = Order()
        self.by_size: Order[Job] = Order()
        self.num_tokens = 0  # that wait
        self.shut: Shut | None = None
        self._ahead = 0  # tokens that the smallest were given more than the oldest

    def add(self, job: Job) -> None:
        self.by_age.add(job.number, job.number, job)
        self.by_size.add(job.size, job.number, job)
        self.num_jobs += 1
        self.caller.num_jobs += 1

    def remove(self, job: Job) -> None:
        self.by_age.remove(job.number, job.number)
        self.by_size.remove(job.size, job.number)
        self.num_jobs -= 1
        self.caller.num_jobs -= 1

    def order(self) -> "Order[Job]":
        return self.by_size if self.is_for_smallest() else self.by_age

    def is_for_smallest(self) -> bool:
        """Whose turn it is, the smallest job's or the oldest's."""
        return self._ahead <= 0 and self.by_size.first().size < self.by_age.first().size

    def num_before(self, job: Job) -> int:
        """Tokens that are taken before a new job: all that wait, or before a tiny one those of jobs as small."""
        if TINY * job.size * self.num_jobs > self.num_tokens:
            return self.num_tokens
        return job.size * self.by_size.num_up_to(job.size)

    def served(self, num_tokens: int) -> None:
        """The job whose turn it was was given so many. Call before any job leaves."""
        smallest, oldest = self.by_size.first().size, self.by_age.first().size
        if self.is_for_smallest():
            self._ahead += num_tokens if SMALL * smallest <= oldest else SMALL * num_tokens
        elif smallest < oldest:
            self._ahead -= num_tokens


class Caller(Flow):
    """What one API key has in the queue: a backlog for each target, which take turns. Without keys there is one caller.

    A target that is served no more goes with its backlog: neither here nor in `Backlog` does anything else hold it.
    """

    def __init__(self) -> None:
        self.backlogs: WeakKeyDictionary[Target, Backlog] = (
            WeakKeyDictionary()
        )  # of every target it has asked for
        self.turns: Turns[Backlog] = Turns()

    def backlog(self, target: Target) -> Backlog:
        if target not in self.backlogs:
            self.backlogs[target] = Backlog(self)
        return self.backlogs[target]


class Queue:
    """All jobs not yet answered. Time is an argument: any number that grows.

    API keys take turns, by the compute time that they are given; then the targets of a key; then the jobs of a line.
    """

    def __init__(self, max_tokens: int, num_workers: int = 1) -> None:
        self.max_tokens = max_tokens
        self.num_workers = num_workers
        self.num_tokens = 0  # real ones that wait
        self.jobs: dict[int, Job] = {}  # by number, each with sequences that wait
        self._first: dict[int, Job] = {}  # of these the ones that go before all others
        self._targets: dict[Target, dict[Backlog, None]] = {}  # those with jobs that wait
        self._callers: dict[str, Caller] = {}
        self._turns: Turns[Caller] = Turns()
        self._deadlines: Order[Job] = Order()
        self._done: deque[int] = (
            deque()
        )  # numbers of jobs whose future is done, maybe while they still wait
        self._numbers = count()

    def wait_s(self) -> float:
        """Predicted time until what waits now is computed."""
        return (
            sum(target.s_per_token * target.num_tokens for target in self._targets)
            / self.num_workers
        )

    def admit(
        self, time_s: float, key: str = "", num_bytes: float = math.inf, model: str | None = None
    ) -> None:
        """Overloaded if the same was just refused: a refusal is cheapest before the body is read.

        num_bytes: of the body, which has no more tokens than bytes. model: None where only the body says. Then
        requests are refused unread only while every target that the key has asked for refuses.
        """
        caller = self._callers.get(key)
        backlogs = caller.backlogs.items() if caller else ()
        shut = [backlog.shut for target, backlog in backlogs if model in (None, target.name)]
        refusals = [refusal for refusal in shut if refusal and _refuses(refusal, time_s, num_bytes)]
        if shut and len(refusals) == len(shut):
            raise self._just_refused(refusals[0])

    def _just_refused(self, shut: Shut) -> Overloaded:
        why = f"{self.num_tokens} tokens wait: one with as much time was just refused"
        return Overloaded(why, code=shut.code, retry_after_s=self.wait_s())

    def submit(
        self, target: Target, batch: Batch, now: float, deadline: float, key: str = ""
    ) -> Job:
        """Admits the batch of the API key with this name. Overloaded at the door; Expired if its time is over."""
        if deadline <= now:
            raise Expired("the deadline passed before the request was read")
        self._sweep(now)
        backlog = self._callers.setdefault(key, Caller()).backlog(target)
        job = Job(next(self._numbers), target, batch, now, deadline, backlog)
        if self._is_full(job, backlog):
            full = f"the queue holds {self.num_tokens} tokens of {self.max_tokens}: no room for {job.size} more"
            raise self._refusal(job, backlog, full, "queue_full", math.inf)
        if backlog.shut and _refuses(backlog.shut, deadline - now, TINY * job.size):
            raise self._just_refused(backlog.shut)
        finish_s = self._finish_s(job, backlog)
        if not self.num_tokens:
            _try(job, finish_s, deadline - now)
        elif now + finish_s > deadline:
            late = f"the answer needs {finish_s:.3g} s, the deadline is in {deadline - now:.3g} s"
            raise self._refusal(
                job, backlog, late, "deadline_not_met", HARDLY_MORE * (deadline - now)
            )
        self._insert(job)
        backlog.caller.turns.enter(backlog)
        self._turns.enter(backlog.caller)
        return job

    def submit_first(self, target: Target, batch: Batch, now: float) -> Job:
        """Past the door and before all others: for the server's own questions, which are small and few."""
        job = Job(next(self._numbers), target, batch, now, math.inf, None)
        self._first[job.number] = job
        self._insert(job)
        return job

    def _is_full(self, job: Job, backlog: Backlog) -> bool:
        """A backlog leaves a part of the room to others, and its large jobs leave some to its small ones."""
        left = self.max_tokens - self.num_tokens - job.size
        return bool(self.num_tokens) and backlog.num_tokens + job.size > SHARE * left

    def _refusal(
        self, job: Job, backlog: Backlog, why: str, code: str, shut_for_s: float
    ) -> Overloaded:
        """Shuts the door, for all like it, until a micro-batch of the backlog has been taken. Then who comes first is
        admitted, whatever its size: were the door open for each gap, only the smallest would ever pass."""
        if 2 * job.size <= backlog.num_tokens:  # else it is refused for its own size
            mean = backlog.num_tokens // backlog.num_jobs
            backlog.shut = Shut(
                shut_for_s, mean, backlog.num_tokens - job.target.token_budget, code
            )
        return Overloaded(why, code=code, retry_after_s=self.wait_s())

    def _finish_s(self, job: Job, backlog: Backlog) -> float:
        """Predicted time until the job is computed: after all that waits, or sooner if its turns come sooner."""
        own_s = MARGIN * job.size * job.target.s_per_token / self.num_workers
        last_s = own_s + OVERTAKEN * self.wait_s()
        if job.submitted + last_s <= job.deadline:
            return last_s  # as most are; the rest takes longer to find out
        before_s = TURNS * max(
            (target.token_budget * target.s_per_token for target in self._targets), default=0.0
        )
        return min(
            last_s, own_s + before_s + OVERTAKEN * self._others_s(job, backlog) / self.num_workers
        )

    def _others_s(self, job: Job, backlog: Backlog) -> float:
        """Worker time of others until the job is computed, if each flow beside its own gets no more than its own does."""
        own_s = job.size * job.target.s_per_token
        wait_s = backlog.num_before(job) * job.target.s_per_token
        targets_s, callers_s = 0.0, dict[Caller, float]()
        for target, backlogs in self._targets.items():
            for other in backlogs:
                other_s = other.num_tokens * target.s_per_token
                if other.caller is not backlog.caller:
                    callers_s[other.caller] = callers_s.get(other.caller, 0.0) + other_s
                elif other is not backlog:
                    targets_s += min(wait_s + own_s, other_s)
        wait_s += targets_s
        return wait_s + sum(min(wait_s + own_s, other_s) for other_s in callers_s.values())

    def _insert(self, job: Job) -> None:
        self.jobs[job.number] = job
        self._deadlines.add(job.deadline, job.number, job)
        backlogs = self._targets.setdefault(job.target, {})
        if job.backlog:
            backlogs[job.backlog] = None
            job.backlog.add(job)
        self._count(job, job.num_tokens)
        number = (
            job.number
        )  # the future must not hold its job: such a cycle would outlive the answer
        job.future.add_done_callback(lambda _: self._done.append(number))

    def _remove(self, job: Job) -> None:
        """Once nothing of it waits any more, or nobody waits for it."""
        del self.jobs[job.number]
        self._deadlines.remove(job.deadline, job.number)
        self._first.pop(job.number, None)
        self._count(job, -job.num_tokens)
        if job.backlog:
            job.backlog.remove(job)
            if not job.backlog.num_jobs:
                del self._targets[job.target][job.backlog]
        if not job.target.num_tokens:
            del self._targets[job.target]

    def _count(self, job: Job, num_tokens: int) -> None:
        self.num_tokens += num_tokens
        job.target.num_tokens += num_tokens
        if backlog := job.backlog:
            backlog.num_tokens += num_tokens
            if backlog.shut and backlog.num_tokens <= backlog.shut.above:
                backlog.shut = None

    def take(self, now: float, num_idle: int = 1) -> MicroBatch | None:
        """The longest sequence of the job whose turn it is, with those nearest to it in length from any of its target.

        num_idle: workers without work, the asking one counted; what waits is shared out among them.
        """
        self._sweep(now)
        if not self.jobs:
            return None
        job = self._next()
        target = job.target
        budget = min(
            target.token_budget, max(MIN_TOKENS_PER_WORKER, math.ceil(target.num_tokens / num_idle))
        )
        taken = _window(self._near(job, CHOICE * target.token_budget), job.waiting[-1], budget)
        if job.backlog:
            self._served(job.backlog, target, taken)
        for sequence in taken:
            self._leave(sequence, now)
        return MicroBatch(target, taken, now)

    def _next(self) -> Job:
        if self._first:
            return next(iter(self._first.values()))
        return self._turns.next().turns.next().order().first()

    def _served(self, backlog: Backlog, target: Target, taken: list[Waiting]) -> None:
        """What others have in the micro-batch is not charged to them: it fills what would stay empty."""
        num_tokens = sum(sequence.length for sequence in taken if sequence.job.backlog is backlog)
        backlog.served(num_tokens)
        cost_s = max(num_tokens, MIN_TOKENS_PER_WORKER) * target.s_per_token
        backlog.caller.turns.served(cost_s)
        self._turns.served(cost_s)

    def _leave(self, sequence: Waiting, now: float) -> None:
        job = sequence.job
        job.started = now if job.started is None else job.started
        del job.waiting[bisect_left(job.waiting, sequence)]
        job.num_tokens -= sequence.length
        self._count(job, -sequence.length)
        if not job.waiting:
            self._remove(job)

    def _near(self, job: Job, num_tokens: int) -> list[Waiting]:
        """About so many tokens of the target, of the jobs that are next, sorted by length. Were all to choose from, a
        job's odd lengths would wait while later jobs fill the micro-batches, and deadlines could not be promised."""
        near: list[Waiting] = []
        for other in self._following(job):
            near += other.waiting
            num_tokens -= other.num_tokens
            if num_tokens <= 0:
                break
        near.sort()
        return near

    def _following(self, job: Job) -> Iterator[Job]:
        """The job and those of its target in the same order, its own backlog's before others'."""
        yield job
        smallest = job.backlog is not None and job.backlog.is_for_smallest()
        others = (backlog for backlog in self._targets[job.target] if backlog is not job.backlog)
        for backlog in chain([job.backlog] if job.backlog else [], others):
            yield from (
                other
                for other in (backlog.by_size if smallest else backlog.by_age)
                if other is not job
            )

    def settle(self, micro: MicroBatch, outcome: list[Rows] | Exception, now: float) -> None:
        """Hands each sequence's rows to its job; a failed micro-batch fails its jobs only."""
        if isinstance(outcome, Exception):
            for sequence in micro.sequences:
                sequence.job.fail(outcome)
            return
        micro.target.drained(
            sum(sequence.length for sequence in micro.sequences), now - micro.taken
        )
        for sequence, rows in zip(micro.sequences, outcome, strict=True):
            sequence.job.settle(sequence.at, rows, now)

    def _sweep(self, now: float) -> None:
        """Drops the jobs whose caller has gone, that failed in part, or whose deadline has passed."""
        while self._done:
            if job := self.jobs.get(self._done.popleft()):
                self._remove(job)
        while self._deadlines and (late := self._deadlines.first()).deadline <= now:
            late.fail(
                Expired(f"the deadline passed after {now - late.submitted:.2f} s in the queue")
            )
            self._remove(late)


def _try(job: Job, finish_s: float, left_s: float) -> None:
    """Expired for a job that cannot be in time though nothing waits before it. Where that is not sure it is tried: only
    what runs corrects a rate, and one that was measured in a bad moment must not refuse for ever."""
    if finish_s > TRIAL * left_s:
        job.target.hope()
        raise Expired(
            f"computing takes about {1000 * finish_s:.0f} ms, {1000 * left_s:.0f} ms are left: allow more time, or send"
            " less at once"
        )


def _refuses(shut: Shut, time_s: float, num_bytes: float) -> bool:
    return time_s <= shut.time_s and num_bytes >= shut.num_tokens


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
