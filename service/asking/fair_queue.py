"""The queue: which sequences run together, and when. Knows no tensors, HTTP, clock and threads.

Order is decided at three levels.

1. API keys share the worker threads by start-time fair queueing (Goyal, Vin, Cheng 1996), by
   computing time.
2. The targets (model and precision) of a key share the key's part in the same way.
3. Within a key and target, the smallest ask and the oldest ask take turns (`backlog.py`).

The scheduling unit is the sequence: a micro-batch takes sequences of near-equal length from the
asks that are next. There is no batching window: the next micro-batch is what queued while the
worker threads were busy.

Bulk asks are large, and keep nobody waiting: they have backlogs of their own, run in small
micro-batches without company, and leave the last idle worker to other asks while there are any.
"""

import math
from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from itertools import chain, count
from weakref import WeakSet

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.backlog import Backlog, KeyBacklogs, Ranked, take_out
from addnorm.service.asking.micro_batch import MicroBatch, Waiting
from addnorm.service.asking.start_time_fairness import StartTimeFairQueue
from addnorm.service.engine.target import Target
from addnorm.service.errors import Expired

# CANDIDATE_BATCHES: a micro-batch is chosen from this many micro-batches' worth of waiting tokens.
#   Larger: lengths match better, but odd lengths wait longer. Smaller: more padding in the session
#   (mixed lengths give 59 % real tokens with 1, 78 % with 3, 89 % with 10).
# MIN_TOKENS_PER_WORKER: idle worker threads share what waits, but none gets fewer real tokens than
#   this. Larger: short requests use fewer cores. Smaller: waking a thread costs more than it gains.
# BULK_TOKENS: of a micro-batch of a bulk ask, if the token budget is not less. Larger: who asks
#   while bulk asks take every worker waits longer. Smaller: more is spent on each run.
# ALONE_S: after so long without another ask, bulk asks take every worker. Larger: they are slower
#   beside callers who ask now and then. Smaller: more of those wait for a run of theirs.
CANDIDATE_BATCHES = 3
MIN_TOKENS_PER_WORKER = 16
BULK_TOKENS = 256
ALONE_S = 5.0


