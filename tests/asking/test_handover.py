"""Results of threads reach the event loop, all that come together by one wake-up."""

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from addnorm.service.asking.ask import Ask, Handover
from addnorm.service.errors import Expired


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts its wake-ups by other threads."""

    num_wakes = 0

    def call_soon_threadsafe(self, *arguments: Any, **named: Any) -> asyncio.Handle:
        self.num_wakes += 1
        return super().call_soon_threadsafe(*arguments, **named)


def test_results_that_come_together_wake_the_loop_once() -> None:
    async def settled_together(handover: Handover) -> tuple[list[int], int]:
        """The results of five futures, and how often the loop was woken for them."""
        futures = [Future[int]() for _ in range(5)]
        waiting = [
            asyncio.ensure_future(handover.result(future, Ask(timeout_s=30))) for future in futures
        ]
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        before = loop.num_wakes
        for number, future in enumerate(futures):
            future.set_result(number)
        return await asyncio.gather(*waiting), loop.num_wakes - before

    async def run() -> None:
        handover = Handover()
        for _ in range(2):  # it is woken again for what comes later
            assert await settled_together(handover) == ([0, 1, 2, 3, 4], 1)

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        runner.run(run())


def test_an_error_and_a_cancelled_future_reach_who_waits() -> None:
    async def run() -> None:
        handover, failed, cancelled = Handover(), Future[int](), Future[int]()
        failed.set_exception(ValueError("bad"))
        with pytest.raises(ValueError, match="bad"):
            await handover.result(failed, Ask(timeout_s=30))
        cancelled.cancel()
        with pytest.raises(Expired):
            await handover.result(cancelled, Ask(timeout_s=30))

    asyncio.run(run())


def test_what_nobody_waits_for_any_more_is_cancelled() -> None:
    async def run() -> Future[int]:
        late = Future[int]()
        with pytest.raises(Expired):
            await Handover().result(late, Ask(timeout_s=0.01))
        return late

    assert asyncio.run(run()).cancelled()


def test_a_wake_up_that_a_closed_loop_has_lost_keeps_no_later_one() -> None:
    handover, lost = Handover(), Future[int]()
    loop = asyncio.new_event_loop()
    task = loop.create_task(handover.result(lost, Ask(timeout_s=30)))
    loop.run_until_complete(asyncio.sleep(0))
    lost.set_result(1)
    loop.close()

    async def run() -> int:
        future = Future[int]()
        future.set_result(2)
        return await handover.result(future, Ask(timeout_s=30))

    assert asyncio.run(run()) == 2
    assert not task.done()
