"""The queue: which sequences run together, and when. Knows no tensors, HTTP, clock and threads.

Order is decided at three levels.

1. API keys share the worker threads by start-time fair queueing (Goyal, Vin, Cheng 1996), by
   computing time.
2. The targets (model and precision) of a key share the key's part in the same way.
3. Within a key and target, the smallest ask and the oldest ask take turns (`Backlog`).

The scheduling unit is the sequence: a micro-batch takes sequences of near-equal length from the
asks that are next. There is no batching window: the next micro-batch is what queued while the
worker threads were busy.

Bulk asks are large, and keep nobody waiting: they have backlogs of their own, run in small
micro-batches without company, and leave the last idle worker to other asks while there are any.
Some of them end in time: they take turns, their sequences run in order, and what is computed when
the time is over is their answer. Who has nothing yet goes first.
"""

import math
from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import InvalidStateError
from contextlib import suppress
from heapq import heappop, heappush, heapreplace
from itertools import accumulate, chain, count, groupby
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from addnorm.service.asking.ask import Ask, QueueEntry
from addnorm.service.engine.batch import Batch
from addnorm.service.engine.target import Target
from addnorm.service.errors import Expired

# SMALL_RATIO: an ask counts as small beside another that has this many times its tokens. Larger:
#   fewer asks pass long ones early. Smaller: asks of about one size overtake each other, so past
#   capacity all of them are late together (simulated flood of tests/asking/test_fairness.py: 6 %
#   late with 2, none with 8).
# CANDIDATE_BATCHES: a micro-batch is chosen from this many micro-batches' worth of waiting tokens.
#   Larger: lengths match better, but odd lengths wait longer. Smaller: more padding in the session
#   (mixed lengths give 59 % real tokens with 1, 78 % with 3, 89 % with 10).
# MIN_TOKENS_PER_WORKER: idle worker threads share what waits, but none gets fewer real tokens than
#   this. Larger: short requests use fewer cores. Smaller: waking a thread costs more than it gains.
# MIN_WORKER_S: and none gets less work than this. Larger: small models use fewer cores. Smaller: a
#   second thread wants the interpreter's lock for work that is done before it has it.
# BULK_TOKENS: of a micro-batch of a bulk ask, if the token budget is not less. Larger: who asks
#   while bulk asks take every worker waits longer. Smaller: more is spent on each run.
# ALONE_S: after so long without another ask, bulk asks take every worker. Larger: they are slower
#   beside callers who ask now and then. Smaller: more of those wait for a run of theirs.
SMALL_RATIO = 8
CANDIDATE_BATCHES = 3
MIN_TOKENS_PER_WORKER = 16
MIN_WORKER_S = 0.001
BULK_TOKENS = 256
ALONE_S = 5.0
# asks that end in time go before others of their backlog, for a bounded time; those that have
# nothing yet by twice as much
BEFORE_BULK = 2**40


class Flow:
    """One of several that share something fairly. `start` is the virtual start time of its next
    turn."""

    start = 0.0
    is_in_heap = False  # of its StartTimeFairQueue
    num_waiting = 0  # that wait; a flow without any is skipped


SomeFlow = TypeVar("SomeFlow", bound=Flow)


class StartTimeFairQueue(Generic[SomeFlow]):
    """Start-time fair queueing (Goyal, Vin, Cheng 1996), with equal weights.

    The flow whose turn has the least virtual start time is served. The start time of its next turn
    grows by the cost of what it was given. So flows that always have work get equal shares,
    whatever they ask for at once.

    Virtual time is the start time of the turn in service. A flow that becomes active starts at the
    virtual time, or where its last turn ended if that is later. So it is served soon, and saves
    nothing up while it has no work.

    Each operation costs O(log flows).
    """

    def __init__(self) -> None:
        self.virtual_time = 0.0
        # (start, number, flow): among equal starts, the flow that was served last comes last. An
        # entry with another start than its flow's is void: the flow has a later entry.
        self._heap: list[tuple[float, int, SomeFlow]] = []
        self._numbers = count()

    def activate(self, flow: SomeFlow) -> None:
        """Call when the flow has work that waits. A flow that is active already stays as it is."""
        if not flow.is_in_heap:
            flow.is_in_heap, flow.start = True, max(flow.start, self.virtual_time)
            heappush(self._heap, (flow.start, next(self._numbers), flow))

    def next(self, may: Callable[[SomeFlow], bool] | None = None) -> SomeFlow | None:
        """The flow to serve now, of those that have an ask that waits; None without one.

        may: whether a flow may be served. One that may not keeps its place. It costs more time.
        """
        while self._heap:
            start, _, flow = self._heap[0]
            if start == flow.start and flow.num_waiting:
                break
            heappop(self._heap)
            if start == flow.start:
                flow.is_in_heap = False
        for start, _, flow in sorted(self._heap) if may else self._heap[:1]:
            if start == flow.start and flow.num_waiting and (not may or may(flow)):
                self.virtual_time = max(self.virtual_time, start)
                return flow
        return None

    def charge(self, flow: SomeFlow, cost: float) -> None:
        """The flow was given this much; it gets so much back if negative."""
        is_head = bool(self._heap) and self._heap[0][2] is flow
        flow.start += cost
        if is_head:
            heapreplace(self._heap, (flow.start, next(self._numbers), flow))
        elif flow.is_in_heap and cost:
            heappush(self._heap, (flow.start, next(self._numbers), flow))


