"""The gate: what the requests of each API key hold, and the one place that rejects a request for
the sake of others. Knows no tensors, HTTP, clock and threads.

It is asked by the head of a request (`admit`, `check_load`), and again once it is known what the
request needs: bytes and time of its answer (`weigh`), tokens (`submit`). A job is admitted if the
queue has space for it, and if it is predicted to be computed before its deadline. After a
rejection, load is shed: similar requests are rejected before their body is read.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary

from addnorm.service.errors import (
    BodiesFull,
    DeadlineNotMet,
    Expired,
    QueueFull,
    ResponsesFull,
    ServiceError,
    TooManyAtOnce,
    TooManyConnections,
)
from addnorm.service.runtime.batch import Batch
from addnorm.service.engine.target import Target
from addnorm.service.asking.job import AllRows, Job, Results
from addnorm.service.asking.backlog import SMALL_RATIO, Backlog, KeyBacklogs
from addnorm.service.asking.fair_queue import JobQueue


class Rule(NamedTuple):
    """How API keys share an account.

    ratio: a key may hold this many times what it leaves free. Larger: one key leaves less to
    others. Smaller: it cannot use what nobody else wants.
    small_ratio: a request is small, and granted whatever its key holds, if it leaves this many
    times its own size free. Larger: more requests are rejected beside large ones of their own key.
    Smaller: one key's small requests leave less to other keys.
    """

    ratio: int
    small_ratio: float = math.inf

    def grants(self, limit: float, total: float, of_key: float, own: float, more: float) -> bool:
        """Whether a request that holds `own` may hold so much more. One that is alone may: other
        limits bound a single request.

        total: what all requests hold; of_key: what those of its key do.
        """
        if total == own:
            return True
        left = limit - total - more
        is_small = self.small_ratio * (own + more) <= left
        return is_small or of_key + more <= self.ratio * left


# "requests": that are answered now. "calls": those of them that came over gRPC. "bodies": bytes of
# bodies and of what is read of them. "responses": bytes of answers, and of the rows that they are
# made of. "answer_s", "bulk_s": predicted seconds, of making answers and of computing bulk
# requests. "tokens": real ones that wait, of a key for one target; the queue counts them.
Account = Literal["requests", "calls", "bodies", "responses", "answer_s", "bulk_s", "tokens"]
BYTES = Rule(ratio=8, small_ratio=64)  # also of calls
TOKENS = Rule(ratio=16)

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
# Rejection
# TRIAL_RATIO: if nothing waits, a job runs as a trial unless it is predicted to take this many
#   times the time it has. Larger: more is computed that comes late. Smaller: a rate measured in a
#   bad moment rejects for longer.
# SIMILAR_TIME: load shedding also covers requests with this many times the time of the rejected
#   one. Larger: requests are rejected that might be admitted. Smaller: requests with nearly equal
#   times are each read before they are rejected.
TRIAL_RATIO = 3
SIMILAR_TIME = 1.05


class Holdings:
    """What one request holds, and the name of its API key."""

    def __init__(self, key: str = "") -> None:
        self.key = key
        self.amounts: dict[Account, float] = {}


class LoadShedding(NamedTuple):
    """After a rejection: which requests for the backlog are rejected too, and for how long."""

    time_s: float  # those with no more time than this
    num_tokens: int  # that may have as many tokens as this, or more
    until_num_tokens: int  # while more than this many of the backlog's tokens wait
    kind: type[ServiceError]  # of the first rejection

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


class Gate:
    """Stands before a queue. Time is an argument: any number that grows."""

    def __init__(self, queue: JobQueue, limits: Mapping[Account, int]) -> None:
        self.queue, self.limits = queue, limits
        # what all requests hold, and those of each key; of the event loop alone
        self.total: defaultdict[Account, float] = defaultdict(int)
        self._by_key: defaultdict[Account, dict[str, float]] = defaultdict(dict)
        # guarded as the queue is
        self._shedding: WeakKeyDictionary[Backlog, LoadShedding] = WeakKeyDictionary()

    @contextmanager
    def admit(self, holdings: Holdings, max_requests: int = 0) -> Iterator[None]:
        """For `with`: a request is answered. Whatever becomes of it, all that it holds is given
        back at the end. TooManyAtOnce if its key has max_requests already; 0: any number."""
        now = self._by_key["requests"].get(holdings.key, 0)
        if max_requests and now >= max_requests:
            why = f"the API key {holdings.key!r} has {now} requests under way, its limit is"
            raise rejection(TooManyAtOnce, f"{why} {max_requests};")
        self.keep(holdings, "requests", 1)
        try:
            yield
        finally:
            for account in holdings.amounts:
                self.keep(holdings, account, 0)

    def hold(self, holdings: Holdings, account: Account, amount: float) -> None:
        """From now on the request holds so much. BodiesFull, ResponsesFull or TooManyConnections if
        that is more than before and its key has no space for it."""
        total, limit = self.total[account], self.limits[account]
        own, of_key = holdings.amounts.get(account, 0), self._of_key(account, holdings.key)
        more = amount - own
        if more > 0 and not BYTES.grants(limit, total, of_key, own, more):
            if account == "calls":
                why = f"{total} calls over gRPC are under way, the limit is {limit}, of which each"
                raise rejection(TooManyConnections, f"{why} API key leaves some to others;")
            raise rejection(
                BodiesFull if account == "bodies" else ResponsesFull,
                f"overloaded: {account} in progress hold {total:,} bytes, this request needs"
                f" {more:,} more, the limit is {limit:,}, of which a caller leaves"
                f" 1/{BYTES.ratio + 1} to others;",
            )
        self.keep(holdings, account, amount)

    def keep(self, holdings: Holdings, account: Account, amount: float) -> None:
        """The same whatever the limit: it is held already."""
        more = amount - holdings.amounts.get(account, 0)
        if not more:
            return
        holdings.amounts[account] = amount
        self.total[account] += more
        of_key = self._of_key(account, holdings.key) + more
        self._by_key[account][holdings.key] = of_key
        if not of_key:
            del self._by_key[account][holdings.key]

    def _of_key(self, account: Account, key: str) -> float:
        return self._by_key[account].get(key, 0)

    def before_s(self, account: Account, key: str, own_s: float) -> float:
        """Predicted seconds of this account that go before own_s of the key."""
        by_key = self._by_key[account]
        others = (seconds for other, seconds in by_key.items() if other != key)
        return served_before(own_s, self._of_key(account, key), others)

    def weigh(
        self, holdings: Holdings, num_bytes: int, answer_s: float, left_s: float, num_threads: int
    ) -> None:
        """Counts the answer of a decoded request, and what is kept for it. ResponsesFull. Expired
        if the request has less time than making its answer takes; DeadlineNotMet if it has less
        than that and what answers before it take.

        left_s: until the deadline. num_threads: that make answers.
        """
        self.hold(holdings, "responses", num_bytes)
        if not answer_s:
            return
        if answer_s > left_s:
            raise Expired(
                f"making and writing the answer takes about {answer_s:.3g} s, the deadline is in"
                f" {left_s:.3g} s: ask for less at once, or allow more time"
            )
        others_s = self.before_s("answer_s", holdings.key, answer_s) / num_threads
        if answer_s + others_s > left_s:
            raise rejection(
                DeadlineNotMet,
                f"overloaded: answers being made take {others_s:.3g} s, this one about"
                f" {answer_s:.3g} s more, the deadline is in {left_s:.3g} s;",
                others_s,
            )
        self.keep(holdings, "answer_s", answer_s)

    @property
    def is_shedding(self) -> bool:
        """Whether `check_load` may reject anything."""
        return bool(self._shedding)

    def check_load(
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
        is_bulk: bool = False,
    ) -> Job:
        """Queues the batch for the API key of this name. Overloaded or Expired if it is not
        admitted.

        results: a row for each token if None. is_bulk: it was admitted by its time alone.
        """
        results = results or AllRows(batch)
        if deadline <= now:
            raise Expired("deadline: it passed before the request was read")
        self.queue.sweep(now)
        backlog = self.queue.backlog(key, target, is_bulk)
        if not is_bulk:
            self._check(Arrival(target, backlog, batch.num_tokens, deadline - now))
        return self.queue.add(target, batch, now, deadline, backlog, results)

    def start_over(self) -> None:
        """An empty queue in place of one that failed. Its load shedding ends with its backlogs."""
        self.queue = JobQueue(self.queue.num_workers)

    def _check(self, arrival: Arrival) -> None:
        limit, waiting, more = self.limits["tokens"], self.queue.num_tokens, arrival.num_tokens
        # a backlog leaves space to other backlogs, and its large jobs leave some to its small jobs
        if not TOKENS.grants(limit, waiting, arrival.backlog.num_tokens, 0, more):
            self._start_shedding(arrival, math.inf, QueueFull)
            raise self._overloaded(QueueFull, f" of at most {limit:,}, too many to add {more:,}")
        if shed := self._shed(arrival.backlog, arrival.time_s, TINY_RATIO * more):
            raise self._overloaded(shed.kind)
        finish_s = self._finish_s(arrival)
        if not waiting:
            _check_trial(arrival, finish_s)
        elif finish_s > arrival.time_s:
            self._start_shedding(arrival, SIMILAR_TIME * arrival.time_s, DeadlineNotMet)
            raise self._overloaded(
                DeadlineNotMet,
                f"; the answer would take {finish_s:.3g} s, the deadline is in"
                f" {arrival.time_s:.3g} s",
            )

    def _overloaded(self, kind: type[ServiceError], why: str = "") -> ServiceError:
        queued = f"overloaded: {self.queue.num_tokens:,} tokens are queued{why};"
        return rejection(kind, queued, self.queue.wait_s())

    def _start_shedding(self, arrival: Arrival, time_s: float, kind: type[ServiceError]) -> None:
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
        """Worker time that goes to other jobs first: of the same backlog, then of the key's other
        targets, then of other keys."""
        own, targets_s, keys_s = (
            arrival.backlog,
            list[float](),
            defaultdict[KeyBacklogs, float](float),
        )
        for target, backlogs in self.queue.active.items():
            for other in backlogs:
                other_s = other.num_tokens * target.s_per_token
                if other.owner is not own.owner:
                    keys_s[other.owner] += other_s
                elif other is not own:
                    targets_s.append(other_s)
        backlog_s = _num_before(arrival) * arrival.target.s_per_token
        key_s = served_before(arrival.worker_s, backlog_s, targets_s)
        return served_before(arrival.worker_s, key_s, keys_s.values())


def rejection(kind: type[ServiceError], why: str, wait_s: float = 1.0) -> ServiceError:
    """What a request is told that must come again, after wait_s. why: without its last words."""
    return kind(f"{why} retry in {max(1, math.ceil(wait_s))} s", retry_after_s=wait_s)


def served_before(own: float, of_flow: float, of_others: Iterable[float]) -> float:
    """What is served before something that needs `own`, if fairly: all that its own flow waits for,
    and of each other flow no more than its own is given meanwhile."""
    return of_flow + sum(min(of_flow + own, other) for other in of_others)


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
