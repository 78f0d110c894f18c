"""Admission control by prediction, and load shedding. Knows no tensors, HTTP, clock and threads.

A job is admitted if the queue has space for it, and if it is predicted to be computed before its
deadline. After a rejection, load is shed: similar requests are rejected before their body is read.
"""

import math
from typing import NamedTuple
from weakref import WeakKeyDictionary

from addnorm.service.errors import DeadlineNotMet, Expired, Overloaded, QueueFull
from addnorm.service.runtime.batch import Batch
from addnorm.service.scheduling.job import AllRows, Job, Results, Target
from addnorm.service.scheduling.queue.backlog import SMALL_RATIO, Backlog, KeyBacklogs
from addnorm.service.scheduling.queue.fair_queue import JobQueue

# The figures are of a simulated flood (`flood` in tests/scheduling/test_fairness.py): five times
# the capacity, one second for each job. What the values must achieve is tested there.
#
# Prediction
# OWN_MARGIN: on the predicted time of the job itself, because rates are averages. Larger: more jobs
#   are rejected that would be in time. Smaller: jobs that nothing delays come slightly late.
# WAIT_FACTOR: on the predicted time of what waits, because smaller jobs that come later may get
#   every other turn. With 1, 40 % of the admitted jobs are late. Larger: waits are shorter, and
#   more jobs are rejected that would be in time. Smaller: less is left for load that comes later.
# BATCHES_BEFORE: micro-batches before even the smallest job: the present one, and one of larger
#   jobs. Larger: small jobs with little time are rejected behind long ones. Smaller: they are late.
# TINY_RATIO: a job this many times smaller than the mean waiting job is predicted by its own turns
#   instead of all that waits. Larger: fewer small jobs are admitted behind long ones. Smaller:
#   small jobs fill the queue (with 4, admitted jobs have 81 % of the mean size; with 16, 98 %).
OWN_MARGIN = 1.2
WAIT_FACTOR = 2
BATCHES_BEFORE = 2
TINY_RATIO = 2 * SMALL_RATIO
# Limits
# MAX_BACKLOG_RATIO: a backlog may hold this many times the tokens that it leaves free. Larger: one
#   key and model leave less space to others. Smaller: they cannot use an otherwise empty queue.
# TRIAL_RATIO: if nothing waits, a job runs as a trial unless it is predicted to take this many
#   times the time it has. Larger: more is computed that comes late. Smaller: a rate measured in a
#   bad moment rejects for longer.
# SIMILAR_TIME: load shedding also covers requests with this many times the time of the rejected
#   one. Larger: requests are rejected that might be admitted. Smaller: requests with nearly equal
#   times are each read before they are rejected.
MAX_BACKLOG_RATIO = 16
TRIAL_RATIO = 3
SIMILAR_TIME = 1.05


class LoadShedding(NamedTuple):
    """After a rejection: which requests for the backlog are rejected too, and for how long."""

    time_s: float  # those with no more time than this
    num_tokens: int  # that may have as many tokens as this, or more
    until_num_tokens: int  # while more than this many of the backlog's tokens wait
    kind: type[Overloaded]  # of the first rejection

    def covers(self, time_s: float, token_bound: float) -> bool:
        """token_bound: the request has no more tokens than this."""
        return time_s <= self.time_s and token_bound >= self.num_tokens


class Arrival(NamedTuple):
    """A batch that asks for admission."""

    target: Target
    backlog: Backlog  # that it would join
    num_tokens: int  # that must be computed for it
    time_s: float  # until its deadline

    @property
    def worker_s(self) -> float:
        """Predicted time of one worker thread."""
        return self.num_tokens * self.target.s_per_token


