"""The queue in any order of events: its sums are right after each, and every ask ends.

`--queue-steps 100000` tries more orders than the suite does.
"""

from collections import Counter
from itertools import count

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.fair_queue import Backlog, MicroBatch
from addnorm.service.asking.rows import AskedRows
from addnorm.service.asking.scheduler import compute
from addnorm.service.engine.batch import AnyRows, Batch
from addnorm.service.engine.target import Target
from addnorm.service.errors import ServiceError
from tests.support.scheduling import Queue, add_first, ask_of, echo, values

STEPS = 50  # of one order of events, at most
KEYS = ("a", "b")
TARGETS = st.integers(0, 1)


class Full(AskedRows):
    """Has no memory for any rows."""

    def receive(self, sequences: object, rows: AnyRows) -> None:
        raise MemoryError


def row(token: int, length: int) -> list[int]:
    return [token] * length


class AnyOrder(RuleBasedStateMachine):
    """Arrivals, known-answer tests, runs that end and fail and hang, departures, deadlines."""

    def __init__(self) -> None:
        super().__init__()
        self.queue, self.now = Queue(10**6, num_workers=3), 0
        self.targets = [Target(echo, 8), Target(echo, 24, is_shared_out=False)]
        self.expected: dict[Ask, list[list[int]]] = {}
        self.running: list[MicroBatch] = []
        self.tokens = count()  # of sequences that equal no other

    @rule(
        at=TARGETS,
        key=st.sampled_from(KEYS),
        lengths=st.lists(st.integers(1, 5), min_size=1, max_size=3),
        time=st.integers(1, 30),
        is_bulk=st.sampled_from((False, False, True)),
        is_full=st.booleans(),
    )
    def arrive(
        self, at: int, key: str, lengths: list[int], time: int, is_bulk: bool, is_full: bool
    ) -> None:
        sequences = [row(next(self.tokens), length) for length in lengths]
        target, batch = self.targets[at], _batch(sequences)
        ask = ask_of(target, batch)
        ask.rows = (Full if is_full else AskedRows)(batch, ("every",))
        ask.until, ask.is_bulk = self.now + time, is_bulk
        ask.backlog = self.queue.backlog(key, target, is_bulk)
        self.queue.add(ask, self.now)
        self.expected[ask] = sequences

    @rule(at=TARGETS, length=st.integers(3, 9))
    def ask_known_answer(self, at: int, length: int) -> None:
        sequences = [row(next(self.tokens), length)]
        self.expected[add_first(self.queue, self.targets[at], _batch(sequences))] = sequences

    @precondition(lambda self: len(self.running) < 4)
    @rule(num_idle=st.integers(1, 3))
    def take(self, num_idle: int) -> None:
        micro = self.queue.take(self.now, num_idle)
        left = self.queue.asks.values()
        assert micro or (num_idle == 1 and all(ask.is_bulk for ask in left)) or not left
        if micro:
            self.running.append(micro)
            assert not any(ask.entry.future.done() for ask, _ in micro.parts), "nobody waits for it"
            assert len({ask.is_bulk for ask, _ in micro.parts}) == 1
            if any(ask.backlog is None for ask, _ in micro.parts):
                assert len(micro.sequences) == 1, "a known-answer test runs alone"
            else:
                assert not any(ask.backlog is None for ask in self.queue.asks.values())

    @precondition(lambda self: self.running)
    @rule(at=st.integers(0, 3))
    def end(self, at: int) -> None:
        """Does what a worker does."""
        micro = self.running.pop(at % len(self.running))
        try:
            compute(micro)
        except MemoryError as error:
            self._failed(micro, error)
            return
        self.queue.settle(micro, None, self.now)

    @precondition(lambda self: self.running)
    @rule(at=st.integers(0, 3))
    def fail(self, at: int) -> None:
        self._failed(self.running.pop(at % len(self.running)), ServiceError("broken"))

    def _failed(self, micro: MicroBatch, error: Exception) -> None:
        """Its asks run again one by one, as a worker has them run."""
        if len(asks := micro.parts) > 1:
            self.running += [MicroBatch(micro.target, own, micro.taken) for _, own in asks]
        else:
            self.queue.settle(micro, error, self.now)

    @precondition(lambda self: self.running)
    @rule(at=st.integers(0, 3))
    def hang(self, at: int) -> None:
        micro = self.running.pop(at % len(self.running))
        self.queue.settle(micro, ServiceError("hung"), self.now)

    @precondition(lambda self: self.expected)
    @rule(at=st.integers(0, 100), sweeps=st.booleans())
    def leave(self, at: int, sweeps: bool) -> None:
        list(self.expected)[-1 - at % len(self.expected)].entry.future.cancel()
        if sweeps:
            self.queue.sweep(self.now)

    @rule(seconds=st.integers(1, 10))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.queue.sweep(self.now)
        for ask in self.queue.asks.values():
            assert not ask.entry.future.done(), "an ask waits that nobody waits for"
            assert ask.until > self.now

    @invariant()
    def counts_each_sequence_once(self) -> None:
        by_target, by_backlog = Counter[Target](), Counter[Backlog]()
        for ask in self.queue.asks.values():
            if not ask.is_bulk:
                by_target[ask.target] += ask.entry.num_tokens
                by_backlog[ask.backlog] += ask.entry.num_tokens
            assert ask.entry.num_tokens == sum(sequence.length for sequence in ask.entry.waiting)
        assert self.queue.num_tokens == sum(by_target.values())
        for target in self.targets:
            assert target.num_tokens == by_target[target]
            for key in KEYS:
                backlog = self.queue.backlog(key, target)
                assert backlog.num_tokens == by_backlog[backlog]

    @invariant()
    def knows_which_backlogs_have_asks(self) -> None:
        asks = Counter(ask.backlog for ask in self.queue.asks.values() if ask.backlog)
        active = {(target, each) for target, those in self.queue.active.items() for each in those}
        assert active == {(ask.target, ask.backlog) for ask in self.queue.asks.values()} - {
            (target, None) for target in self.targets
        }
        assert all(self.queue.active.values())
        for backlog, num_waiting in asks.items():
            assert backlog.num_waiting == num_waiting == len(backlog.by_age) == len(backlog.by_size)
        owners = {each.owner for each in asks}
        assert sum(owner.num_waiting for owner in owners) == asks.total()
        num_bulk = sum(ask.is_bulk for ask in self.queue.asks.values())
        assert sum(owner.num_bulk for owner in owners) == self.queue.num_bulk == num_bulk

    @invariant()
    def runs_each_sequence_once_at_a_time(self) -> None:
        running = [own for micro in self.running for own in micro.sequences]
        assert len(running) == len(set(running))

    @invariant()
    def loses_no_ask(self) -> None:
        held = set(self.queue.asks.values())
        for micro in self.running:
            for sequence in micro.sequences:
                held.add(sequence.ask)
        assert all(ask in held or ask.entry.future.done() for ask in self.expected)

    def teardown(self) -> None:
        while self.running or self.queue.asks:
            while self.running:
                self.end(0)
            self.take(3)
        assert self.queue.take(self.now) is None
        for ask, sequences in self.expected.items():
            assert ask.entry.future.done(), "an ask was lost"
            if not ask.entry.future.cancelled() and not ask.entry.future.exception():
                assert values(ask) == sequences
        assert not self.queue.num_tokens
        assert not self.queue.active


def _batch(sequences: list[list[int]]) -> Batch:
    return Batch.of([np.array(sequence, np.int64) for sequence in sequences])


def test_in_any_order_of_events_sums_are_right_and_every_ask_ends(
    request: pytest.FixtureRequest,
) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        AnyOrder,
        settings=settings(
            max_examples=request.config.getoption("--queue-steps") // STEPS,
            stateful_step_count=STEPS,
            deadline=None,
            phases=(Phase.generate,),  # to find a shorter failure takes minutes
            suppress_health_check=list(HealthCheck),
        ),
    )
