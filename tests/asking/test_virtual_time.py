"""Turns among flows, and what the queue keeps of those that come and go."""

import gc
import time
import weakref

import numpy as np

from addnorm.service.asking.fair_queue import Flow, StartTimeFairQueue
from addnorm.service.engine.target import Target
from tests.support.scheduling import Queue, add_first, batch, echo, lengths, of_lengths, run, submit


def busy(turns: StartTimeFairQueue[Flow]) -> Flow:
    """A flow that always has something that waits."""
    flow = Flow()
    flow.num_waiting = 1
    turns.activate(flow)
    return flow


def test_a_flow_that_was_given_much_waits_although_it_left_in_between() -> None:
    turns = StartTimeFairQueue[Flow]()
    one, other = busy(turns), busy(turns)
    assert turns.next() is one
    turns.charge(one, 100)
    one.num_waiting = 0
    for _ in range(10):
        assert turns.next() is other
        turns.charge(other, 5)
    one.num_waiting = 1
    turns.activate(one)
    for _ in range(10):
        assert turns.next() is other
        turns.charge(other, 5)
    assert turns.next() is one


def test_a_flow_that_may_not_be_served_keeps_its_place() -> None:
    turns = StartTimeFairQueue[Flow]()
    first, second = busy(turns), busy(turns)
    assert turns.next(lambda flow: False) is None
    for _ in range(3):
        assert turns.next(lambda flow: flow is second) is second
        turns.charge(second, 5)
    for _ in range(3):
        assert turns.next() is first
        turns.charge(first, 5)
    assert turns.next(lambda flow: flow is second) is second


def test_asks_wait_by_size_and_then_by_arrival() -> None:
    queue, target = Queue(1000), Target(echo, 4)
    c, a, b, d = (submit(queue, target, of_lengths(size)) for size in (2, 1, 1, 3))
    by_size = c.backlog.by_size
    assert [ask for _, _, ask in by_size] == [a, b, c, d]
    queue.sweep(0)
    b.entry.future.cancel()
    queue.sweep(0)
    assert [ask for _, _, ask in by_size] == [a, c, d]
    assert [ask for _, _, ask in c.backlog.by_age] == [c, a, d]


def test_a_known_answer_test_goes_before_all_and_costs_nobody_a_turn() -> None:
    queue, target, other = Queue(1000), Target(echo, 4), Target(echo, 4)
    for _ in range(3):
        submit(queue, target, of_lengths(4), key="a")
    known_answer = add_first(queue, other, batch([7, 7]))
    micro = queue.take(0)
    assert micro is not None
    assert micro.sequences[0].ask is known_answer
    assert lengths(queue.take(0)) == [4]


def test_nothing_of_a_target_or_an_ask_outlives_them() -> None:
    """Models are swapped under load: what is kept of them would stay in memory."""
    queue, target = Queue(1000), Target(echo, 4)
    gc.disable()
    try:
        ask = submit(queue, target, of_lengths(2), key="a")
        run(queue, 0)
        queue.take(1)
        kept = weakref.ref(ask), weakref.ref(target)
        del ask, target
        assert [reference() for reference in kept] == [None, None]
    finally:
        gc.enable()
    submit(queue, Target(echo, 4), of_lengths(2), key="a")
    assert lengths(queue.take(1)) == [2]


def test_ten_thousand_waiting_asks_make_nobody_slow() -> None:
    """About 30 us of CPU time each; looking at every ask took 27 ms."""
    queue, targets = Queue(10**9), [Target(echo, 256) for _ in range(4)]
    draws = np.random.default_rng(0)
    for target in targets:
        target.tokens_per_s = 10_000
    for at in range(10_000):
        submit(
            queue,
            targets[at % 4],
            of_lengths(*draws.integers(1, 100, 2)),
            deadline=1e9,
            key=f"key {at % 8}",
        )
    started = time.thread_time()
    for at in range(100):
        submit(queue, targets[at % 4], of_lengths(30), deadline=2.1 * queue.wait_s(), key="key 1")
        queue.take(0)
    assert (time.thread_time() - started) / 100 < 0.005
