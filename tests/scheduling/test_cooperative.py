"""Work in steps: keys share the threads, short work passes long work, and work that is given up
holds nothing."""

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from addnorm.service.errors import ClientGone, Expired
from addnorm.service.scheduling.cooperative import SLICE_S, CooperativePool, Steps, one_step
from addnorm.service.scheduling.deadline import Deadline
from addnorm.service.scheduling.gate import Holdings
from tests.support.waiting import PATIENCE_S

Ask = Callable[[str, float], Awaitable[object]]


def order_of(play: Callable[[Ask], Awaitable[object]]) -> list[str]:
    """The order in which works of one piece each have their turns in one thread."""
    order: list[str] = []

    async def run() -> None:
        turns = CooperativePool(1, "test")

        async def ask(name: str, expected_s: float) -> None:
            await turns.finish(one_step(lambda: order.append(name)), Deadline(30), expected_s)

        await play(ask)
        turns.close()

    asyncio.run(run())
    return order


def test_short_work_passes_long_work_that_came_before() -> None:
    def play(ask: Ask) -> Awaitable[object]:
        return asyncio.gather(
            ask("runs", SLICE_S),
            *(ask("long", SLICE_S) for _ in range(5)),
            ask("short", SLICE_S / 16),
        )

    assert order_of(play) == ["runs", "short", *["long"] * 5]


def test_no_flood_of_short_work_starves_long_work() -> None:
    async def flood(ask: Ask) -> None:
        for _ in range(100):
            await ask("short", SLICE_S / 16)

    def play(ask: Ask) -> Awaitable[object]:
        return asyncio.gather(flood(ask), flood(ask), ask("long", SLICE_S))

    assert order_of(play).index("long") <= 2 * 16


def test_a_caller_that_leaves_while_it_waits_gives_its_turn_to_others() -> None:
    async def run() -> list[str]:
        turns, go, done = CooperativePool(1, "test"), threading.Event(), list[str]()
        gone = Deadline(30)

        def reserve() -> Steps[None]:
            go.wait()
            yield

        first = asyncio.ensure_future(turns.finish(reserve(), Deadline(30)))
        await asyncio.sleep(0.01)
        second = asyncio.ensure_future(turns.finish(one_step(lambda: done.append("left")), gone))
        third = asyncio.ensure_future(
            turns.finish(one_step(lambda: done.append("stayed")), Deadline(30))
        )
        await asyncio.sleep(0.01)
        gone.leave()
        with pytest.raises(ClientGone):
            await second
        go.set()
        await asyncio.gather(first, third)
        await turns.finish(one_step(lambda: done.append("last")), Deadline(30))
        turns.close()
        return done

    assert asyncio.run(run()) == ["stayed", "last"]


class Turns:
    """A pool whose clock only its steps move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []
        self.pool = CooperativePool(1, "test", clock=lambda: self.now)

    def steps(self, name: str, num: int, seconds: float) -> Steps[None]:
        for _ in range(num):
            self.now += seconds
            self.order.append(name)
            yield

    async def ask(self, key: str, num: int, seconds: float) -> None:
        """Work of so many steps, each of so many seconds; nobody knows before how long it takes."""
        await self.pool.finish(
            self.steps(key, num, seconds), Deadline(PATIENCE_S, holdings=Holdings(key))
        )


def test_keys_take_turns_however_many_requests_each_has() -> None:
    turns = Turns()

    async def play() -> None:
        await asyncio.gather(
            *(turns.ask("many", 2, SLICE_S) for _ in range(8)), turns.ask("one", 2, SLICE_S)
        )

    asyncio.run(play())
    turns.pool.close()
    assert turns.order[:4] == ["many", "one", "many", "one"]


def test_a_key_is_charged_what_its_steps_took() -> None:
    """Ten times as long as a slice: the other key has ten slices for each of them."""
    turns = Turns()

    async def play() -> None:
        await asyncio.gather(
            *(turns.ask("long", 1, 10 * SLICE_S) for _ in range(3)),
            *(turns.ask("short", 1, SLICE_S) for _ in range(30)),
        )

    asyncio.run(play())
    turns.pool.close()
    ends = [index for index, name in enumerate(turns.order) if name == "long"]
    assert ends[0] == 0
    assert all(abs(later - before - 11) <= 1 for before, later in pairwise(ends))


def test_a_key_that_had_no_work_has_saved_nothing_up() -> None:
    turns = Turns()

    async def play() -> None:
        await turns.ask("early", 100, SLICE_S)
        turns.order.clear()
        await asyncio.gather(*(turns.ask(key, 4, SLICE_S) for key in ("early", "late")))

    asyncio.run(play())
    turns.pool.close()
    assert turns.order[:4].count("late") == 2


def test_a_caller_that_leaves_in_a_step_is_charged_for_it() -> None:
    """Its thread is free when the step ends, and not before."""
    turns, began, go = Turns(), threading.Event(), threading.Event()

    def long_step() -> Steps[None]:
        began.set()
        assert go.wait(PATIENCE_S)
        turns.now += 10 * SLICE_S
        yield

    async def play() -> None:
        leaves = Deadline(PATIENCE_S, holdings=Holdings("leaves"))
        left = asyncio.ensure_future(turns.pool.finish(long_step(), leaves))
        await asyncio.to_thread(began.wait, PATIENCE_S)
        leaves.leave()
        with pytest.raises(ClientGone):
            await left
        others = [asyncio.ensure_future(turns.ask("leaves", 1, SLICE_S)) for _ in range(2)]
        others += [asyncio.ensure_future(turns.ask("stays", 1, SLICE_S)) for _ in range(5)]
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*others)

    asyncio.run(play())
    turns.pool.close()
    assert turns.order == [*["stays"] * 5, *["leaves"] * 2]


def test_no_thread_is_lost_whoever_leaves_and_whatever_fails() -> None:
    """Random callers: some leave, some are late, some raise; afterwards all threads are free."""
    draws, pool = random.Random(0), CooperativePool(2, "test")

    def steps() -> Steps[int]:
        for _ in range(draws.randrange(4)):
            yield
        if draws.random() < 0.2:
            raise ValueError
        return 1

    async def caller(number: int) -> None:
        deadline = Deadline(draws.choice([1e-4, PATIENCE_S]), holdings=Holdings(str(number % 3)))
        if draws.random() < 0.3:
            asyncio.get_running_loop().call_later(0.01 * draws.random(), deadline.leave)
        await pool.finish(steps(), deadline, draws.choice([0.0, SLICE_S]))

    async def play() -> list[object]:
        made = await asyncio.gather(*map(caller, range(300)), return_exceptions=True)
        await asyncio.gather(*(pool.finish(steps_of_one(), Deadline(PATIENCE_S)) for _ in range(4)))
        return list(made)

    def steps_of_one() -> Steps[None]:
        both.wait(PATIENCE_S)
        yield

    both = threading.Barrier(2)
    made = asyncio.run(play())
    pool.close()
    kinds = {type(one) for one in made}
    assert kinds == {type(None), ValueError, ClientGone, Expired}
    assert pool._num_free == 2
