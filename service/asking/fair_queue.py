"""The queue: which sequences run together, and when. Knows no tensors, HTTP, clock and threads.

Order is decided at three levels.

1. API keys share the worker threads by start-time fair queueing (Goyal, Vin, Cheng 1996), by
   computing time.
2. The targets (model and precision) of a key share the key's part in the same way.
3. Within a key and target, the smallest job and the oldest job take turns (`backlog.py`).

The scheduling unit is the sequence: a micro-batch takes sequences of near-equal length from the
jobs that are next. There is no batching window: the next micro-batch is what queued while the
worker threads were busy.

Bulk jobs are large, and keep nobody waiting: they have backlogs of their own, run in small
micro-batches without company, and leave the last idle worker to other jobs while there are any.
"""

import math
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from itertools import chain, count
from weakref import WeakSet

from addnorm.service.errors import Expired
from addnorm.service.runtime.batch import Batch
from addnorm.service.engine.target import Target
from addnorm.service.asking.job import Job, MicroBatch, Results, SortedJobs, Waiting
from addnorm.service.asking.backlog import Backlog, KeyBacklogs
from addnorm.service.asking.start_time_fairness import StartTimeFairQueue

# CANDIDATE_BATCHES: a micro-batch is chosen from this many micro-batches' worth of waiting tokens.
#   Larger: lengths match better, but odd lengths wait longer. Smaller: more padding in the session
#   (mixed lengths give 59 % real tokens with 1, 78 % with 3, 89 % with 10).
# MIN_TOKENS_PER_WORKER: idle worker threads share what waits, but none gets fewer real tokens than
#   this. Larger: short requests use fewer cores. Smaller: waking a thread costs more than it gains.
# BULK_TOKENS: of a micro-batch of a bulk job, if the token budget is not less. Larger: who asks
#   while bulk jobs take every worker waits longer. Smaller: more is spent on each run.
# ALONE_S: after so long without another job, bulk jobs take every worker. Larger: they are slower
#   beside callers who ask now and then. Smaller: more of those wait for a run of theirs.
CANDIDATE_BATCHES = 3
MIN_TOKENS_PER_WORKER = 16
BULK_TOKENS = 256
ALONE_S = 5.0


