"""Bulk asks leave a worker to other asks, share the rest by API key, and run in small micro-batches
without company. No test waits for seconds."""

import threading

import pytest

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.fair_queue import ALONE_S, BULK_TOKENS
from addnorm.service.asking.scheduler import Scheduler
from addnorm.service.engine.batch import Batch, Rows
from addnorm.service.engine.target import Target
from tests.support.scheduling import (
    Queue,
    echo,
    gate_of,
    lengths,
    of_lengths,
    submit,
    submit_to,
    values,
)
from tests.support.waiting import PATIENCE_S, eventually


def bulk(queue: Queue, target: Target, *sizes: int, key: str = "", now: float = 0) -> Ask:
    batch = of_lengths(*sizes)
    return submit(queue, target, batch, now, now + 1e6, key, is_bulk=True)


@pytest.mark.parametrize(("num_workers", "left"), [(1, 1), (2, 1), (8, 7)])
def test_one_worker_is_left_to_others_while_there_are_any(num_workers: int, left: int) -> None:
    queue, target = Queue(1000, num_workers), Target(echo, 64)
    assert queue.num_bulk_workers(100) == num_workers
    submit(queue, target, of_lengths(1), now=100, deadline=200)
    bulk(queue, target, 1, now=101)
    assert queue.num_bulk_workers(100 + ALONE_S - 0.1) == left
    assert queue.num_bulk_workers(100 + ALONE_S + 0.1) == num_workers


def test_the_last_idle_worker_takes_another_ask_or_none() -> None:
    queue, target = Queue(1000, num_workers=2), Target(echo, 64)
    target.tokens_per_s = 1.0
    for _ in range(3):
        bulk(queue, target, 16)
    submit(queue, target, of_lengths(2, 3), now=1)
    submit(queue, target, of_lengths(4), now=1, key="other")
    assert lengths(queue.take(1, num_idle=1)) == [2, 3, 4]
    assert queue.take(1, num_idle=1) is None
    assert lengths(queue.take(1, num_idle=2)) == [16]
    assert queue.take(ALONE_S, num_idle=1) is None
    for _ in range(2):
        assert lengths(queue.take(1 + ALONE_S, num_idle=1)) == [16]
    assert not queue.asks
    assert not queue.num_bulk


def test_keys_have_equal_shares_however_many_bulk_asks_each_has() -> None:
    queue, target = Queue(1000, num_workers=2), Target(echo, 64)
    target.tokens_per_s = 1.0
    for _ in range(3):
        bulk(queue, target, *[64] * 4, key="many")
    one = bulk(queue, target, *[64] * 3, key="one")
    taken = [micro.sequences[0].ask for micro in (queue.take(0, 2) for _ in range(6)) if micro]
    assert taken.count(one) == 3


def test_a_bulk_ask_takes_one_worker_and_little_at_once_however_many_are_idle() -> None:
    queue, target = Queue(10_000, num_workers=4), Target(echo, 4 * BULK_TOKENS)
    target.tokens_per_s = 1.0
    bulk(queue, target, *[BULK_TOKENS // 4] * 10)
    assert sum(lengths(queue.take(0, num_idle=4))) == BULK_TOKENS
    small = Target(echo, 64)
    submit(queue, small, of_lengths(16, 16, 16, 16))
    assert lengths(queue.take(0, num_idle=4)) == [16]


def test_it_runs_with_no_other_ask() -> None:
    """Else a short request would wait as long as it runs."""
    queue, target = Queue(1000), Target(echo, 64)
    bulk(queue, target, 16, 16)
    submit(queue, target, of_lengths(16))
    submit(queue, target, of_lengths(16))
    taken = [lengths(queue.take(0)) for _ in range(2)]
    assert sorted(taken) == [[16, 16], [16, 16]]
    assert not queue.asks
    bulk(queue, target, 16, 16, 16)
    submit(queue, target, of_lengths(8))
    assert sorted(lengths(queue.take(0)) for _ in range(2)) == [[8], [16, 16, 16]]


def test_its_tokens_are_in_no_account() -> None:
    """Neither is it rejected for those of others, nor are others rejected for its own."""
    queue, target = Queue(max_queue_tokens=100), Target(echo, 64)
    target.tokens_per_s = 1.0
    submit(queue, target, of_lengths(90))
    ask = bulk(queue, target, *[50] * 20)
    assert (queue.num_tokens, queue.wait_s(), ask.entry.num_tokens) == (90, 90, 1000)
    while queue.take(1, num_idle=2):
        pass
    assert (queue.num_tokens, target.num_tokens, ask.entry.num_tokens) == (0, 0, 0)
    assert not queue.num_bulk


def test_all_workers_run_it_once_it_is_alone() -> None:
    """None of them is woken by anything else."""
    both = threading.Barrier(2, timeout=PATIENCE_S)

    def together(batch: Batch) -> Rows:
        both.wait()
        return echo(batch)

    scheduler = Scheduler(gate_of(2, 10_000))
    scheduler.start()
    sizes = [BULK_TOKENS] * 4
    ask = submit_to(scheduler, Target(together, BULK_TOKENS), of_lengths(*sizes), 60, is_bulk=True)
    assert values(ask) == [[size] * size for size in sizes]
    scheduler.close()


def test_a_short_ask_finds_an_idle_worker_beside_it() -> None:
    go, began = threading.Event(), threading.Event()
    num_runs = 0

    def held(batch: Batch) -> Rows:
        nonlocal num_runs
        num_runs += 1
        began.set()
        assert go.wait(PATIENCE_S)
        return echo(batch)

    scheduler = Scheduler(gate_of(2, 10_000))
    scheduler.start()
    assert values(submit_to(scheduler, Target(echo, 64), of_lengths(1), 60)) == [[1]]
    sizes = [BULK_TOKENS] * 4
    ask = submit_to(scheduler, Target(held, BULK_TOKENS), of_lengths(*sizes), 60, is_bulk=True)
    assert began.wait(PATIENCE_S)
    for length in range(1, 5):
        assert values(submit_to(scheduler, Target(echo, 64), of_lengths(length), 60)) == [
            [length] * length
        ]
    assert eventually(lambda: scheduler.num_busy == 1)
    assert num_runs == 1
    go.set()
    assert values(ask) == [[size] * size for size in sizes]
    scheduler.close()