class FairQueue:
    """All asks with sequences that wait. Time is an argument: any number that grows."""

    def __init__(self, num_workers: int = 1) -> None:
        self.num_workers = num_workers
        self.num_tokens = 0  # real tokens that wait, but for those of bulk asks
        self.num_bulk = 0  # bulk asks that wait
        self.asks: dict[int, Ask] = {}  # by number
        # targets with asks that wait, and the backlogs that these are in
        self.active: dict[Target, dict[Backlog, None]] = {}
        # by number: go before all others, each alone, and are in no backlog
        self._first: dict[int, Ask] = {}
        self._keys: dict[str, KeyBacklogs] = {}
        self._fairness: StartTimeFairQueue[KeyBacklogs] = StartTimeFairQueue()
        self._deadlines: list[Ranked] = []
        self._done: deque[int] = deque()  # asks whose future is done; some may still wait
        self._numbers = count()
        self._known: WeakSet[Ask] = WeakSet()  # all that are referred to, also those that run
        self._others_at = -math.inf  # when an ask that is no bulk ask was last added

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
        """How many workers bulk asks may use: one is left to other asks while there are any."""
        is_alone = now >= self._others_at + ALONE_S
        return self.num_workers if is_alone else max(1, self.num_workers - 1)

    def add(self, ask: Ask, now: float, backlog: Backlog) -> None:
        """Queues what is missing of the ask's rows. `until` is when they must be there."""
        ask.backlog = backlog
        if ask.is_bulk:
            self.num_bulk += 1
        else:
            self._others_at = now
        self._begin(ask, now)
        self.active.setdefault(ask.target, {})[backlog] = None
        backlog.add(ask)
        backlog.owner.fairness.activate(backlog)
        self._fairness.activate(backlog.owner)

    def add_first(self, ask: Ask, now: float) -> None:
        """Queues the ask before all others. For the server's own known-answer tests, which are
        small and few."""
        self._begin(ask, now)
        self._first[ask.number] = ask

    def _begin(self, ask: Ask, now: float) -> None:
        rows, ask.future, ask.submitted = ask.rows, Future(), now
        ask.number = number = next(self._numbers)
        ask.waiting = sorted(Waiting(rows.lengths[at], number, at, ask) for at in rows.missing)
        ask.size = sum(sequence.length for sequence in ask.waiting)
        ask.num_tokens = ask.num_settled = 0
        ask.taken = None
        self._known.add(ask)
        # the future must not refer to its ask: such a cycle would outlive both
        ask.future.add_done_callback(lambda _: self._done.append(number))
        self.asks[number] = ask
        insort(self._deadlines, (ask.until, number, ask))
        self._count(ask, ask.size)

    def _remove(self, ask: Ask) -> None:
        """All its sequences were taken, or nobody waits for it."""
        del self.asks[ask.number]
        take_out(self._deadlines, ask.until, ask)
        self._first.pop(ask.number, None)
        self._count(ask, -ask.num_tokens)
        self.num_bulk -= ask.is_bulk
        if backlog := ask.backlog:
            backlog.remove(ask)
            if not backlog.num_waiting:
                del self.active[ask.target][backlog]
                if not self.active[ask.target]:
                    del self.active[ask.target]
        ask.waiting = []

    def _count(self, ask: Ask, num_tokens: int) -> None:
        """So many tokens more wait, or fewer. Those of bulk asks are in no account but their own:
        many may wait, and others are served meanwhile."""
        ask.num_tokens += num_tokens
        if ask.is_bulk:
            return
        self.num_tokens += num_tokens
        ask.target.num_tokens += num_tokens
        if ask.backlog:
            ask.backlog.num_tokens += num_tokens

    def take(self, now: float, num_idle: int = 1) -> MicroBatch | None:
        """The next micro-batch: the longest sequence of the ask whose turn it is, and sequences of
        similar length.

        num_idle: worker threads without work, this one included. They share what waits, if it may
        be shared out.
        """
        self.sweep(now)
        if self._first:
            ask = next(iter(self._first.values()))
            taken = ask.waiting
            self._take_out(taken, now)
            return MicroBatch.of(ask.target, taken, now)
        if not self.asks or (chosen := self._next(now, num_idle)) is None:
            return None
        target, backlog, candidates = chosen.target, chosen.backlog, chosen.waiting
        if chosen.is_bulk:  # without company, which would wait as long as it runs
            share = BULK_TOKENS
        else:
            share = target.token_budget
            if target.is_shared_out:
                share = max(MIN_TOKENS_PER_WORKER, math.ceil(target.num_tokens / num_idle))
            candidates = self._candidates(chosen, CANDIDATE_BATCHES * target.token_budget)
        taken = _nearest(candidates, chosen.waiting[-1], min(target.token_budget, share))
        # other backlogs pay nothing for their part: without it the space would stay empty
        num_own = sum(one.length for one in taken if one.ask.backlog is backlog)
        backlog.charge(num_own)
        cost_s = max(num_own, MIN_TOKENS_PER_WORKER) * target.s_per_token
        backlog.owner.fairness.charge(backlog, cost_s)
        self._fairness.charge(backlog.owner, cost_s)
        self._take_out(taken, now)
        return MicroBatch.of(target, taken, now)

    def _next(self, now: float, num_idle: int) -> Ask | None:
        """The ask whose turn it is, where none goes first. None if bulk asks alone wait, and the
        worker is to be left to others."""
        key = self._fairness.next()
        assert key
        backlog = key.fairness.next()
        assert backlog
        if backlog.is_bulk and self.num_workers - num_idle >= self.num_bulk_workers(now):
            key = self._fairness.next(lambda key: key.num_waiting > key.num_bulk)
            backlog = key.fairness.next(lambda backlog: not backlog.is_bulk) if key else None
        return backlog.order()[0][2] if backlog else None

    def _take_out(self, taken: list[Waiting], now: float) -> None:
        """Takes sequences out of the queue."""
        gone = defaultdict[Ask, list[Waiting]](list)
        for sequence in taken:
            self._count(sequence.ask, -sequence.length)
            gone[sequence.ask].append(sequence)
        for ask, sequences in gone.items():
            ask.taken = now if ask.taken is None else ask.taken
            if len(sequences) == len(ask.waiting):
                self._remove(ask)
                continue
            for sequence in sequences:
                del ask.waiting[bisect_left(ask.waiting, sequence)]

    def _candidates(self, ask: Ask, num_tokens: int) -> list[Waiting]:
        """About so many tokens, sorted by length: of the ask, then of the other asks of its target
        in the order of this turn, its own backlog's first. Bulk asks run apart.

        If all asks were candidates, an ask's odd lengths would wait while later asks fill the
        micro-batches, and the gate could not predict when the ask is done.
        """
        own, candidates = ask.backlog, list(ask.waiting)
        num_tokens -= ask.num_tokens
        smallest_first = own.order() is own.by_size
        others = (one for one in self.active[ask.target] if one is not own and not one.is_bulk)
        for backlog in chain([own], others):
            for _, _, other in backlog.by_size if smallest_first else backlog.by_age:
                if num_tokens <= 0:
                    break
                if other is not ask:
                    candidates += other.waiting
                    num_tokens -= other.num_tokens
        candidates.sort()
        return candidates

    def settle(self, micro: MicroBatch, error: Exception | None, now: float) -> None:
        """The rows of the micro-batch were delivered, or an error came in their place, which fails
        its asks only."""
        if error is None and not micro.on_all_cores:  # the rate is of one worker
            micro.target.update_rate(micro.num_tokens, now - micro.taken)
        for ask, sequences in micro.by_ask():
            if error is None:
                ask.num_settled += len(sequences)
                if ask.num_settled == len(ask.rows.missing):
                    ask.computed = now
                    with suppress(InvalidStateError):  # the caller has left in the meantime
                        ask.future.set_result(None)
            else:
                _fail(ask, error)

    def give_up(self, error: Exception) -> None:
        """Fails every ask, also those that run. Of no use after that: another queue must take its
        place."""
        for ask in list(self._known):
            _fail(ask, error)
            ask.target.num_tokens = 0
        for owner in self._keys.values():
            for target in owner.by_target:
                target.num_tokens = 0

    def sweep(self, now: float) -> None:
        """Removes the asks whose caller has left, that failed in part, or whose deadline has
        passed."""
        while self._done:
            if ask := self.asks.get(self._done.popleft()):
                self._remove(ask)
        while self._deadlines and (late := self._deadlines[0][2]).until <= now:
            waited_s = now - late.submitted
            _fail(late, Expired(f"deadline: it passed after {waited_s:.2f} s in the queue"))
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


def _fail(ask: Ask, error: Exception) -> None:
    with suppress(InvalidStateError):  # the caller has left in the meantime
        ask.future.set_exception(error)
