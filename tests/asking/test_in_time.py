"""An ask that ends in time is answered with what is there: in its order, by turns with others, and
with the bits of the whole."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.fair_queue import BULK_TOKENS
from addnorm.service.asking.gate import IN_TIME
from addnorm.service.asking.rows import AskedRows
from addnorm.service.engine.batch import Batch, Rows
from addnorm.service.engine.outputs import Pooled
from addnorm.service.engine.registry import Models
from addnorm.service.engine.target import Target
from addnorm.service.errors import ClientGone, DeadlineNotMet
from addnorm.service.loading.loader import load_all
from addnorm.service.server.wiring import Service
from addnorm.service.settings import Settings
from tests.conftest import service_of
from tests.support.asks import ask_for
from tests.support.scheduling import Queue, ask_of, echo, of_lengths, settle, submit
from tests.support.waiting import PATIENCE_S, eventually, until

LENGTHS = [1 + 7 * number % 60 for number in range(120)]
ROWS = [[1 + (5 * row + column) % 40 for column in range(size)] for row, size in enumerate(LENGTHS)]
ROWS[7] = ROWS[3]


@pytest.fixture(scope="module")
def models(small: Path) -> Models:
    return load_all(small, Settings(worker_threads=2, token_budget=128))


def answered(on: Service, ask: Ask) -> Any:
    with on.gate.admit(ask):
        return asyncio.run(on.answers.answer(ask))


def asked(models: Models, rows: list[list[int]] = ROWS, **fields: Any) -> Ask:
    return ask_for(models.find("gpt"), rows, Pooled(), encode=vectors, **fields)


def vectors(ask: Ask) -> list[bytes]:
    return [vector.tobytes() for vector in ask.value(Pooled).joined]


def service(models: Models, **changed: Any) -> Service:
    return service_of(models, **changed)


def ends_after(models: Models, num_runs: int, ask: Ask, on: Service) -> list[bytes]:
    """What it is answered when its time is over while a worker runs what comes after num_runs."""
    target, go, begun = models.find("gpt").target("fp32"), threading.Event(), []
    run = target.run

    def waits(batch: Batch) -> Rows:
        begun.append(len(batch))
        if len(begun) > num_runs:
            go.wait(2 * PATIENCE_S)
        return run(batch)

    async def story() -> Any:
        work = asyncio.create_task(on.answers.answer(ask))
        await until(lambda: len(begun) == num_runs + 2)  # both workers run what comes too late
        ask.end()
        return await work

    target.run = waits
    try:
        with on.gate.admit(ask):
            rows: list[bytes] = asyncio.run(story())
        return rows
    finally:
        target.run = run
        go.set()
        assert eventually(lambda: not on.scheduler.num_busy)
        assert not on.gate.queue.asks
        assert not any(on.gate.total.values())


@pytest.mark.parametrize("num_runs", [1, 3])
def test_it_is_answered_with_what_is_there_with_the_bits_of_the_whole(
    models: Models, num_runs: int
) -> None:
    on = service(models)
    try:
        whole = answered(on, asked(models))
        ask = asked(models, in_time=True, max_time_s=PATIENCE_S)
        ends = ends_after(models, num_runs, ask, on)
        there = ask.there
        assert there is not None
        assert ends == [whole[index] for index in there]
        assert 0 < len(there) < len(ROWS)
        # the late rows of the two runs that went on change nothing, and the next ask has all
        last = asked(models, in_time=True, max_time_s=PATIENCE_S)
        assert answered(on, last) == whole
        assert last.there == list(range(len(ROWS)))
    finally:
        on.close()


def test_what_is_held_needs_no_time(models: Models) -> None:
    on = service_of(models, cache_bytes=2**22)
    try:
        first = answered(on, asked(models, ROWS[:7]))
        late = asked(models, in_time=True, max_time_s=1e-6)
        assert answered(on, late) == [*first, first[3]]
        assert late.there == list(range(8))
        whole = answered(on, asked(models))
        assert answered(on, asked(models, in_time=True, max_time_s=1e-6)) == whole
    finally:
        on.close()


def test_who_would_have_nothing_is_rejected(models: Models) -> None:
    """Over before it began, or while its first sequences run."""
    on = service(models)
    try:
        with pytest.raises(DeadlineNotMet, match=r"max_time_ms is 0.001, and nothing would be"):
            answered(on, asked(models, in_time=True, max_time_s=1e-6))
        assert not any(on.gate.total.values())
        ask = asked(models, in_time=True, max_time_s=PATIENCE_S)
        with pytest.raises(DeadlineNotMet, match=r"max_time_ms is \d+, and nothing"):
            ends_after(models, 0, ask, on)
    finally:
        on.close()


def test_its_tokens_are_never_too_many(models: Models) -> None:
    on = service(models, max_queue_tokens=16)
    try:
        whole = answered(on, asked(models))
        assert answered(on, asked(models, in_time=True, max_time_s=PATIENCE_S)) == whole
    finally:
        on.close()


def test_nothing_more_is_computed_for_a_caller_that_left(models: Models) -> None:
    on = service(models)
    target, go, begun = models.find("gpt").target("fp32"), threading.Event(), []
    run = target.run

    def waits(batch: Batch) -> Rows:
        begun.append(len(batch))
        go.wait(2 * PATIENCE_S)
        return run(batch)

    async def leave(ask: Ask) -> None:
        work = asyncio.create_task(on.answers.answer(ask))
        await until(lambda: len(begun) == 2)
        ask.leave()
        with pytest.raises(ClientGone):
            await work

    target.run = waits
    try:
        ask = asked(models, in_time=True, max_time_s=PATIENCE_S)
        with on.gate.admit(ask):
            asyncio.run(leave(ask))
        go.set()
        assert eventually(lambda: not on.scheduler.num_busy)
        assert len(begun) == 2
    finally:
        target.run = run
        on.close()


# the queue alone, with integers for seconds

HALF = BULK_TOKENS // 2


def queued(queue: Queue, target: Target, ends: float, *lengths: int, key: str = "") -> Ask:
    ask = ask_of(target, of_lengths(*lengths), deadline=10**6, key=key)
    ask.in_time = ask.is_bulk = True
    ask.max_time_s = ends / IN_TIME
    queue.gate.weigh(ask, 0)
    return ask


def test_its_sequences_run_in_order_by_turns_with_others() -> None:
    queue, target = Queue(1000), Target(echo, 4 * BULK_TOKENS)
    one = queued(queue, target, 90, 1, HALF, HALF, 3)
    two = queued(queue, target, 90, 1, HALF, HALF, 3)
    order = []
    while micro := queue.take(0):
        order.append(
            [(sequence.ask is two, sequence.sequence_index) for sequence in micro.sequences]
        )
        settle(queue, micro, 0)
    assert order == [
        [(False, 0), (False, 1)],
        [(True, 0), (True, 1)],
        [(False, 2), (False, 3)],
        [(True, 2), (True, 3)],
    ]
    assert one.entry.future.done()
    assert two.entry.future.done()


def taken(queue: Queue) -> Ask:
    """Whose turn it is, for a second."""
    micro = queue.take(0)
    assert micro
    settle(queue, micro, 1)
    (ask, _), *others = micro.parts
    assert not others
    return ask


def test_who_has_nothing_yet_goes_first() -> None:
    """Also before one that came earlier and is smaller, but has something."""
    queue, target = Queue(10**6), Target(echo, 4 * BULK_TOKENS)
    first = queued(queue, target, 90, *[BULK_TOKENS] * 4)
    assert taken(queue) is first
    small = queued(queue, target, 90, BULK_TOKENS, HALF)
    assert taken(queue) is small
    others = [queued(queue, target, 90, *[BULK_TOKENS] * 3) for _ in range(3)]
    assert [taken(queue) for _ in range(7)] == [*others, first, small, *others[:2]]


def test_what_the_cache_held_of_it_is_something() -> None:
    queue, target = Queue(10**6), Target(echo, 4 * BULK_TOKENS)
    held = ask_of(target, of_lengths(BULK_TOKENS, BULK_TOKENS), deadline=10**6)
    held.rows = AskedRows(held.batch, ("every",))
    held.rows.missing = [1]
    held.in_time, held.is_bulk, held.max_time_s = True, True, 90
    queue.gate.weigh(held, 0)
    nothing = queued(queue, target, 90, BULK_TOKENS)
    assert [taken(queue), taken(queue)] == [nothing, held]


def test_another_key_has_its_turns_whoever_has_nothing() -> None:
    queue, target = Queue(10**6), Target(echo, 4 * BULK_TOKENS)
    other = queued(queue, target, 90, *[BULK_TOKENS] * 8, key="other")
    order = list[Ask]()
    for _ in range(8):
        queued(queue, target, 90, BULK_TOKENS, key="many")
        queued(queue, target, 90, BULK_TOKENS, key="many")
        order += [taken(queue), taken(queue)]
    assert order.count(other) == 8


def test_a_long_sequence_keeps_none_before_it_from_its_turn() -> None:
    queue, target = Queue(10**6), Target(echo, 4 * BULK_TOKENS)
    target.tokens_per_s = 1.0
    ask = queued(queue, target, 45, 20, 20, HALF)
    micro = queue.take(0)
    assert micro
    settle(queue, micro, 40)
    assert not ask.entry.future.done()
    assert queue.take(40) is None
    assert ask.entry.future.done()
    assert ask.rows.leave_out_missing() == [0, 1]


def test_no_more_is_begun_at_once_than_is_there_in_time() -> None:
    queue, target = Queue(10**6), Target(echo, 4 * BULK_TOKENS)
    target.tokens_per_s = 1.0
    queued(queue, target, 45, *[20] * 5)
    micro = queue.take(0)
    assert micro
    assert len(micro.sequences) == 2


def test_it_goes_before_other_bulk_asks_of_its_backlog() -> None:
    """They have no such time."""
    queue, target = Queue(1000), Target(echo, 4 * BULK_TOKENS)
    submit(queue, target, of_lengths(HALF, HALF), deadline=10**6, is_bulk=True)
    in_time = queued(queue, target, 90, HALF, HALF)
    micro = queue.take(0)
    assert micro
    assert micro.sequences[0].ask is in_time


def test_nothing_is_begun_that_would_be_late_and_what_runs_is_waited_for() -> None:
    queue, target = Queue(1000), Target(echo, 4 * BULK_TOKENS)
    target.tokens_per_s = HALF / 10  # a sequence takes ten seconds
    ask = queued(queue, target, 45, HALF, HALF, HALF, HALF, HALF, HALF)
    micro = queue.take(0)  # two of them
    assert queue.take(36) is None  # another would need until 46
    assert micro
    assert not ask.entry.future.done()
    settle(queue, micro, 30)
    assert ask.entry.future.done()
    assert ask.rows.leave_out_missing() == [0, 1]


def test_its_tokens_take_no_space() -> None:
    queue, target = Queue(10), Target(echo, 64)
    queued(queue, target, 90, *[HALF] * 50)
    assert queue.num_tokens == target.num_tokens == 0
    assert queue.wait_s() == 0
