"""Bulk requests leave a worker to other callers, and share their turns by API key. Their pieces run
apart from other jobs. No test waits for seconds."""

import asyncio
import os
import sys
import threading
from contextlib import AsyncExitStack

import pytest

from addnorm.service.runtime.batch import Batch, Rows
from addnorm.service.scheduling.bulk_turns import ALONE_S, SPARE_LANES, BulkTurns
from addnorm.service.scheduling.job import AllRows, Job, Run, Target
from addnorm.service.scheduling.low_priority import NICER, LowPriorityThread
from addnorm.service.scheduling.scheduler import Scheduler
from tests.support.scheduling import Queue, echo, gate_of, lengths, of_lengths, submit, values
from tests.support.waiting import PATIENCE_S, eventually


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("num_workers", "left"), [(1, 1), (2, 1), (8, 7)])
def test_one_worker_is_left_to_others_while_there_are_any(num_workers: int, left: int) -> None:
    clock = Clock()
    turns = BulkTurns(num_workers, clock)
    assert (turns.num_workers, turns.num_lanes) == (num_workers, num_workers + SPARE_LANES)
    turns.note_other()
    clock.now += ALONE_S - 0.1
    assert turns.num_workers == turns.num_lanes == left
    clock.now += 0.2
    assert (turns.num_workers, turns.num_lanes) == (num_workers, num_workers + SPARE_LANES)


def beside_others(num_workers: int = 2) -> BulkTurns:
    turns = BulkTurns(num_workers, Clock())
    turns.note_other()
    return turns


async def settled() -> None:
    """All tasks have run as far as they can."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_keys_begin_pieces_in_equal_shares_however_many_each_has() -> None:
    async def pieces() -> list[str]:
        turns, began = beside_others(), list[str]()

        async def piece(key: str) -> None:
            async with turns.turn(key, 1.0):
                began.append(key)
                await settled()

        many = [asyncio.create_task(piece("many")) for _ in range(6)]
        await settled()
        one = [asyncio.create_task(piece("one")) for _ in range(2)]
        await asyncio.gather(*many, *one)
        return began

    began = asyncio.run(pieces())
    assert sorted(began) == ["many"] * 6 + ["one"] * 2
    assert began.index("one") <= 2, began
    assert began[-2:] == ["many"] * 2, began


@pytest.mark.parametrize("left", ["while it waits", "as its turn begins", "in its turn"])
def test_a_caller_who_leaves_gives_its_turn_to_the_next(left: str) -> None:
    async def hold(turns: BulkTurns) -> None:
        async with turns.turn("a", 1.0):
            await asyncio.Event().wait()

    async def leave() -> None:
        turns = beside_others()
        async with AsyncExitStack() as first:
            if left != "in its turn":
                await first.enter_async_context(turns.turn("a", 1.0))
            gone = asyncio.create_task(hold(turns))
            await settled()
            if left == "as its turn begins":
                await first.aclose()  # the turn is its own now, and it does not know yet
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
        assert turns.num_running == 0
        async with asyncio.timeout(10), turns.turn("b", 1.0):
            assert gone.cancelled()

    asyncio.run(leave())


def piece(queue: Queue, target: Target, *sizes: int) -> Job:
    batch, backlog = of_lengths(*sizes), queue.backlog("", target)
    return queue.add(target, batch, 0, 100, backlog, AllRows(batch), is_piece=True)


def test_a_piece_takes_one_worker_however_many_are_idle() -> None:
    queue, target = Queue(1000, num_workers=4), Target(echo, 64)
    piece(queue, target, 16, 16, 16, 16)
    assert lengths(queue.take(0, num_idle=4)) == [16] * 4
    submit(queue, target, of_lengths(16, 16, 16, 16))
    assert lengths(queue.take(0, num_idle=4)) == [16]


def test_a_piece_runs_with_no_other_job() -> None:
    """Else a short request would wait as long as the piece runs."""
    queue, target = Queue(1000), Target(echo, 64)
    piece(queue, target, 16, 16)
    submit(queue, target, of_lengths(16))
    submit(queue, target, of_lengths(16))
    taken = [lengths(queue.take(0)) for _ in range(2)]
    assert sorted(taken) == [[16, 16], [16, 16]]
    assert not queue.jobs
    piece(queue, target, 16, 16, 16)
    submit(queue, target, of_lengths(8))
    assert sorted(lengths(queue.take(0)) for _ in range(2)) == [[8], [16, 16, 16]]


def test_a_piece_is_queued_where_another_job_is_rejected() -> None:
    """It was admitted as a part of its request."""
    queue, target = Queue(max_queue_tokens=100), Target(echo, 64)
    submit(queue, target, of_lengths(90))
    batch = of_lengths(50)
    queue.gate.submit(target, batch, 0, 100, "", None, is_piece=True)
    assert queue.num_tokens == 140


@pytest.mark.parametrize(
    ("is_piece", "others", "wanted"),
    [
        (True, True, {"held": "low-priority", "all cores": "worker"}),
        (True, False, {"held": "worker", "one core": "worker"}),
        (False, True, {"held": "worker", "one core": "worker"}),
    ],
)
def test_a_piece_gives_way_to_a_run_on_all_cores_once_there_are_other_jobs(
    is_piece: bool, others: bool, wanted: dict[str, str]
) -> None:
    gate, threads = threading.Event(), dict[str, str]()

    def held(batch: Batch) -> Rows:
        threads["held"] = threading.current_thread().name
        assert gate.wait(PATIENCE_S)
        return echo(batch)

    def noted(how: str) -> Run:
        def run(batch: Batch) -> Rows:
            threads[how] = threading.current_thread().name
            return echo(batch)

        return run

    target = Target(noted("one core"), 64, run_on_all_cores=noted("all cores"))
    busy = Target(held, 64)
    busy.tokens_per_s = target.tokens_per_s = 1e6
    scheduler = Scheduler(gate_of(2, 10_000))
    scheduler.start()
    if others:
        assert values(scheduler.submit(Target(echo, 64), of_lengths(1), 60)) == [[1]]
    first = scheduler.submit(busy, of_lengths(40), 60, is_piece=is_piece)
    assert eventually(lambda: "held" in threads)
    assert values(scheduler.submit(target, of_lengths(5), 60)) == [[5] * 5]
    gate.set()
    assert values(first) == [[40] * 40]
    scheduler.close()
    assert threads == wanted


def test_a_thread_of_low_priority_gives_way_and_says_what_became_of_its_work() -> None:
    thread = LowPriorityThread()
    if sys.platform == "linux":
        own = os.getpriority(os.PRIO_PROCESS, 0)
        priority = thread.run(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        assert priority == min(19, own + NICER)
        assert os.getpriority(os.PRIO_PROCESS, 0) == own
    with pytest.raises(ZeroDivisionError):
        thread.run(lambda: 1 / 0)
    running = thread.run(threading.current_thread)
    thread.close()
    running.join(PATIENCE_S)
    assert not running.is_alive()