class Waiting(NamedTuple):
    """One sequence of an ask that no worker thread has taken yet. Sorts by length, then by
    arrival."""

    length: int
    number: int  # of the ask
    sequence_index: int  # in the batch of the ask
    ask: Ask


class MicroBatch:
    """Sequences of one target that run together. Those of one ask stand together, in the ask's
    order."""

    def __init__(
        self, target: Target, sequences: list[Waiting], taken: float, on_all_cores: bool = False
    ) -> None:
        """on_all_cores: else it runs on its worker's thread alone."""
        self.target, self.taken, self.on_all_cores = target, taken, on_all_cores
        self.sequences = sorted(sequences, key=attrgetter("number", "sequence_index"))
        self.parts = [
            (ask, list(group)) for ask, group in groupby(self.sequences, attrgetter("ask"))
        ]
        # as they are now: an ask that ends in time is answered while it runs
        self._sources = [
            (sequence.ask.batch, sequence.sequence_index) for sequence in self.sequences
        ]
        self.rows = [ask.rows for ask, _ in self.parts]  # where those of each part go
        self.num_tokens = sum(sequence.length for sequence in sequences)
        self.is_bulk = sequences[0].ask.is_bulk
        self.is_large = sequences[0].length >= target.large_from  # then it is alone

    def batch(self) -> Batch:
        first_batch, _ = self._sources[0]
        if len(self.parts) == 1 and len(self.sequences) == len(first_batch):
            return first_batch
        return Batch.joined(self._sources)


# rank (an ask's own, its size, or its time), number of the ask, ask; sorted, so among equals by
# arrival. Numbers differ: asks are never compared. With 10,000 asks an insertion moves 80 kB, which
# takes about 2 us.
Ranked = tuple[float, int, Ask]


class Backlog(Flow):
    """The asks of one API key for one target.

    Turns alternate between the smallest ask and the oldest ask. If the smallest is SMALL_RATIO
    times smaller, both get equally many tokens; otherwise the oldest gets SMALL_RATIO times as
    many. Three things follow:

    - A small ask waits for at most one micro-batch of larger asks.
    - A flood of small asks at most doubles the wait of a large ask.
    - Asks of about one size run in the order of arrival. If they took turns instead, all would be
      late together.
    """

    def __init__(self, owner: "KeyBacklogs", is_bulk: bool = False) -> None:
        self.owner, self.is_bulk = owner, is_bulk
        self.by_age: list[Ranked] = []
        self.by_size: list[Ranked] = []
        self.num_tokens = 0  # that wait
        self._lead = 0  # tokens that smallest asks were given more than oldest asks

    def order(self) -> list[Ranked]:
        """The order of the present turn: by size if it is the smallest ask's, else by age. Asks
        that end in time take turns by their ranks alone."""
        oldest = self.by_age[0][2]
        is_for_smallest = self._lead <= 0 and self.by_size[0][0] < oldest.entry.size
        return self.by_size if is_for_smallest and not oldest.in_time else self.by_age

    def next(self, has_large: bool) -> Ask | None:
        """The ask whose turn it is. has_large: a run holds so much memory that the next must hold
        less; None if all would hold more."""
        for _, _, ask in self.order():
            if not (has_large and _is_large(ask)):
                return ask
        return None

    def charge(self, num_tokens: int) -> None:
        """The ask whose turn it is was given so many tokens. Call before any ask is removed."""
        smallest, oldest = self.by_size[0][2].entry.size, self.by_age[0][2].entry.size
        if self.by_age[0][2].in_time:
            return
        if self.order() is self.by_size:
            is_small = SMALL_RATIO * smallest <= oldest
            self._lead += num_tokens if is_small else SMALL_RATIO * num_tokens
        elif smallest < oldest:
            self._lead -= num_tokens


