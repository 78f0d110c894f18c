"""Work in steps: short work passes long work, and work that is given up holds nothing."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from addnorm.service.errors import ClientGone
from addnorm.service.scheduling.cooperative import SLICE_S, CooperativePool, Steps, one_step
from addnorm.service.scheduling.deadline import Deadline

Ask = Callable[[str, float], Awaitable[object]]


def order_of(play: Callable[[Ask], Awaitable[object]]) -> list[str]:
    """In which order the works of one thread have their turns, each of one piece."""
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
