"""Waiting for what happens on another thread, and making it wait."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from addnorm.service.runtime.batch import Batch, Rows
from addnorm.service.server.wiring import Service


PATIENCE_S = 60.0  # for what must happen, however busy the machine is


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)
    return condition()


@contextmanager
def runs_held_up(service: Service) -> Iterator[threading.Event]:
    """Runs of notebook wait for this event, which is set at the end too."""
    target, go = service.models.find("notebook").target("fp32"), threading.Event()
    run = target.run

    def waits(batch: Batch) -> Rows:
        go.wait(PATIENCE_S)
        return run(batch)

    target.run = target.run_on_all_cores = waits
    yield go
    go.set()