class KeyBacklogs(Flow):
    """All backlogs of one API key, one for each target it has asked for, and one for bulk asks of
    the target. Without keys there is one of these.

    Targets are held weakly: a model that is no longer served is freed, and its backlogs with it.
    """

    def __init__(self) -> None:
        self.by_target: WeakKeyDictionary[Target, Backlog] = WeakKeyDictionary()
        self.bulk: WeakKeyDictionary[Target, Backlog] = WeakKeyDictionary()  # apart from the others
        self.num_bulk = 0  # asks that wait
        self.fairness: StartTimeFairQueue[Backlog] = StartTimeFairQueue()

    def all(self) -> Iterator[Backlog]:
        """The backlogs in which asks wait."""
        backlogs = chain(self.by_target.values(), self.bulk.values())
        return (backlog for backlog in backlogs if backlog.num_waiting)


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
        self._live_asks: WeakSet[Ask] = WeakSet()  # all that are referred to, also those that run
        self._others_at = -math.inf  # when an ask that is no bulk ask was last added

    def wait_s(self) -> float:
        """Predicted time until everything that waits now is computed."""
        worker_s = sum(target.s_per_token * target.num_tokens for target in self.active)
        return worker_s / self.num_workers

    def backlogs(self, key: str) -> Mapping[Target, Backlog]:
        """The backlogs of one API key: one for every target it has asked for."""
        return self._keys[key].by_target if key in self._keys else {}

    def backlog(self, key: str, target: Target, is_bulk: bool = False) -> Backlog:
        if (owner := self._keys.get(key)) is None:
            owner = self._keys[key] = KeyBacklogs()
        backlogs = owner.bulk if is_bulk else owner.by_target
        if target not in backlogs:
            backlogs[target] = Backlog(owner, is_bulk)
        return backlogs[target]

    def num_bulk_workers(self, now: float) -> int:
        """The number of workers that bulk asks may use: one is left to other asks while there are
        any."""
        is_alone = now >= self._others_at + ALONE_S
        return self.num_workers if is_alone else max(1, self.num_workers - 1)

    def add(self, ask: Ask, now: float) -> None:
        """Queues what is missing of the ask's rows, which must be there by `until`: in its backlog,
        or before all others if it has none. So do the server's own known-answer tests, which are
        small and few."""
        rows, number = ask.rows, next(self._numbers)
        waiting = [Waiting(rows.lengths[at], number, at, ask) for at in rows.missing]
        rank = number
        if ask.in_time:
            rank -= BEFORE_BULK if len(rows.missing) < len(rows.lengths) else 2 * BEFORE_BULK
        else:
            waiting.sort()
        size = sum(sequence.length for sequence in waiting)
        ask.entry = entry = QueueEntry(number, now, waiting, size, len(waiting), rank)
        if ask.in_time:
            ask.until = _last_begin(ask)
        self._live_asks.add(ask)
        # the future must not refer to its ask: such a cycle would outlive both
        entry.future.add_done_callback(lambda _: self._done.append(number))
        self.asks[number] = ask
        insort(self._deadlines, (ask.until, number, ask))
        self._count(ask, ask.entry.size)
        if (backlog := ask.backlog) is None:
            self._first[number] = ask
            return
        if not ask.is_bulk:
            self._others_at = now
        self.active.setdefault(ask.target, {})[backlog] = None
        insort(backlog.by_age, (ask.entry.rank, number, ask))
        insort(backlog.by_size, (ask.entry.size, number, ask))
        backlog.num_waiting += 1
        backlog.owner.num_waiting += 1
        backlog.owner.num_bulk += ask.is_bulk
        self.num_bulk += ask.is_bulk
        backlog.owner.fairness.activate(backlog)
        self._fairness.activate(backlog.owner)

    def _remove(self, ask: Ask) -> None:
        """All its sequences were taken, or nobody waits for it."""
        number, backlog, ask.entry.waiting = ask.entry.number, ask.backlog, []
        del self.asks[number]
        del self._deadlines[bisect_left(self._deadlines, (ask.until, number))]
        self._count(ask, -ask.entry.num_tokens)
        if backlog is None:
            del self._first[number]
            return
        del backlog.by_age[bisect_left(backlog.by_age, (ask.entry.rank, number))]
        del backlog.by_size[bisect_left(backlog.by_size, (ask.entry.size, number))]
        backlog.num_waiting -= 1
        backlog.owner.num_waiting -= 1
        backlog.owner.num_bulk -= ask.is_bulk
        self.num_bulk -= ask.is_bulk
        if not backlog.num_waiting:
            del self.active[ask.target][backlog]
            if not self.active[ask.target]:
                del self.active[ask.target]

    def _count(self, ask: Ask, num_tokens: int) -> None:
        """So many tokens more wait, or fewer. Those of bulk asks are in no account but their own:
        many may wait, and others are served meanwhile."""
        ask.entry.num_tokens += num_tokens
        if ask.is_bulk:
            return
        self.num_tokens += num_tokens
        ask.target.num_tokens += num_tokens
        if ask.backlog:
            ask.backlog.num_tokens += num_tokens

    def take(self, now: float, num_idle: int = 1, has_large: bool = False) -> MicroBatch | None:
        """The next micro-batch: the longest sequence of the ask whose turn it is, and sequences of
        similar length. None if nothing waits, or bulk asks alone and the worker is to be left to
        others, or large sequences alone and one runs.

        num_idle: worker threads without work, this one included. They share what waits, if it may
        be shared out. has_large: a large sequence runs, and no other may (`Target.large_from`).
        """
        self.sweep(now)
        if not self.asks:
            return None
        if self._first:
            ask = next(iter(self._first.values()))
            target, taken = ask.target, ask.entry.waiting
        else:
            num_busy = self.num_workers - num_idle

            def may(backlog: Backlog) -> bool:
                ask = backlog.next(has_large)
                if ask is None:
                    return False
                if ask.in_time or not backlog.is_bulk:
                    return True
                return num_busy < self.num_bulk_workers(now)

            key = self._fairness.next()
            assert key
            backlog = key.fairness.next()
            assert backlog
            if (has_large or backlog.is_bulk) and not may(backlog):
                key = self._fairness.next(lambda key: any(map(may, key.all())))
                backlog = key.fairness.next(may) if key else None
                if backlog is None:
                    return None
            first = backlog.next(True) if has_large else backlog.order()[0][2]
            assert first
            taken = self._choose(first, num_idle, now)
            target = first.target
            # other backlogs pay nothing for their part: without it the space would stay empty
            num_own = sum(sequence.length for sequence in taken if sequence.ask.backlog is backlog)
            if first is backlog.order()[0][2]:
                backlog.charge(num_own)
            cost_s = max(num_own, MIN_TOKENS_PER_WORKER) * target.s_per_token
            backlog.owner.fairness.charge(backlog, cost_s)
            self._fairness.charge(backlog.owner, cost_s)
        sequences_by_ask = defaultdict[Ask, list[Waiting]](list)
        for sequence in taken:
            self._count(sequence.ask, -sequence.length)
            sequences_by_ask[sequence.ask].append(sequence)
        for ask, sequences in sequences_by_ask.items():
            ask.entry.taken = now if ask.entry.taken is None else ask.entry.taken
            if len(sequences) == len(ask.entry.waiting):
                self._remove(ask)
                continue
            if ask.in_time:  # it goes behind the others: all would end before the last had a turn
                self._to_the_end(ask, len(sequences))
                continue
            for sequence in sequences:
                del ask.entry.waiting[bisect_left(ask.entry.waiting, sequence)]
        return MicroBatch(target, taken, now)

    def _to_the_end(self, ask: Ask, num_taken: int) -> None:
        """Puts an ask that ends in time behind the others of its backlog that do: so many of its
        sequences were taken."""
        by_age, deadlines = ask.backlog.by_age, self._deadlines
        del ask.entry.waiting[:num_taken]
        del by_age[bisect_left(by_age, (ask.entry.rank, ask.entry.number))]
        del deadlines[bisect_left(deadlines, (ask.until, ask.entry.number))]
        ask.entry.rank, ask.until = next(self._numbers) - BEFORE_BULK, _last_begin(ask)
        insort(by_age, (ask.entry.rank, ask.entry.number, ask))
        insort(deadlines, (ask.until, ask.entry.number, ask))

    def _choose(self, ask: Ask, num_idle: int, now: float) -> list[Waiting]:
        """The ask's longest sequence, and its neighbours in length, of about
        CANDIDATE_BATCHES micro-batches' tokens: of the ask, then of the other asks of its target in
        the order of this turn, its own backlog's first. Bulk asks run without company, which would
        wait as long as they run.

        If all asks were candidates, an ask's odd lengths would wait while later asks fill the
        micro-batches, and the gate could not predict when the ask is done.
        """
        backlog: Backlog = ask.backlog
        order = backlog.order()
        target, anchor, candidates = ask.target, ask.entry.waiting[-1], list(ask.entry.waiting)
        # together they hold no more than one sequence of as many tokens, and none of them is large
        num_left = int(min(target.token_budget, target.large_from - 1))
        if ask.is_bulk:
            num_left = min(num_left, BULK_TOKENS)
        if ask.in_time:
            if target.s_per_token:  # no more than is there in time
                num_left = min(num_left, int((ask.ends - now) / target.s_per_token))
            ends = accumulate(sequence.length for sequence in candidates)
            return candidates[: max(1, sum(end <= num_left for end in ends))]
        if not ask.is_bulk:
            if target.is_shared_out:
                share = math.ceil(target.num_tokens / num_idle)
                num_left = min(num_left, max(least_share(target), share))
            num_wanted = CANDIDATE_BATCHES * target.token_budget - ask.entry.num_tokens
            other_backlogs = [
                flow for flow in self.active[target] if flow is not backlog and not flow.is_bulk
            ]
            for source in (backlog, *other_backlogs):
                for _, _, other in source.by_size if order is backlog.by_size else source.by_age:
                    if num_wanted <= 0:
                        break
                    if other is not ask:
                        candidates += other.entry.waiting
                        num_wanted -= other.entry.num_tokens
            candidates.sort()
        low = bisect_left(candidates, anchor)
        high, num_left = low + 1, num_left - anchor.length
        while low > 0 and candidates[low - 1].length <= num_left:  # first the shorter ones
            low -= 1
            num_left -= candidates[low].length
        while high < len(candidates) and candidates[high].length <= num_left:
            num_left -= candidates[high].length
            high += 1
        return candidates[low:high]

    def settle(self, micro: MicroBatch, error: Exception | None, now: float) -> None:
        """The rows of the micro-batch were delivered, or an error came in their place, which fails
        its asks only."""
        if error is None and not micro.on_all_cores:  # the rate is of one worker
            micro.target.update_rate(micro.num_tokens, now - micro.taken)
        for ask, sequences in micro.parts:
            if error is None:
                ask.entry.num_left -= len(sequences)
                if not ask.entry.num_left:
                    ask.entry.computed = now
                    with suppress(InvalidStateError):  # the caller has left in the meantime
                        ask.entry.future.set_result(None)
            else:
                _fail(ask, error)

    def give_up(self, error: Exception) -> None:
        """Fails every ask, also those that run. Of no use after that: another queue must take its
        place."""
        for ask in list(self._live_asks):
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
            if late.in_time:
                late.entry.num_left -= len(
                    late.entry.waiting
                )  # those that run may still be there in time
                if not late.entry.num_left:
                    late.entry.computed = now
                    with suppress(InvalidStateError):
                        late.entry.future.set_result(None)
            else:
                waited_s = now - late.entry.submitted
                _fail(late, Expired(f"deadline: it passed after {waited_s:.2f} s in the queue"))
            self._remove(late)


def _is_large(ask: Ask) -> bool:
    """The sequence of the ask that runs next is large."""
    length: int = ask.entry.waiting[0 if ask.in_time else -1].length
    return length >= ask.target.large_from


def _last_begin(ask: Ask) -> float:
    """When the next sequence of an ask that ends in time must be begun, to be there in time."""
    own_s: float = ask.entry.waiting[0].length * ask.target.s_per_token
    return ask.ends - own_s


def least_share(target: Target) -> int:
    """Real tokens that an idle worker is woken for."""
    return max(MIN_TOKENS_PER_WORKER, int(MIN_WORKER_S * (target.tokens_per_s or 0)))


def _fail(ask: Ask, error: Exception) -> None:
    with suppress(InvalidStateError):  # the caller has left in the meantime
        ask.entry.future.set_exception(error)
