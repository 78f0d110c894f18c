"""Waiting for what happens on another thread, and making it wait."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from addnorm.service.engine.batch import Batch, Rows
from addnorm.service.engine.registry import Models

# for what must happen, however busy the machine is: less than pytest's faulthandler_timeout
PATIENCE_S = 240.0


def eventually(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> bool:
    deadline = time.monotonic() + patience_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)
    return condition()


async def until(condition: Callable[[], object]) -> None:
    """Waits on the event loop. TimeoutError if it never comes."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.002)


@contextmanager
def runs_held_up(models: Models, name: str = "notebook") -> Iterator[threading.Event]:
    """Runs of this model wait for this event, which is set at the end too."""
    target, go = models.find(name).target("fp32"), threading.Event()
    run, on_all_cores = target.run, target.run_on_all_cores

    def waits(batch: Batch) -> Rows:
        go.wait(2 * PATIENCE_S)  # longer than a test waits for what must not need the run
        return run(batch)

    target.run = target.run_on_all_cores = waits
    try:
        yield go
    finally:
        go.set()
        target.run, target.run_on_all_cores = run, on_all_cores
