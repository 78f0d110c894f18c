"""Work in steps, run on a turn (`turns.py`)."""

import time
from collections.abc import Callable, Generator
from typing import TypeVar

from addnorm.service.scheduling.deadline import Deadline
from addnorm.service.scheduling.turns import SLICE_S, Turns, checkpoint

Done = TypeVar("Done")
Steps = Generator[None, None, Done]  # yields after each step, of some ms; returns the result


def run_now(work: Steps[Done]) -> Done:
    """All steps, one after another."""
    try:
        while True:
            next(work)
            checkpoint()
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        work.close()


def timed(
    work: Steps[Done],
    tell: Callable[[float, bool], None],
    clock: Callable[[], float] = time.monotonic,
) -> Steps[Done]:
    """The same work. At its end `tell` is called with the seconds that its steps took, and whether
    all were done."""
    seconds, is_done = 0.0, False
    try:
        while True:
            started = clock()
            try:
                next(work)
            except StopIteration as end:
                is_done = True
                return end.value  # type: ignore[no-any-return]
            finally:
                seconds += clock() - started
            yield
    finally:
        tell(seconds, is_done)


def one_step(work: Callable[[], Done]) -> Steps[Done]:
    """Work that cannot be interrupted."""
    result = work()
    yield
    return result


class CooperativePool(Turns):
    async def finish(
        self, work: Steps[Done], deadline: Deadline, expected_s: float = SLICE_S
    ) -> Done:
        return await self.run(deadline, run_now, work)

    async def call(self, work: Callable[[], Done]) -> Done:
        return await self.run(Deadline(60.0), work)
