"""The gate: what the requests of each API key hold, and the one place that rejects a request for
the sake of others. Knows no tensors, HTTP, clock and threads.

It is asked by the head of a request (`admit`, `check_load`), and once it is known what the request
needs (`weigh`): bytes and time of its answer, tokens. An ask is admitted if the queue has space for
it, and if it is predicted to be computed before its deadline. After a rejection, load is shed:
similar requests are rejected before their body is read. In between requests tell what they hold
(`hold`).
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple
from weakref import WeakKeyDictionary

from addnorm.service.asking.ask import Account, Ask
from addnorm.service.asking.fair_queue import SMALL_RATIO, Backlog, FairQueue, KeyBacklogs
from addnorm.service.errors import (
    BodiesFull,
    DeadlineNotMet,
    Expired,
    InvalidInput,
    QueueFull,
    ResponsesFull,
    ServiceError,
    TooManyAtOnce,
    TooManyConnections,
)


class Rule(NamedTuple):
    """Shares an account among API keys.

    ratio: a key may hold this many times what it leaves free. Larger: one key leaves less to
    others. Smaller: it cannot use what nobody else wants.
    small_ratio: a request is small, and granted whatever its key holds, if it leaves this many
    times its own size free. Larger: more requests are rejected beside large ones of their own key.
    Smaller: one key's small requests leave less to other keys.
    """

    ratio: int
    small_ratio: float = math.inf

    def grants(
        self, limit: float, total: float, of_key: float, own_amount: float, increase: float
    ) -> bool:
        """True if a request that holds `own_amount` may hold so much more. One that is alone may:
        other limits bound a single request.

        total: what all requests hold; of_key: what those of its key do.
        """
        if total == own_amount:
            return True
        remainder = limit - total - increase
        is_small = self.small_ratio * (own_amount + increase) <= remainder
        return is_small or of_key + increase <= self.ratio * remainder


# Accounts. "requests": that are answered now. "calls": those of them that came over gRPC. "bodies":
# bytes of bodies and of what is read of them. "responses": bytes of answers, and of the rows that
# they are made of. "answer_s", "bulk_s": predicted seconds, of making answers and of computing bulk
# asks. "tokens": real ones that wait, of a key for one target; the queue counts them.
BYTES = Rule(ratio=8, small_ratio=64)  # also of calls
TOKENS = Rule(ratio=16)

# The figures are of a simulated flood (`flood` in tests/asking/test_fairness.py): five times
# the capacity, one second for each ask. What the values must achieve is tested there.
#
# Prediction
# OWN_MARGIN: on the predicted time of the ask itself, because rates are averages. Larger: more asks
#   are rejected that would be in time. Smaller: asks that nothing delays come slightly late.
# WAIT_FACTOR: on the predicted time of what waits, because smaller asks that come later may get
#   every other turn. With 1, 40 % of the admitted asks are late. Larger: waits are shorter, and
#   more asks are rejected that would be in time. Smaller: less is left for load that comes later.
# BATCHES_BEFORE: micro-batches before even the smallest ask: the present one, and one of larger
#   asks. Larger: small asks with little time are rejected behind long ones. Smaller: they are late.
# TINY_RATIO: an ask this many times smaller than the mean waiting ask is predicted by its own turns
#   instead of all that waits. Larger: fewer small asks are admitted behind long ones. Smaller:
#   small asks fill the queue (with 4, admitted asks have 81 % of the mean size; with 16, 98 %).
OWN_MARGIN = 1.2
WAIT_FACTOR = 2
BATCHES_BEFORE = 2
TINY_RATIO = 2 * SMALL_RATIO
# Rejection
# TRIAL_RATIO: if nothing waits, an ask runs as a trial unless it is predicted to take this many
#   times the time it has. Larger: more is computed that comes late. Smaller: a rate measured in a
#   bad moment rejects for longer.
# SIMILAR_TIME: load shedding also covers requests with this many times the time of the rejected
#   one. Larger: requests are rejected that might be admitted. Smaller: requests with nearly equal
#   times are each read before they are rejected.
TRIAL_RATIO = 3
SIMILAR_TIME = 1.05
# Bulk asks: the queue keeps no other caller waiting for them, so it may hold any number of their
# tokens.
# MAX_SEQUENCES, MAX_TOKENS: of an ask that is none. Larger: one ask fills more of the queue.
#   Smaller: more asks leave a worker to others, and take longer for it.
# TIME_FACTOR: on the predicted time, for the deadline where the caller names none. Larger: one that
#   stands still is given up later. Smaller: one that others slow down is given up.
# IN_TIME: of the time of an ask that ends in time, until it is answered with what is there. Larger:
#   answers come late where the event loop is busy. Smaller: less is computed.
MAX_SEQUENCES, MAX_TOKENS = 1024, 65_536
TIME_FACTOR = 4
IN_TIME = 0.9


class LoadShedding(NamedTuple):
    """After a rejection: which requests for the backlog are rejected too, and for how long."""

    time_s: float  # those with no more time than this
    num_tokens: int  # that may have as many tokens as this, or more
    until_num_tokens: int  # while more than this many of the backlog's tokens wait
    kind: type[ServiceError]  # of the first rejection


class Gate:
    """Stands before a queue. Time is an argument: any number that grows."""

    def __init__(
        self,
        queue: FairQueue,
        limits: Mapping[Account, int],
        timeout_s: float = 30.0,
        bulk_timeout_s: float = 600.0,
        num_encoders: int = 1,
    ) -> None:
        """timeout_s, bulk_timeout_s: least and longest time of bulk asks whose callers name none.
        num_encoders: threads that make answers."""
        self.queue, self.limits = queue, limits
        self._timeout_s, self._bulk_timeout_s = timeout_s, bulk_timeout_s
        self._num_encoders = num_encoders
        # what all requests hold, and those of each key; of the event loop alone
        self.total: defaultdict[Account, float] = defaultdict(int)
        self._by_key: defaultdict[Account, dict[str, float]] = defaultdict(dict)
        # guarded as the queue is
        self.shedding: WeakKeyDictionary[Backlog, LoadShedding] = WeakKeyDictionary()

    @contextmanager
    def admit(self, ask: Ask, max_requests: int = 0) -> Iterator[None]:
        """For `with`: a request is answered. Whatever becomes of it, all that it holds is given
        back at the end. TooManyAtOnce if its key has max_requests already; 0: any number."""
        now = self._by_key["requests"].get(ask.key, 0)
        if max_requests and now >= max_requests:
            raise rejection(
                TooManyAtOnce,
                f"the API key {ask.key!r} has {now} requests in progress, its limit is"
                f" {max_requests};",
            )
        self.keep(ask, "requests", 1)
        try:
            yield
        finally:
            for account in ask.held:
                self.keep(ask, account, 0)

    def hold(self, ask: Ask, account: Account, amount: float) -> None:
        """From now on the request holds so much. BodiesFull, ResponsesFull or TooManyConnections if
        that is more than before and its key has no space for it."""
        total, limit = self.total[account], self.limits[account]
        own_amount, of_key = ask.held.get(account, 0), self._by_key[account].get(ask.key, 0)
        increase = amount - own_amount
        if increase > 0 and not BYTES.grants(limit, total, of_key, own_amount, increase):
            if account == "calls":
                raise rejection(
                    TooManyConnections,
                    f"{total} calls over gRPC are in progress, the limit is {limit}, of which"
                    " each API key leaves some to the other keys;",
                )
            raise rejection(
                BodiesFull if account == "bodies" else ResponsesFull,
                f"overloaded: {account} in progress hold {total:,} bytes, this request needs"
                f" {increase:,} more, the limit is {limit:,}, of which a caller leaves"
                f" 1/{BYTES.ratio + 1} to the other callers;",
            )
        self.keep(ask, account, amount)

    def keep(self, ask: Ask, account: Account, amount: float) -> None:
        """The same whatever the limit: it is held already."""
        increase = amount - ask.held.get(account, 0)
        if not increase:
            return
        ask.held[account] = amount
        self.total[account] += increase
        by_key = self._by_key[account]
        by_key[ask.key] = by_key.get(ask.key, 0) + increase
        if not by_key[ask.key]:
            del by_key[ask.key]

    def before_s(self, account: Account, key: str, own_s: float) -> float:
        """Predicted seconds of this account that go before own_s of the key."""
        by_key = self._by_key[account]
        other_keys_s = (seconds for other_key, seconds in by_key.items() if other_key != key)
        return served_before(own_s, by_key.get(key, 0), other_keys_s)

    def check_load(self, ask: Ask, num_bytes: float = math.inf) -> None:
        """Overloaded if load shedding covers the request. It is cheapest to reject before the body
        is read.

        num_bytes: of the body, which has no more tokens than bytes. If only the body names the
        model, the request is rejected only if load shedding covers it for every target that its key
        has asked for.
        """
        model, pairs = ask.names.get("model"), self.queue.backlogs(ask.key).items()
        backlogs = [backlog for target, backlog in pairs if model in (None, target.name)]
        sheddings = [
            self._active_shedding(backlog, ask.timeout_s, num_bytes) for backlog in backlogs
        ]
        if sheddings and sheddings[0] and all(sheddings):
            raise self._overload(sheddings[0].kind)

    def is_bulk(self, ask: Ask, now: float) -> bool:
        """True for a bulk ask: one that ends in time whatever is computed, a large one, or one of
        several sequences that a slow machine might not answer in the time of other asks."""
        if ask.in_time:
            return True
        num_sequences, max_tokens = len(ask.batch), min(MAX_TOKENS, self.limits["tokens"])
        if num_sequences > MAX_SEQUENCES or ask.batch.num_tokens > max_tokens:
            return True
        if num_sequences < 2:
            return False
        own_s = self._bulk_s(ask, now)
        return self._timeout_s < TIME_FACTOR * own_s and own_s < self._bulk_timeout_s

    def weigh(self, ask: Ask, now: float) -> None:
        """Counts the answer of a decoded request and what is kept for it, and queues what is
        missing of its rows. ResponsesFull, QueueFull, DeadlineNotMet; Expired if it has less time
        than computing it alone takes, or making its answer."""
        if ask.is_bulk:
            self._weigh_bulk(ask, now)
        self.hold(ask, "responses", ask.num_bytes + ask.kept_bytes)
        if ask.in_time:
            self.keep(ask, "answer_s", ask.answer_s)
            ask.ends = ask.started + min(IN_TIME * ask.max_time_s, ask.timeout_s) - ask.answer_s
            if ask.rows.missing:
                self.queue.sweep(now)
                ask.backlog = self.queue.backlog(ask.key, ask.target, is_bulk=True)
                self.queue.add(ask, now)
            return
        left_s = ask.started + ask.timeout_s - now
        if ask.answer_s > left_s:
            raise Expired(
                f"computing and writing the answer takes about {ask.answer_s:.3g} s, the deadline"
                f" is in {left_s:.3g} s: request less at once, or allow more time"
            )
        if ask.answer_s:
            others_s = self.before_s("answer_s", ask.key, ask.answer_s) / self._num_encoders
            if ask.answer_s + others_s > left_s:
                raise rejection(
                    DeadlineNotMet,
                    f"overloaded: the answers in progress take {others_s:.3g} s, this one about"
                    f" {ask.answer_s:.3g} s more, the deadline is in {left_s:.3g} s;",
                    others_s,
                )
            self.keep(ask, "answer_s", ask.answer_s)
        if not ask.rows.missing:
            return
        ask.until = now + left_s - ask.answer_s
        if ask.until <= now:
            raise Expired("deadline: it passed before the request was read")
        self.queue.sweep(now)
        ask.backlog = self.queue.backlog(ask.key, ask.target, ask.is_bulk)
        if not ask.is_bulk:
            self._weigh_tokens(ask, ask.rows.num_missing_tokens, ask.until - now)
        self.queue.add(ask, now)

    def too_late(self, ask: Ask, reason: str) -> ServiceError:
        """The error for an ask that ends in time where nothing would be there."""
        others_s = self.total["bulk_s"] - ask.held.get("bulk_s", 0)
        return rejection(
            DeadlineNotMet,
            f"max_time_ms is {1000 * ask.max_time_s:g}, and nothing would be scored in this"
            f" time: {reason}; allow more time, or",
            max(1.0, others_s / self.queue.num_workers),
        )

    def _weigh_bulk(self, ask: Ask, now: float) -> None:
        """Gives it the time that it needs, unless its caller named a deadline. DeadlineNotMet if it
        is predicted to be late. Counted from then on, until it is computed."""
        if (num_bytes := ask.num_bytes + ask.kept_bytes) > (limit := self.limits["responses"]):
            raise InvalidInput(
                f"{ask.field}: the answer and the rows it is computed from would take"
                f" {num_bytes / 2**20:.0f} MiB, the limit is {limit / 2**20:.0f}: send less"
                " at once",
                param=ask.field,
            )
        if ask.in_time:
            self.keep(ask, "bulk_s", min(ask.max_time_s, self._bulk_s(ask, now)))
            return
        own_s = OWN_MARGIN * (bulk_s := self._bulk_s(ask, now))
        others_s = self.before_s("bulk_s", ask.key, own_s) + WAIT_FACTOR * self.queue.wait_s()
        finish_s = own_s + others_s + ask.answer_s
        if not ask.is_callers:
            wanted_s = now - ask.started + TIME_FACTOR * finish_s
            ask.timeout_s = max(self._timeout_s, min(wanted_s, self._bulk_timeout_s))
        if finish_s > (left_s := ask.started + ask.timeout_s - now):
            if not others_s:  # for the rate alone, which may be wrong: only runs correct it
                ask.target.raise_rate()
            raise rejection(
                DeadlineNotMet,
                f"{ask.field} has {ask.batch.num_tokens:,} tokens: the answer would take"
                f" {finish_s:.3g} s, of which {others_s:.3g} s for other requests; the deadline"
                f" is in {left_s:.3g} s: send less at once, allow more time, or",
                max(1.0, others_s),
            )
        self.keep(ask, "bulk_s", bulk_s)

    def _bulk_s(self, ask: Ask, now: float) -> float:
        """Predicted seconds of computing it as a bulk ask."""
        num_workers = self.queue.num_bulk_workers(now)
        return ask.batch.num_tokens * ask.target.s_per_token / num_workers

    def start_over(self) -> None:
        """An empty queue in place of one that failed. Its load shedding ends with its backlogs."""
        self.queue = FairQueue(self.queue.num_workers)

    def _weigh_tokens(self, ask: Ask, num_tokens: int, time_s: float) -> None:
        """QueueFull without space for so many tokens more. Expired or DeadlineNotMet if it is
        predicted to take longer than it has."""
        backlog, limit, waiting = ask.backlog, self.limits["tokens"], self.queue.num_tokens
        # a backlog leaves space to other backlogs, and its large asks leave some to its small asks
        if not TOKENS.grants(limit, waiting, backlog.num_tokens, 0, num_tokens):
            self._start_shedding(ask, num_tokens, math.inf, QueueFull)
            raise self._overload(
                QueueFull, f" of at most {limit:,}, too many to add {num_tokens:,}"
            )
        if self.shedding and (
            shedding := self._active_shedding(backlog, time_s, TINY_RATIO * num_tokens)
        ):
            raise self._overload(shedding.kind)
        own_s = OWN_MARGIN * (num_tokens * ask.target.s_per_token) / self.queue.num_workers
        if not waiting:
            # Only runs correct a rate: so what is not hopelessly late runs as a trial. Each
            # rejection raises the rate, so that one wrong measurement does not reject for ever.
            if own_s > TRIAL_RATIO * time_s:
                ask.target.raise_rate()
                raise Expired(
                    f"deadline: computing takes about {1000 * own_s:.0f} ms,"
                    f" {1000 * time_s:.0f} ms are left: allow more time or send less"
                )
        elif (finish_s := self._finish_s(ask, num_tokens, own_s, time_s)) > time_s:
            self._start_shedding(ask, num_tokens, SIMILAR_TIME * time_s, DeadlineNotMet)
            raise self._overload(
                DeadlineNotMet,
                f"; the answer would take {finish_s:.3g} s, the deadline is in {time_s:.3g} s",
            )

    def _overload(self, kind: type[ServiceError], reason: str = "") -> ServiceError:
        message = f"overloaded: {self.queue.num_tokens:,} tokens are queued{reason};"
        return rejection(kind, message, self.queue.wait_s())

    def _start_shedding(
        self, ask: Ask, num_tokens: int, time_s: float, kind: type[ServiceError]
    ) -> None:
        """Until a micro-batch of the backlog is taken. Then the next request is admitted, whatever
        its size: if load shedding ended with each small gap, only the smallest requests would be
        admitted."""
        backlog: Backlog = ask.backlog
        if 2 * num_tokens > backlog.num_tokens:
            return  # it was rejected for its own size, which says nothing about others
        mean = backlog.num_tokens // backlog.num_waiting
        until = backlog.num_tokens - ask.target.token_budget
        self.shedding[backlog] = LoadShedding(time_s, mean, until, kind)

    def _active_shedding(
        self, backlog: Backlog, time_s: float, token_bound: float
    ) -> LoadShedding | None:
        """The shedding that rejects a request of no more tokens for this backlog, if any does."""
        shedding = self.shedding.get(backlog)
        if shedding is None:
            return None
        if backlog.num_tokens <= shedding.until_num_tokens:
            del self.shedding[backlog]
            return None
        is_covered = time_s <= shedding.time_s and token_bound >= shedding.num_tokens
        return shedding if is_covered else None

    def _finish_s(self, ask: Ask, num_tokens: int, own_s: float, time_s: float) -> float:
        """Predicted time until the ask is computed, which takes own_s: after all that waits, or
        earlier if its turns come earlier."""
        queue, worker_s = self.queue, num_tokens * ask.target.s_per_token
        last_s = own_s + WAIT_FACTOR * queue.wait_s()
        if last_s <= time_s:
            return last_s  # early enough: the rest costs more time
        # worker time that goes to others first: of the same backlog, of a tiny ask only what is as
        # small; then of the key's other targets, then of other keys
        own_backlog: Backlog = ask.backlog
        num_before, targets_s = own_backlog.num_tokens, list[float]()
        keys_s = defaultdict[KeyBacklogs, float](float)
        if TINY_RATIO * num_tokens * own_backlog.num_waiting <= own_backlog.num_tokens:
            num_before = num_tokens * bisect_left(own_backlog.by_size, (num_tokens, math.inf))
        for target, backlogs in queue.active.items():
            for other_backlog in backlogs:
                other_s = other_backlog.num_tokens * target.s_per_token
                if other_backlog.owner is not own_backlog.owner:
                    keys_s[other_backlog.owner] += other_s
                elif other_backlog is not own_backlog:
                    targets_s.append(other_s)
        key_s = served_before(worker_s, num_before * ask.target.s_per_token, targets_s)
        others_s = served_before(worker_s, key_s, keys_s.values()) / queue.num_workers
        batches_s = (target.token_budget * target.s_per_token for target in queue.active)
        largest_s = max(batches_s, default=0)
        return min(last_s, own_s + BATCHES_BEFORE * largest_s + WAIT_FACTOR * others_s)


def rejection(kind: type[ServiceError], reason: str, wait_s: float = 1.0) -> ServiceError:
    """The error of a request that must come again, after wait_s. reason: without its last words."""
    return kind(f"{reason} retry in {max(1, math.ceil(wait_s))} s", retry_after_s=wait_s)


def served_before(need: float, of_flow: float, of_others: Iterable[float]) -> float:
    """The amount that is served before a `need`, if fairly: all that its own flow waits for, and of
    each other flow no more than its own is given meanwhile."""
    return of_flow + sum(min(of_flow + need, waiting) for waiting in of_others)