class JobQueue:
    """All jobs with sequences that wait. Time is an argument: any number that grows."""

    def __init__(self, num_workers: int = 1) -> None:
        self.num_workers = num_workers
        self.num_tokens = 0  # real tokens that wait, but for those of bulk jobs
        self.num_bulk = 0  # bulk jobs that wait
        self.jobs: dict[int, Job] = {}  # by number
        # targets with jobs that wait, and the backlogs that these are in
        self.active: dict[Target, dict[Backlog, None]] = {}
        # by number: go before all others, each alone, and are in no backlog
        self._first: dict[int, Job] = {}
        self._keys: dict[str, KeyBacklogs] = {}
        self._fairness: StartTimeFairQueue[KeyBacklogs] = StartTimeFairQueue()
        self._deadlines = SortedJobs(lambda job: job.deadline)
        self._done: deque[int] = deque()  # jobs whose future is done; some may still wait
        self._numbers = count()
        self._known: WeakSet[Job] = WeakSet()  # all that are referred to, also those that run
        self._others_at = -math.inf  # when a job that is no bulk job was last added

    def worker_s(self) -> float:
        """Predicted time that one worker thread would need for everything that waits now."""
        return sum(target.s_per_token * target.num_tokens for target in self.active)

    def wait_s(self) -> float:
        """Predicted time until everything that waits now is computed."""
        return self.worker_s() / self.num_workers

    def backlogs(self, key: str) -> Mapping[Target, Backlog]:
        """The backlogs of one API key: one for every target it has asked for."""
        return self._keys[key].by_target if key in self._keys else {}

    def backlog(self, key: str, target: Target, is_bulk: bool = False) -> Backlog:
        return self._keys.setdefault(key, KeyBacklogs()).backlog(target, is_bulk)

    def num_bulk_workers(self, now: float) -> int:
        """How many workers bulk jobs may use: one is left to other jobs while there are any."""
        is_alone = now >= self._others_at + ALONE_S
        return self.num_workers if is_alone else max(1, self.num_workers - 1)

    def add(
        self,
        target: Target,
        batch: Batch,
        now: float,
        deadline: float,
        backlog: Backlog,
        results: Results,
    ) -> Job:
        """Queues the batch as a job of this backlog."""
        job = self._make_job(target, batch, now, deadline, results)
        job.backlog, job.is_bulk = backlog, backlog.is_bulk
        if job.is_bulk:
            self.num_bulk += 1
        else:
            self._others_at = now
        self.active.setdefault(target, {})[backlog] = None
        backlog.add(job)
        self._insert(job)
        backlog.owner.fairness.activate(backlog)
        self._fairness.activate(backlog.owner)
        self._count(job, job.size)
        return job

    def add_first(self, target: Target, batch: Batch, now: float, results: Results) -> Job:
        """Queues the batch before all others. For the server's own known-answer tests, which are
        small and few."""
        job = self._make_job(target, batch, now, math.inf, results)
        self._first[job.number] = job
        self._insert(job)
        self._count(job, job.size)
        return job

    def _make_job(
        self, target: Target, batch: Batch, now: float, deadline: float, results: Results
    ) -> Job:
        job = Job(next(self._numbers), target, batch, now, deadline, results)
        self._known.add(job)
        number = job.number  # the future must not refer to its job: such a cycle would outlive both
        job.future.add_done_callback(lambda _: self._done.append(number))
        return job

    def _insert(self, job: Job) -> None:
        self.jobs[job.number] = job
        self._deadlines.add(job)

    def _remove(self, job: Job) -> None:
        """All its sequences were taken, or nobody waits for it."""
        del self.jobs[job.number]
        self._deadlines.remove(job)
        self._first.pop(job.number, None)
        self._count(job, -job.num_tokens)
        self.num_bulk -= job.is_bulk
        if backlog := job.backlog:
            backlog.remove(job)
            if not backlog.num_jobs:
                del self.active[job.target][backlog]
                if not self.active[job.target]:
                    del self.active[job.target]
        job.waiting = []

    def _count(self, job: Job, num_tokens: int) -> None:
        """So many tokens more wait, or fewer. Those of bulk jobs are in no account but their own:
        many may wait, and others are served meanwhile."""
        job.num_tokens += num_tokens
        if job.is_bulk:
            return
        self.num_tokens += num_tokens
        job.target.num_tokens += num_tokens
        if job.backlog:
            job.backlog.num_tokens += num_tokens

    def take(self, now: float, num_idle: int = 1) -> MicroBatch | None:
        """The next micro-batch: the longest sequence of the job whose turn it is, and sequences of
        similar length.

        num_idle: worker threads without work, this one included. They share what waits, if it may
        be shared out.
        """
        self.sweep(now)
        if self._first:
            return self._take_first(now)
        if not self.jobs:
            return None
        job = self._next(now, num_idle)
        if job is None:
            return None
        target, candidates = job.target, job.waiting
        if job.is_bulk:  # without company, which would wait as long as it runs
            share = BULK_TOKENS
        else:
            share = target.token_budget
            if target.is_shared_out:
                share = max(MIN_TOKENS_PER_WORKER, math.ceil(target.num_tokens / num_idle))
            candidates = self._candidates(job, CANDIDATE_BATCHES * target.token_budget)
        taken = _nearest(candidates, job.waiting[-1], min(target.token_budget, share))
        self._charge(job.backlog, target, taken)
        self._take_out(taken, now)
        return MicroBatch.of(target, taken, now)

    def _take_first(self, now: float) -> MicroBatch:
        job = next(iter(self._first.values()))
        taken = job.waiting
        self._take_out(taken, now)
        return MicroBatch.of(job.target, taken, now)

    def _next(self, now: float, num_idle: int) -> Job | None:
        """The job whose turn it is, where none goes first. None if bulk jobs alone wait, and the
        worker is to be left to others."""
        key = self._fairness.next()
        assert key
        backlog = key.fairness.next()
        assert backlog
        if backlog.is_bulk and self.num_workers - num_idle >= self.num_bulk_workers(now):
            key = self._fairness.next(lambda key: key.num_jobs > key.num_bulk)
            backlog = key.fairness.next(lambda backlog: not backlog.is_bulk) if key else None
        return backlog.order().first() if backlog else None

    def _charge(self, backlog: Backlog, target: Target, taken: list[Waiting]) -> None:
        """Other backlogs pay nothing for their part of the micro-batch: without it the space would
        stay empty."""
        own = [sequence.length for sequence in taken if sequence.job.backlog is backlog]
        backlog.charge(sum(own))
        cost_s = max(sum(own), MIN_TOKENS_PER_WORKER) * target.s_per_token
        backlog.owner.fairness.charge(backlog, cost_s)
        self._fairness.charge(backlog.owner, cost_s)

    def _take_out(self, taken: list[Waiting], now: float) -> None:
        """Takes sequences out of the queue."""
        gone = defaultdict[Job, list[Waiting]](list)
        for sequence in taken:
            self._count(sequence.job, -sequence.length)
            gone[sequence.job].append(sequence)
        for job, sequences in gone.items():
            job.started = now if job.started is None else job.started
            job.wait_no_more(sequences)
            if not job.waiting:
                self._remove(job)

    def _candidates(self, job: Job, num_tokens: int) -> list[Waiting]:
        """About so many tokens of the target, of the jobs that are next, sorted by length.

        If all jobs were candidates, a job's odd lengths would wait while later jobs fill the
        micro-batches, and the gate could not predict when the job is done.
        """
        candidates: list[Waiting] = []
        for other in self._following(job):
            candidates += other.waiting
            num_tokens -= other.num_tokens
            if num_tokens <= 0:
                break
        candidates.sort()
        return candidates

    def _following(self, job: Job) -> Iterator[Job]:
        """The job, then the other jobs of its target in the order of this turn, its own backlog's
        first. Bulk jobs run apart."""
        yield job
        own = job.backlog
        smallest_first = own.is_for_smallest()
        others = (
            backlog
            for backlog in self.active[job.target]
            if backlog is not own and not backlog.is_bulk
        )
        for backlog in chain([own], others):
            jobs = backlog.by_size if smallest_first else backlog.by_age
            yield from (other for other in jobs if other is not job)

    def settle(self, micro: MicroBatch, error: Exception | None, now: float) -> None:
        """The rows of the micro-batch were delivered, or an error came in their place, which fails
        its jobs only."""
        if error is None and not micro.on_all_cores:  # the rate is of one worker
            micro.target.update_rate(micro.num_tokens, now - micro.taken)
        for job, sequences in micro.by_job():
            if error is None:
                job.settle(len(sequences), now)
            else:
                job.fail(error)

    def give_up(self, error: Exception) -> None:
        """Fails every job, also those that run. Of no use after that: another queue must take its
        place."""
        for job in list(self._known):
            job.fail(error)
            job.target.num_tokens = 0
        for owner in self._keys.values():
            for target in owner.by_target:
                target.num_tokens = 0

    def sweep(self, now: float) -> None:
        """Removes the jobs whose caller has left, that failed in part, or whose deadline has
        passed."""
        while self._done:
            if job := self.jobs.get(self._done.popleft()):
                self._remove(job)
        while self._deadlines and (late := self._deadlines.first()).deadline <= now:
            waited_s = now - late.submitted
            late.fail(Expired(f"deadline: it passed after {waited_s:.2f} s in the queue"))
            self._remove(late)


def _nearest(candidates: list[Waiting], anchor: Waiting, budget: int) -> list[Waiting]:
    """The anchor and its neighbours in length: first the shorter ones, then the longer ones, within
    the budget."""
    low = bisect_left(candidates, anchor)
    high, left = low + 1, budget - anchor.length
    while low > 0 and candidates[low - 1].length <= left:
        low -= 1
        left -= candidates[low].length
    while high < len(candidates) and candidates[high].length <= left:
        left -= candidates[high].length
        high += 1
    return candidates[low:high]