class AdmissionControl:
    """Stands before a queue. Time is an argument: any number that grows."""

    def __init__(self, queue: JobQueue, max_queue_tokens: int) -> None:
        """max_queue_tokens: that may wait in the queue."""
        self.queue, self.max_queue_tokens = queue, max_queue_tokens
        self._shedding: WeakKeyDictionary[Backlog, LoadShedding] = WeakKeyDictionary()

    @property
    def is_shedding(self) -> bool:
        """Whether `admit` may reject anything."""
        return bool(self._shedding)

    def admit(
        self, time_s: float, key: str = "", num_bytes: float = math.inf, model: str | None = None
    ) -> None:
        """Overloaded if load shedding covers the request. It is cheapest to reject before the body
        is read.

        num_bytes: of the body, which has no more tokens than bytes. model: None if only the body
        names it. Then the request is rejected only if load shedding covers it for every target that
        the key has asked for.
        """
        asked = self.queue.backlogs(key).items()
        backlogs = [backlog for target, backlog in asked if model in (None, target.name)]
        shed = [self._shed(backlog, time_s, num_bytes) for backlog in backlogs]
        if shed and shed[0] and all(shed):
            raise self._overloaded(shed[0].kind)

    def submit(
        self,
        target: Target,
        batch: Batch,
        now: float,
        deadline: float,
        key: str = "",
        results: Results | None = None,
        is_piece: bool = False,
    ) -> Job:
        """Queues the batch for the API key of this name. Overloaded or Expired if it is not
        admitted.

        results: a row for each token if None. is_piece: of a bulk request, which was admitted as a
        whole.
        """
        results = results or AllRows(batch)
        if deadline <= now:
            raise Expired("deadline: it passed before the request was read")
        self.queue.sweep(now)
        backlog = self.queue.backlog(key, target)
        if not is_piece:
            self._check(Arrival(target, backlog, batch.num_tokens, deadline - now))
        return self.queue.add(target, batch, now, deadline, backlog, results, is_piece)

    def _check(self, arrival: Arrival) -> None:
        if self._is_full(arrival):
            raise self._rejected_as_full(arrival)
        if shed := self._shed(arrival.backlog, arrival.time_s, TINY_RATIO * arrival.num_tokens):
            raise self._overloaded(shed.kind)
        finish_s = self._finish_s(arrival)
        if not self.queue.num_tokens:
            _check_trial(arrival, finish_s)
        elif finish_s > arrival.time_s:
            raise self._rejected_as_late(arrival, finish_s)

    def _is_full(self, arrival: Arrival) -> bool:
        """A backlog leaves space in the queue to other backlogs, and its large jobs leave some to
        its small jobs."""
        left = self.max_queue_tokens - self.queue.num_tokens - arrival.num_tokens
        wanted = arrival.backlog.num_tokens + arrival.num_tokens
        return bool(self.queue.num_tokens) and wanted > MAX_BACKLOG_RATIO * left

    def _rejected_as_full(self, arrival: Arrival) -> Overloaded:
        self._start_shedding(arrival, math.inf, QueueFull)
        why = f" of at most {self.max_queue_tokens:,}, too many to add {arrival.num_tokens:,}"
        return self._overloaded(QueueFull, why)

    def _rejected_as_late(self, arrival: Arrival, finish_s: float) -> Overloaded:
        self._start_shedding(arrival, SIMILAR_TIME * arrival.time_s, DeadlineNotMet)
        why = f"; the answer would take {finish_s:.3g} s, the deadline is in {arrival.time_s:.3g} s"
        return self._overloaded(DeadlineNotMet, why)

    def _overloaded(self, kind: type[Overloaded], why: str = "") -> Overloaded:
        wait_s = self.queue.wait_s()
        queued = f"overloaded: {self.queue.num_tokens:,} tokens are queued{why}"
        return kind(f"{queued}; retry in {max(1, math.ceil(wait_s))} s", retry_after_s=wait_s)

    def _start_shedding(self, arrival: Arrival, time_s: float, kind: type[Overloaded]) -> None:
        """Until a micro-batch of the backlog is taken. Then the next request is admitted, whatever
        its size: if load shedding ended with each small gap, only the smallest requests would be
        admitted."""
        backlog = arrival.backlog
        if 2 * arrival.num_tokens > backlog.num_tokens:
            return  # it was rejected for its own size, which says nothing about others
        mean = backlog.num_tokens // backlog.num_jobs
        until = backlog.num_tokens - arrival.target.token_budget
        self._shedding[backlog] = LoadShedding(time_s, mean, until, kind)

    def _shed(self, backlog: Backlog, time_s: float, token_bound: float) -> LoadShedding | None:
        """What rejects such a request for this backlog, if anything does."""
        shedding = self._shedding.get(backlog)
        if shedding and backlog.num_tokens <= shedding.until_num_tokens:
            del self._shedding[backlog]
            return None
        return shedding if shedding and shedding.covers(time_s, token_bound) else None

    def _finish_s(self, arrival: Arrival) -> float:
        """Predicted time until the job is computed: after all that waits, or earlier if its turns
        come earlier."""
        own_s = OWN_MARGIN * arrival.worker_s / self.queue.num_workers
        last_s = own_s + WAIT_FACTOR * self.queue.wait_s()
        if last_s <= arrival.time_s:
            return last_s  # early enough: the rest costs more time
        active = self.queue.active
        largest_s = max((target.token_budget * target.s_per_token for target in active), default=0)
        others_s = WAIT_FACTOR * self._others_s(arrival) / self.queue.num_workers
        return min(last_s, own_s + BATCHES_BEFORE * largest_s + others_s)

    def _others_s(self, arrival: Arrival) -> float:
        """Worker time that goes to other jobs first, if no other flow gets more than the job's own
        flow."""
        own = arrival.backlog
        flow_s = _num_before(arrival) * arrival.target.s_per_token
        targets_s, keys_s = 0.0, dict[KeyBacklogs, float]()
        for target, backlogs in self.queue.active.items():
            for other in backlogs:
                other_s = other.num_tokens * target.s_per_token
                if other.owner is not own.owner:
                    keys_s[other.owner] = keys_s.get(other.owner, 0.0) + other_s
                elif other is not own:
                    targets_s += min(flow_s + arrival.worker_s, other_s)
        flow_s += targets_s
        return flow_s + sum(min(flow_s + arrival.worker_s, other_s) for other_s in keys_s.values())


def _num_before(arrival: Arrival) -> int:
    """Tokens of the backlog that run before the job: all, or for a tiny job only those of jobs as
    small."""
    backlog, size = arrival.backlog, arrival.num_tokens
    if TINY_RATIO * size * backlog.num_jobs > backlog.num_tokens:
        return backlog.num_tokens
    return size * backlog.by_size.num_up_to(size)


def _check_trial(arrival: Arrival, finish_s: float) -> None:
    """Nothing waits. Expired for a job that is hopelessly late; any other runs as a trial, because
    only runs correct a rate. Each rejection raises the rate, so that one wrong measurement does not
    reject for ever."""
    if finish_s > TRIAL_RATIO * arrival.time_s:
        arrival.target.raise_rate()
        raise Expired(
            f"deadline: computing takes about {1000 * finish_s:.0f} ms,"
            f" {1000 * arrival.time_s:.0f} ms are left: allow more time or send less"
        )
